"""An interpreter of PTX, for tests of kernels without a GPU: one block after another.

Knows the instructions that voxax' own kernels become, and raises for any other. Numbers are exact
but for the order of a tensor core's sums. It is stricter than a GPU: reads and writes outside of
an operand raise, shared memory that nothing has written is NaN, and warps run one after another,
in a random order, each as far as the next barrier.

Source: NVIDIA's PTX ISA, version 9.0, for the instructions and the layout of their fragments.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import ml_dtypes
import numpy as np

LANES = 32
_HALVES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_BINARY = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or,
           "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum}  # fmt: skip
_BIT = {"b": np.uint64, "u": np.uint64, "s": np.int64}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """``guard`` is ``(register, wanted)`` or None; ``words`` the opcode at its dots."""

    guard: tuple[str, bool] | None
    words: tuple[str, ...]
    operands: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """A kernel: its instructions, where labels point, its parameters and threads of a block."""

    code: tuple[Instruction, ...]
    labels: dict[str, int]
    parameters: tuple[str, ...]
    threads: int


def parse(text: str) -> Program:
    """The only kernel of a PTX module."""
    (name,) = re.findall(r"\.entry\s+([\w$]+)", text)
    header, body = text[text.index(f".entry {name}") :].split("{", 1)
    threads = int(re.findall(r"\.reqntid\s+(\d+)", header)[0])
    parameters = tuple(re.findall(r"\.param\s[^,)]*?([\w$]+)\s*(?:\[\d+\])?\s*[,)]", header + ")"))
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    body = re.sub(r"//.*", "", body)
    body = re.sub(r"^\s*(\$?[\w$]+):", r"\1:;", body, flags=re.MULTILINE)
    for statement in body.split(";"):
        words = " ".join(statement.split())
        if words.endswith(":"):
            labels[words[:-1]] = len(code)
        found = re.fullmatch(r"(?:@(!?)(%\w+) )?([a-z][\w.:]*) ?(.*)", words)
        if found and not words.startswith("."):
            guard = (found[2], not found[1]) if found[2] else None
            operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^\s,{}\[\]]+", found[4])
            code.append(Instruction(guard, tuple(found[3].split(".")), tuple(operands)))
        elif words not in ("", "}") and words[0] not in ".$":
            raise ValueError(f"no instruction of PTX: {words}")
    return Program(tuple(code), labels, parameters, threads)


class Memory:
    """Operands in a GPU's global memory; every address outside of them raises."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.bases, self._bytes = [], []
        base = 1 << 32
        for array in arrays:
            self.bases.append(base)
            self._bytes.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
            base += (array.nbytes // 4096 + 2) * 4096

    def array(self, number: int, like: np.ndarray) -> np.ndarray:
        return self._bytes[number].view(like.dtype).reshape(like.shape)

    def _place(self, address: int, size: int) -> tuple[np.ndarray, int]:
        number = int(np.searchsorted(self.bases, address, "right")) - 1
        start = address - self.bases[number] if number >= 0 else -1
        if number < 0 or start + size > len(self._bytes[number]):
            raise IndexError(f"address {start} of operand {number}, {size} bytes: outside of it")
        if address % size:
            raise IndexError(f"address {address} is no multiple of {size}")
        return self._bytes[number], start

    def read(self, address: int, size: int) -> np.ndarray:
        data, start = self._place(address, size)
        return data[start : start + size].copy()

    def write(self, address: int, values: np.ndarray) -> None:
        data, start = self._place(address, len(values))
        data[start : start + len(values)] = values


class Shared:
    """Shared memory of a block."""

    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, 255, np.uint8)

    def read(self, address: int, size: int) -> np.ndarray:
        if address % size or not 0 <= address <= len(self.bytes) - size:
            raise IndexError(f"{size} bytes of shared memory at {address}")
        return self.bytes[address : address + size].copy()

    def write(self, address: int, values: np.ndarray) -> None:
        if address % len(values) or not 0 <= address <= len(self.bytes) - len(values):
            raise IndexError(f"{len(values)} bytes of shared memory at {address}")
        self.bytes[address : address + len(values)] = values


def run(program: Program, memory: Memory, grid: int, shared: int, eager: bool, seed: int = 0):
    """Every block of a launch along one axis.

    Args:
      program: of :func:`parse`.
      memory: its operands, in the order of its parameters; written in place.
      grid: blocks.
      shared: bytes of shared memory that a block has.
      eager: asynchronous copies happen when they are asked for, else when they are awaited: a
        correct kernel gives the same both ways.
      seed: of the order of warps.
    """
    rng = np.random.default_rng(seed)
    for block in range(grid):
        block_memory = Shared(shared)
        warps = [
            Warp(program, memory, block_memory, block, first, eager)
            for first in range(0, program.threads, LANES)
        ]
        while not all(warp.done for warp in warps):
            for number in rng.permutation(len(warps)):
                warps[number].to_barrier()
            if len({warp.done for warp in warps}) > 1:
                raise RuntimeError("some warps ended, others wait at a barrier")


class Warp:
    """32 threads: those that are furthest behind go on, together."""

    def __init__(
        self, program: Program, memory: Memory, shared: Shared, block: int, first: int, eager: bool
    ) -> None:
        self.program, self.memory, self.shared, self.eager = program, memory, shared, eager
        self.at = np.zeros(LANES, np.int64)
        self.registers: dict[str, np.ndarray] = {}
        self.special = {
            "%tid.x": np.arange(first, first + LANES, dtype=np.uint64),
            "%ctaid.x": np.full(LANES, block, np.uint64),
            "__dynamic_shmem__0": np.zeros(LANES, np.uint64),
        }
        # Copies that were started, and groups of them that were not awaited yet.
        self.asked: list[tuple[int, np.ndarray]] = []
        self.groups: list[list[tuple[int, np.ndarray]]] = []

    @property
    def done(self) -> bool:
        return bool((self.at < 0).all())

    def to_barrier(self) -> None:
        while not self.done:
            here = self.at[self.at >= 0].min()
            instruction = self.program.code[here]
            active = self.at == here
            if instruction.guard is not None:
                name, wanted = instruction.guard
                active = active & (self.registers[name].astype(bool) == wanted)
            self.at[self.at == here] += 1
            if not active.any():
                continue
            if instruction.words[0] == "bar":
                if not active.all():
                    raise RuntimeError("a barrier that not all threads of a warp reach together")
                return
            self._step(instruction, active)

    def _step(self, instruction: Instruction, active: np.ndarray) -> None:
        words, operands = instruction.words, instruction.operands
        kind = words[0]
        method = getattr(self, f"_{kind}", None)
        if kind == "bra":
            self.at[active] = self.program.labels[operands[-1]]
        elif kind == "ret":
            self.at[active] = -1
        elif method is not None:
            method(words, operands, active)
        elif kind in _BINARY:
            self._set(operands[0], _BINARY[kind](*self._both(words, operands[1:3])), words, active)
        else:
            raise NotImplementedError(".".join(words))

    # Registers hold bits in 64; what is wider than its type is cut where it is written.

    def _value(self, operand: str, word: str = "u64") -> np.ndarray:
        if operand in self.registers:
            bits = self.registers[operand]
        elif operand in self.special:
            bits = self.special[operand]
        else:
            bits = np.full(LANES, _number(operand), np.uint64)
        if word == "pred":
            return bits.astype(bool)
        width = int(word[1:])
        bits = bits & np.uint64(2**width - 1)
        if word[0] == "s" and width < 64:
            sign = np.uint64(1 << (width - 1))
            return ((bits ^ sign) - sign).view(np.int64)
        return bits.view(_BIT.get(word[0], np.uint64))

    def _both(self, words: tuple[str, ...], operands: tuple[str, ...]) -> list[np.ndarray]:
        return [self._value(operand, words[-1]) for operand in operands]

    def _set(self, name: str, values: Any, words: tuple[str, ...], active: np.ndarray) -> None:
        word = words[-1]
        bits = np.asarray(values)
        bits = bits.astype(np.uint64) if bits.dtype.kind in "bu" else bits.astype(np.int64)
        bits = bits.view(np.uint64)
        if word != "pred":
            bits = bits & np.uint64(2 ** int(word[1:]) - 1)
        old = self.registers.get(name, np.zeros(LANES, np.uint64))
        self.registers[name] = np.where(active, bits, old)

    def _address(self, operand: str) -> np.ndarray:
        base, _, offset = operand.strip("[]").partition("+")
        return self._value(base).view(np.int64) + int(offset or 0)

    def _mov(self, words, operands, active):
        if operands[1].startswith("{"):  # two halves
            low, high = (self._value(name.strip(), "b16") for name in _names(operands[1]))
            self._set(operands[0], low | (high << np.uint64(16)), words, active)
            return
        self._set(operands[0], self._value(operands[1], words[-1]), words, active)

    def _mul(self, words, operands, active):
        a, b = self._both(words, operands[1:3])
        width = int(words[-1][1:])
        product = a.astype(np.int64) * b.astype(np.int64) if words[-1][0] == "s" else a * b
        if words[1] == "wide":
            words = (f"{words[-1][0]}{2 * width}",)
        elif words[1] == "hi":
            product = product >> type(product[0])(width)
        self._set(operands[0], product, words, active)

    def _mad(self, words, operands, active):
        if words[1] not in ("lo", "wide"):
            raise NotImplementedError(".".join(words))
        a, b = self._both(words, operands[1:3])
        if words[1] == "wide":
            words = (f"{words[-1][0]}{2 * int(words[-1][1:])}",)
        self._set(operands[0], a * b + self._value(operands[3], words[-1]), words, active)

    def _div(self, words, operands, active):
        a, b = self._both(words, operands[1:3])
        b = np.where(active, b, 1)
        if (a[active].astype(np.int64) < 0).any():
            raise NotImplementedError("a division of a negative number")
        self._set(operands[0], a // b, words, active)

    def _rem(self, words, operands, active):
        a, b = self._both(words, operands[1:3])
        b = np.where(active, b, 1)
        if (a[active].astype(np.int64) < 0).any():
            raise NotImplementedError("the rest of a negative number")
        self._set(operands[0], a % b, words, active)

    def _neg(self, words, operands, active):
        self._set(operands[0], -self._value(operands[1], words[-1]), words, active)

    def _not(self, words, operands, active):
        value = self._value(operands[1], words[-1])
        self._set(operands[0], ~value, words, active)

    def _shl(self, words, operands, active):
        by = self._value(operands[2], "u32")
        self._set(operands[0], self._value(operands[1], words[-1]) << by, words, active)

    def _shr(self, words, operands, active):
        value = self._value(operands[1], words[-1])
        by = self._value(operands[2], "u32").astype(value.dtype)
        self._set(operands[0], value >> by, words, active)

    def _selp(self, words, operands, active):
        a, b = self._both(words, operands[1:3])
        self._set(operands[0], np.where(self._value(operands[3], "pred"), a, b), words, active)

    def _setp(self, words, operands, active):
        if len(words) != 3:
            raise NotImplementedError(".".join(words))
        a, b = self._both(words, operands[1:3])
        self._set(operands[0], _COMPARE[words[1]](a, b), ("pred",), active)

    def _cvt(self, words, operands, active):
        target, source = words[-2], words[-1]
        half = _HALVES.get(target.removesuffix("x2"))
        if half is not None and words[1] == "rn" and source == "f32":
            bits = []
            for name in operands[1:]:
                value = self._value(name, "b32").astype(np.uint32).view(np.float32)
                with np.errstate(invalid="ignore", over="ignore"):
                    bits.append(value.astype(half).view(np.uint16).astype(np.uint64))
            # Of two numbers the first becomes the upper half.
            joined = bits[0] if len(bits) == 1 else bits[0] << np.uint64(16) | bits[1]
            self._set(operands[0], joined, (f"b{16 * len(bits)}",), active)
            return
        if target[0] not in "us" or source[0] not in "us" or len(words) != 3:
            raise NotImplementedError(".".join(words))
        self._set(operands[0], self._value(operands[1], source), (target,), active)

    def _cvta(self, words, operands, active):
        self._set(operands[0], self._value(operands[1]), ("b64",), active)

    def _shfl(self, words, operands, active):
        if words[1:3] != ("sync", "idx") or not active.all():
            raise NotImplementedError(".".join(words))
        lane = self._value(operands[2], "u32") & np.uint64(31)
        self._set(operands[0], self._value(operands[1], "b32")[lane], words, active)

    def _ld(self, words, operands, active):
        if words[1] == "param":
            number = self.program.parameters.index(operands[1].strip("[]"))
            self._set(operands[0], np.full(LANES, self.memory.bases[number], np.uint64),
                      words, active)  # fmt: skip
            return
        if words[1] not in ("global", "shared") or operands[0].startswith("{"):
            raise NotImplementedError(".".join(words))
        place = self.memory if words[1] == "global" else self.shared
        word, addresses = words[-1], self._address(operands[1])
        size = int(word[1:]) // 8
        values = np.zeros(LANES, np.int64)
        for lane in np.flatnonzero(active):
            found = place.read(int(addresses[lane]), size)
            values[lane] = int.from_bytes(found.tobytes(), "little", signed=word[0] == "s")
        # A register may be wider than what is loaded: signs are kept, all else is filled with 0.
        self._set(operands[0], values, ("b64",), active)

    def _st(self, words, operands, active):
        word, addresses = words[-1], self._address(operands[0])
        place = {"global": self.memory, "shared": self.shared}[words[1]]
        kind = np.dtype(f"u{int(word[1:]) // 8}")
        names = _names(operands[1]) if operands[1].startswith("{") else [operands[1]]
        values = np.stack([self._value(name, f"b{word[1:]}").astype(kind) for name in names], 1)
        for lane in np.flatnonzero(active):
            place.write(int(addresses[lane]), values[lane].view(np.uint8))

    def _cp(self, words, operands, active):
        if words[1:3] == ("async", "commit_group"):
            self.groups.append(self.asked)
            self.asked = []
        elif words[1:3] == ("async", "wait_group"):
            left = int(operands[0])
            while len(self.groups) > left:
                for address, values in self.groups.pop(0):
                    self.shared.write(address, values)
        elif words[:4] == ("cp", "async", "cg", "shared"):
            self._copy(operands, active)
        else:
            raise NotImplementedError(".".join(words))

    def _copy(self, operands, active):
        to, source = self._address(operands[0]), self._address(operands[1])
        size = int(operands[2])
        given = self._value(operands[3], "u32") if len(operands) > 3 else np.full(LANES, size)
        for lane in np.flatnonzero(active):
            values = np.zeros(size, np.uint8)
            if given[lane]:
                values[: int(given[lane])] = self.memory.read(int(source[lane]), int(given[lane]))
            if self.eager:
                self.shared.write(int(to[lane]), values)
            else:
                self.asked.append((int(to[lane]), values))

    def _ldmatrix(self, words, operands, active):
        if words[:5] != ("ldmatrix", "sync", "aligned", "m8n8", "x4") or not active.all():
            raise NotImplementedError(".".join(words))
        addresses = self._address(operands[1])
        rows = np.stack([self.shared.read(int(a), 16).view(np.uint16) for a in addresses])
        lane = np.arange(LANES)
        for matrix, name in enumerate(_names(operands[0])):
            part = rows[8 * matrix : 8 * matrix + 8]
            part = part.T if "trans" in words else part
            pair = part[lane // 4, 2 * (lane % 4)], part[lane // 4, 2 * (lane % 4) + 1]
            bits = pair[0].astype(np.uint64) | (pair[1].astype(np.uint64) << np.uint64(16))
            self._set(name, bits, ("b32",), active)

    def _mma(self, words, operands, active):
        if words[:4] != ("mma", "sync", "aligned", "m16n8k16") or not active.all():
            raise NotImplementedError(".".join(words))
        if words[4:] not in (("row", "col", "f32", t, t, "f32") for t in _HALVES):
            raise NotImplementedError(".".join(words))
        half = _HALVES[words[7]]
        lane = np.arange(LANES)
        group, two = lane // 4, 2 * (lane % 4)
        a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
        for number, name in enumerate(_names(operands[1])):
            row, column = group + 8 * (number % 2), two + 8 * (number // 2)
            a[row, column], a[row, column + 1] = self._pair(name, half)
        for number, name in enumerate(_names(operands[2])):
            b[two + 8 * number, group], b[two + 8 * number + 1, group] = self._pair(name, half)
        for number, name in enumerate(_names(operands[3])):
            values = self._value(name, "b32").astype(np.uint32).view(np.float32)
            c[group + 8 * (number // 2), two + number % 2] = values
        with np.errstate(invalid="ignore", over="ignore"):
            total = (a @ b + c).astype(np.float32)
        for number, name in enumerate(_names(operands[0])):
            part = total[group + 8 * (number // 2), two + number % 2]
            self._set(name, part.view(np.uint32), ("b32",), active)

    def _pair(self, name: str, half: Any) -> tuple[np.ndarray, np.ndarray]:
        bits = self._value(name, "b32")
        low, high = bits & np.uint64(0xFFFF), bits >> np.uint64(16)
        return tuple(part.astype(np.uint16).view(half).astype(float) for part in (low, high))


def _number(text: str) -> int:
    """The bits of a constant; those of floats are written in hexadecimal."""
    number = int(text[2:], 16) if text[:2] in ("0f", "0F") else int(text.removesuffix("U"), 0)
    return number & (2**64 - 1)


def _names(operand: str) -> list[str]:
    return [name.strip() for name in operand.strip("{}").split(",")]
