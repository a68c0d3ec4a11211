"""An interpreter of PTX, for tests of kernels without a GPU: one block after another.

Knows the instructions that voxax' own kernels become, in CUTLASS and for an A100 in Triton, and
raises for any other. Numbers are exact
but for the order of a tensor core's sums. It is stricter than a GPU: reads and writes outside of
an operand raise, shared memory that nothing has written is NaN, and warps run one after another,
in a random order, each as far as the next barrier.

Source: NVIDIA's PTX ISA, version 9.0, for the instructions and the layout of their fragments.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

LANES = 32
_ALL = np.ones(LANES, bool)
_MASKS = {width: np.uint64(2**width - 1) for width in (8, 16, 32, 64)}
_HALVES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_BINARY = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or,
           "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum}  # fmt: skip
# A fused product and sum is rounded once, which float64 does to all but a few last digits.
_FLOAT = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
          "fma": lambda a, b, c: (a.astype(float) * b + c).astype(np.float32)}  # fmt: skip
# Of these only the forms that are rounded to the nearest.
_ROUNDED = {"div": np.divide, "sqrt": np.sqrt}
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
    text = text.split("\t.section")[0]
    text = re.sub(r"^\s*\.(file|loc)\b.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[\s*([^\]]+?)\s*\]", lambda found: f"[{found[1].replace(' ', '')}]", text)
    (name,) = re.findall(r"\.entry\s+([\w$]+)", text)
    header, body = text[text.index(f".entry {name}") :].split("{", 1)
    threads = int(re.findall(r"\.reqntid\s+(\d+)", header)[0])
    parameters = tuple(re.findall(r"\.param\s[^,)]*?([\w$]+)\s*(?:\[\d+\])?\s*[,)]", header + ")"))
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    body = re.sub(r"//.*", "", body)
    # Scopes inside of a kernel: those of inline assembly declare nothing twice.
    body = re.sub(r"^\s*[{}]\s*$", "", body, flags=re.MULTILINE)
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
    """Operands in a GPU's global memory; every address outside of them raises.

    Args:
      arrays: the operands, of which it keeps copies.
      bases: their addresses; apart from each other where None.
    """

    def __init__(self, arrays: list[np.ndarray], bases: Sequence[int] | None = None) -> None:
        self._bytes = [np.ascontiguousarray(a).reshape(-1).view(np.uint8).copy() for a in arrays]
        if bases is None:
            pages = np.cumsum([0] + [a.nbytes // 4096 + 2 for a in arrays])
            bases = [(1 << 32) + 4096 * int(page) for page in pages[:-1]]
        self.bases = list(bases)
        self._order = np.argsort(self.bases)
        self._sorted = np.asarray(self.bases, np.int64)[self._order]

    def array(self, number: int, like: np.ndarray) -> np.ndarray:
        return self._bytes[number].view(like.dtype).reshape(like.shape)

    def _place(self, address: int, size: int) -> tuple[np.ndarray, int]:
        place = int(np.searchsorted(self._sorted, address, "right")) - 1
        if place < 0:
            raise IndexError(f"address {address} is before every operand")
        number = int(self._order[place])
        start = address - self.bases[number]
        if start + size > len(self._bytes[number]):
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


def run(
    program: Program,
    memory: Memory,
    grid: int,
    shared: int,
    eager: bool,
    seed: int = 0,
    arguments: Sequence[int] | None = None,
) -> None:
    """Every block of a launch along one axis.

    Args:
      program: of :func:`parse`.
      memory: its operands, in the order of its parameters; written in place.
      grid: blocks.
      shared: bytes of shared memory that a block has.
      eager: asynchronous copies happen when they are asked for, else when they are awaited: a
        correct kernel gives the same both ways.
      seed: of the order of warps.
      arguments: the parameters' bits; the operands' addresses where None.
    """
    rng = np.random.default_rng(seed)
    values = memory.bases if arguments is None else arguments
    for block in range(grid):
        block_memory = Shared(shared)
        warps = [
            Warp(program, memory, block_memory, block, first, eager, values)
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
        self,
        program: Program,
        memory: Memory,
        shared: Shared,
        block: int,
        first: int,
        eager: bool,
        arguments: Sequence[int],
    ) -> None:
        self.program, self.memory, self.shared, self.eager = program, memory, shared, eager
        self.arguments = arguments
        self.at = np.zeros(LANES, np.int64)
        self.registers: dict[str, np.ndarray] = {}
        self.special = {
            "%tid.x": np.arange(first, first + LANES, dtype=np.uint64),
            "%ctaid.x": np.full(LANES, block, np.uint64),
            # CUTLASS' and Triton's names of shared memory.
            "__dynamic_shmem__0": np.zeros(LANES, np.uint64),
            "global_smem": np.zeros(LANES, np.uint64),
        }
        # Copies that were started, and groups of them that were not awaited yet.
        self.asked: list[tuple[int, np.ndarray]] = []
        self.groups: list[list[tuple[int, np.ndarray]]] = []

    @property
    def done(self) -> bool:
        return bool((self.at < 0).all())

    def to_barrier(self) -> None:
        while not self.done:
            here = int(self.at[self.at >= 0].min())
            active = self.at == here
            if active.all():
                # Together: one number says where all threads are, until they part.
                if self._together(here):
                    return
                continue
            instruction = self.program.code[here]
            self.at[active] += 1
            active = self._guarded(instruction, active)
            if not active.any():
                continue
            if instruction.words[0] == "bar":
                # The threads of a warp that read what others of it wrote are in step here anyway.
                if instruction.words[1] == "warp":
                    continue
                raise RuntimeError("a barrier that not all threads of a warp reach together")
            self._step(instruction, active)

    def _together(self, here: int) -> bool:
        """Go on while all threads do the same; True at a barrier."""
        code = self.program.code
        while True:
            instruction = code[here]
            kind = instruction.words[0]
            active = self._guarded(instruction, _ALL)
            here += 1
            if active is not _ALL and not active.all():
                if kind in ("bra", "ret", "bar") and active.any():
                    self.at[:] = here
                    if kind == "bar":
                        raise RuntimeError("a barrier that not all threads reach together")
                    self._step(instruction, active)
                    return False
                if active.any():
                    self._step(instruction, active)
            elif kind == "bra":
                here = self.program.labels[instruction.operands[-1]]
            elif kind == "ret":
                self.at[:] = -1
                return False
            elif kind == "bar":
                if instruction.words[1] != "warp":
                    self.at[:] = here
                    return True
            else:
                self._step(instruction, _ALL)

    def _guarded(self, instruction: Instruction, active: np.ndarray) -> np.ndarray:
        if instruction.guard is None:
            return active
        name, wanted = instruction.guard
        return active & (self.registers[name].astype(bool) == wanted)

    def _step(self, instruction: Instruction, active: np.ndarray) -> None:
        words, operands = instruction.words, instruction.operands
        kind = words[0]
        method = getattr(self, f"_{kind}", None)
        if kind == "bra":
            self.at[active] = self.program.labels[operands[-1]]
        elif kind == "ret":
            self.at[active] = -1
        elif words[-1] == "f32" and (kind in _FLOAT or words[:2] in ((k, "rn") for k in _ROUNDED)):
            values = [self._float(name) for name in operands[1:]]
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                result = {**_FLOAT, **_ROUNDED}[kind](*values)
            self._set_float(operands[0], result, active)
        elif words[-1][0] == "f" and (kind in _BINARY or kind in ("mul", "div", "neg")):
            raise NotImplementedError(".".join(words))
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
            bits = _constant(operand)
        if word == "pred":
            return bits.astype(bool)
        width = int(word[1:])
        if width < 64:
            bits = bits & _MASKS[width]
        if word[0] == "s" and width < 64:
            sign = np.uint64(1 << (width - 1))
            return ((bits ^ sign) - sign).view(np.int64)
        return bits.view(_BIT.get(word[0], np.uint64))

    def _both(self, words: tuple[str, ...], operands: tuple[str, ...]) -> list[np.ndarray]:
        return [self._value(operand, words[-1]) for operand in operands]

    def _set(self, name: str, values: Any, words: tuple[str, ...], active: np.ndarray) -> None:
        word = words[-1]
        bits = np.asarray(values)
        if bits.dtype != np.uint64:
            bits = bits.astype(np.uint64 if bits.dtype.kind in "bu" else np.int64).view(np.uint64)
        if word not in ("pred", "b64", "u64", "s64"):
            bits = bits & _MASKS[int(word[1:])]
        if active is not _ALL:
            bits = np.where(active, bits, self.registers.get(name, _constant("0")))
        self.registers[name] = bits

    def _float(self, name: str) -> np.ndarray:
        return self._value(name, "b32").astype(np.uint32).view(np.float32)

    def _set_float(self, name: str, values: np.ndarray, active: np.ndarray) -> None:
        self._set(name, values.astype(np.float32).view(np.uint32), ("b32",), active)

    def _address(self, operand: str) -> np.ndarray:
        base, _, offset = operand.strip("[]").partition("+")
        return self._value(base).view(np.int64) + int(offset or 0)

    def _mov(self, words, operands, active):
        if operands[1].startswith("{"):
            names = _names(operands[1])
            width = int(words[-1][1:]) // len(names)
            bits = np.zeros(LANES, np.uint64)
            for place, name in enumerate(names):
                part = self._value(name, f"b{width}").view(np.uint64)
                bits = bits | part << np.uint64(width * place)
            self._set(operands[0], bits, words, active)
            return
        if operands[0].startswith("{"):
            names = _names(operands[0])
            width = int(words[-1][1:]) // len(names)
            bits = self._value(operands[1], words[-1]).view(np.uint64)
            for place, name in enumerate(names):
                if name != "_":
                    self._set(name, bits >> np.uint64(width * place), (f"b{width}",), active)
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

    def _bfe(self, words, operands, active):
        value = self._value(operands[1], "b32")
        start, length = (self._value(name, "u32") for name in operands[2:4])
        value = (value >> start) & ((np.uint64(1) << length) - np.uint64(1))
        if words[-1][0] == "s":
            sign = np.uint64(1) << (length - np.uint64(1))
            value = ((value ^ sign) - sign).view(np.int64)
        self._set(operands[0], value, words, active)

    def _selp(self, words, operands, active):
        a, b = self._both(words, operands[1:3])
        self._set(operands[0], np.where(self._value(operands[3], "pred"), a, b), words, active)

    def _setp(self, words, operands, active):
        if len(words) != 3:
            raise NotImplementedError(".".join(words))
        if words[2] == "f32":
            a, b = map(self._float, operands[1:3])
            if words[1] == "num":
                self._set(operands[0], ~(np.isnan(a) | np.isnan(b)), ("pred",), active)
                return
        else:
            a, b = self._both(words, operands[1:3])
        self._set(operands[0], _COMPARE[words[1]](a, b), ("pred",), active)

    def _cvt(self, words, operands, active):
        target, source = words[-2], words[-1]
        half = _HALVES.get(target.removesuffix("x2"))
        if half is not None and words[1] == "rn" and source == "f32":
            bits = []
            for name in operands[1:]:
                value = self._float(name)
                with np.errstate(invalid="ignore", over="ignore"):
                    bits.append(value.astype(half).view(np.uint16).astype(np.uint64))
            # Of two numbers the first becomes the upper half.
            joined = bits[0] if len(bits) == 1 else bits[0] << np.uint64(16) | bits[1]
            self._set(operands[0], joined, (f"b{16 * len(bits)}",), active)
            return
        if words[1:] == ("rna", "tf32", "f32"):  # to the nearest, ties away from zero
            bits = self._value(operands[1], "b32") + np.uint64(0x1000)
            self._set(operands[0], bits & np.uint64(0xFFFFE000), ("b32",), active)
            return
        if target == "f32" and source in _HALVES:
            value = self._value(operands[1], "b16").astype(np.uint16).view(_HALVES[source])
            self._set_float(operands[0], value, active)
            return
        if target[0] not in "us" or source[0] not in "us" or len(words) != 3:
            raise NotImplementedError(".".join(words))
        self._set(operands[0], self._value(operands[1], source), (target,), active)

    def _cvta(self, words, operands, active):
        self._set(operands[0], self._value(operands[1]), ("b64",), active)

    def _shfl(self, words, operands, active):
        if words[1:3] not in (("sync", "idx"), ("sync", "bfly")) or not active.all():
            raise NotImplementedError(".".join(words))
        lane = self._value(operands[2], "u32") & np.uint64(31)
        if words[2] == "bfly":
            lane = lane ^ np.arange(LANES, dtype=np.uint64)
        self._set(operands[0], self._value(operands[1], "b32")[lane], words, active)

    def _ld(self, words, operands, active):
        if words[1] == "param":
            number = self.program.parameters.index(operands[1].strip("[]"))
            self._set(operands[0], np.full(LANES, self.arguments[number], np.uint64),
                      words, active)  # fmt: skip
            return
        if words[1] not in ("global", "shared"):
            raise NotImplementedError(".".join(words))
        place = self.memory if words[1] == "global" else self.shared
        word, addresses = words[-1], self._address(operands[1])
        names = _names(operands[0])
        kind = np.dtype(f"{'i' if word[0] == 's' else 'u'}{int(word[1:]) // 8}")
        values = np.zeros((LANES, len(names)), kind)
        for lane in np.flatnonzero(active):
            found = place.read(int(addresses[lane]), kind.itemsize * len(names))
            values[lane] = found.view(kind)
        # A register may be wider than what is loaded: signs are kept, all else is filled with 0.
        for name, column in zip(names, values.T, strict=True):
            self._set(name, column.astype(np.int64 if word[0] == "s" else np.uint64), ("b64",),
                      active)  # fmt: skip

    def _st(self, words, operands, active):
        word, addresses = words[-1], self._address(operands[0])
        place = {"global": self.memory, "shared": self.shared}[words[1]]
        kind = np.dtype(f"u{int(word[1:]) // 8}")
        names = _names(operands[1])
        values = np.stack([self._value(name, f"b{word[1:]}").astype(kind) for name in names], 1)
        for lane in np.flatnonzero(active):
            place.write(int(addresses[lane]), values[lane].view(np.uint8))

    def _cp(self, words, operands, active):
        if words[1:3] == ("async", "commit_group"):
            self.groups.append(self.asked)
            self.asked = []
        elif words[1:3] == ("async", "wait_group"):
            left = int(operands[0], 0)
            while len(self.groups) > left:
                for address, values in self.groups.pop(0):
                    self.shared.write(address, values)
        elif words[:2] == ("cp", "async") and words[2] in ("ca", "cg") and words[3] == "shared":
            self._copy(operands, active)
        else:
            raise NotImplementedError(".".join(words))

    def _copy(self, operands, active):
        to, source = self._address(operands[0]), self._address(operands[1])
        size = int(operands[2], 0)
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
        if words[:4] != ("ldmatrix", "sync", "aligned", "m8n8") or not active.all():
            raise NotImplementedError(".".join(words))
        # The first 8 threads have the addresses of the first matrix's rows.
        addresses = self._address(operands[1])[: 8 * int(words[4][1:])]
        rows = np.stack([self.shared.read(int(a), 16).view(np.uint16) for a in addresses])
        lane = np.arange(LANES)
        for matrix, name in enumerate(_names(operands[0])):
            part = rows[8 * matrix : 8 * matrix + 8]
            part = part.T if "trans" in words else part
            pair = part[lane // 4, 2 * (lane % 4)], part[lane // 4, 2 * (lane % 4) + 1]
            bits = pair[0].astype(np.uint64) | (pair[1].astype(np.uint64) << np.uint64(16))
            self._set(name, bits, ("b32",), active)

    def _mma(self, words, operands, active):
        if words[:3] != ("mma", "sync", "aligned") or not active.all():
            raise NotImplementedError(".".join(words))
        if words[3:] == ("m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32"):
            a, b = self._tf32_operands(operands)
        elif words[3:] in (("m16n8k16", "row", "col", "f32", t, t, "f32") for t in _HALVES):
            a, b = self._half_operands(operands, _HALVES[words[7]])
        else:
            raise NotImplementedError(".".join(words))
        lane = np.arange(LANES)
        group, two = lane // 4, 2 * (lane % 4)
        c = np.zeros((16, 8))
        for number, name in enumerate(_names(operands[3])):
            c[group + 8 * (number // 2), two + number % 2] = self._float(name)
        with np.errstate(invalid="ignore", over="ignore"):
            total = (a @ b + c).astype(np.float32)
        for number, name in enumerate(_names(operands[0])):
            part = total[group + 8 * (number // 2), two + number % 2]
            self._set_float(name, part, active)

    def _half_operands(self, operands, half):
        lane = np.arange(LANES)
        group, two = lane // 4, 2 * (lane % 4)
        a, b = np.zeros((16, 16)), np.zeros((16, 8))
        for number, name in enumerate(_names(operands[1])):
            row, column = group + 8 * (number % 2), two + 8 * (number // 2)
            a[row, column], a[row, column + 1] = self._pair(name, half)
        for number, name in enumerate(_names(operands[2])):
            b[two + 8 * number, group], b[two + 8 * number + 1, group] = self._pair(name, half)
        return a, b

    def _tf32_operands(self, operands):
        lane = np.arange(LANES)
        group, one = lane // 4, lane % 4
        a, b = np.zeros((16, 8)), np.zeros((8, 8))
        for number, name in enumerate(_names(operands[1])):
            a[group + 8 * (number % 2), one + 4 * (number // 2)] = self._tf32(name)
        for number, name in enumerate(_names(operands[2])):
            b[one + 4 * number, group] = self._tf32(name)
        return a, b

    def _tf32(self, name: str) -> np.ndarray:
        """A number whose last 13 bits the tensor core does not read."""
        bits = self._value(name, "b32").astype(np.uint32) & np.uint32(0xFFFFE000)
        return bits.view(np.float32).astype(float)

    def _pair(self, name: str, half: Any) -> tuple[np.ndarray, np.ndarray]:
        bits = self._value(name, "b32")
        low, high = bits & np.uint64(0xFFFF), bits >> np.uint64(16)
        return tuple(part.astype(np.uint16).view(half).astype(float) for part in (low, high))


@functools.cache
def _constant(text: str) -> np.ndarray:
    values = np.full(LANES, _number(text), np.uint64)
    values.flags.writeable = False
    return values


def _number(text: str) -> int:
    """The bits of a constant; those of floats are written in hexadecimal."""
    number = int(text[2:], 16) if text[:2] in ("0f", "0F") else int(text.removesuffix("U"), 0)
    return number & (2**64 - 1)


def _names(operand: str) -> list[str]:
    return [name.strip() for name in operand.strip("{}").split(",")]
