"""Count a window kernel's cycles a second time: run the scalar core of its listing.

    python benchmarks/tpu/second_count.py v5e v6e

voxax.predict reads loops off a listing. This script does not: it executes the bundles one after the
other, with the registers and the scalar memory that the core has, follows each branch, and counts.
The scalars that the kernel is given are those of a map with one visit of each group of tiles. It
shares no code with voxax.predict, whose count it prints beside its own. Cycles are those of the
schedule, without waits for copies. Needs libtpu.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

ROWS, VISITS = 100_352, 64
LISTING = "packed-bundles-post-ra"
SLOTS = {"v4": 1}
"""Bundles that are executed behind a branch before it is taken; 4 on the others."""
_NAME = re.compile(r"%[sp]\d+_([sp]\d+)$")
_INSTRUCTION = re.compile(r"(%\w+) = (\S+) ?(.*)")
_ADDRESS = re.compile(r"\[smem:\[#(\w+)(?: \+ \$?(%?\w+))?\]\](?: \((!?)(%\w+)\))?")
_MASK, _SIGN = (1 << 32) - 1, 1 << 31
_TESTS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
_NUMBERS = {
    "sadd": lambda a, b: a + b, "ssub": lambda a, b: a - b, "smul": lambda a, b: a * b,
    "sand": lambda a, b: a & b, "sor": lambda a, b: a | b, "sxor": lambda a, b: a ^ b,
    "sshll": lambda a, b: a << b, "sshra": lambda a, b: a >> b,
    "sshrl": lambda a, b: (a & _MASK) >> b, "smin": lambda a, b: min(a & _MASK, b & _MASK),
    "smax": lambda a, b: max(a & _MASK, b & _MASK), "smulhi": lambda a, b: (a * b) >> 32,
}  # fmt: skip
_TRUTHS = {
    "pand": lambda a, b: a and b, "pnand": lambda a, b: not (a and b),
    "por": lambda a, b: a or b, "pnor": lambda a, b: not (a or b),
}  # fmt: skip


class Core:
    """Registers and scalar memory, and what the bundles do to them."""

    def __init__(self, text: str, given: list[list[int]], steps: int, slots: int) -> None:
        self.slots, self.cycles = slots, 0
        self.late: list[tuple[int, str, Any]] = []
        self.registers: dict[str, Any] = {}
        self.memory: dict[tuple[str, int], Any] = {}
        pattern = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:[ >]*\{(.*)")
        found = [m[1] for line in text.splitlines() if (m := pattern.match(line))]
        self.bundles = [self._split(line) for line in found]
        self.latency = self._latency()
        arrays = re.findall(r"dma\.\w+_to_smem .*?/\*smem=\*/(%\w+)", text)
        places = [re.search(rf"{name} = smov \[#(\w+)\]", text) for name in arrays]
        for place, numbers in zip(places, given, strict=True):
            assert place is not None
            self.memory |= {(place[1], at): number for at, number in enumerate(numbers)}
        for name in re.findall(r"(%\w+) = inlined_call_operand\.<no memory space>", text):
            self.registers[_NAME.match(name)[1]] = steps  # type: ignore[index]

    def _latency(self) -> int:
        """Cycles until a load from scalar memory is there: the least that this listing leaves."""
        rows = {
            name: row for row, b in enumerate(self.bundles) for name, kind, _ in b if kind == "sld"
        }
        uses = (
            row - rows[word]
            for row, bundle in enumerate(self.bundles)
            for *_, rest in bundle
            for word in re.findall(r"%\w+", rest)
            if row > rows.get(word, row)
        )
        return min(uses, default=1)

    @staticmethod
    def _split(line: str) -> list[tuple[str, str, str]]:
        line = re.sub(r"/\*.*?\*/", "", line)
        parts = [part.strip().rstrip("}").strip() for part in line.split(";;")]
        found = [_INSTRUCTION.match(part) for part in parts]
        return [(m[1], m[2], m[3].strip()) for m in found if m and not m[2].startswith("inlined")]

    def read(self, word: str) -> Any:
        """A register's value, or a number; None where it is not a number of this core."""
        if re.fullmatch(r"-?\d+", word):
            return (int(word) + _SIGN) % (1 << 32) - _SIGN
        name = _NAME.match(word)
        return self.registers.get(name[1]) if name else None

    def run(self) -> int:
        """Execute all bundles, and return their number."""
        at, turn = 0, None
        while at < len(self.bundles):
            writes, target = [], None
            for name, kind, rest in self.bundles[at]:
                if kind == "sbr.rel":
                    target = self._branch(rest) if target is None else target
                else:
                    writes += self._written(name, kind, rest)
            for where, key, value in writes:
                where[key] = value
            self.cycles += 1
            # Until a load arrives, its register may serve for something else.
            for due in [load for load in self.late if load[0] <= self.cycles]:
                self.late.remove(due)
                self.registers[due[1]] = due[2]
            at += 1
            if target is not None:
                turn = [self.slots, target]
            elif turn is not None:
                turn[0] -= 1
            if turn is not None and turn[0] == 0:
                at, turn = turn[1], None
        return self.cycles

    def _branch(self, rest: str) -> int | None:
        guard = re.match(r"(?:\((!?)(%\w+)\) )?target bundleno = (\d+)", rest)
        assert guard is not None
        return int(guard[3]) if self._holds(guard[1], guard[2]) else None

    def _holds(self, negated: str | None, predicate: str | None) -> bool:
        if not predicate:
            return True
        value = self.read(predicate)
        if value is None:
            raise ValueError(f"{predicate} does not depend on scalars that are known")
        return value != bool(negated)

    def _written(self, name: str, kind: str, rest: str) -> list[tuple[Any, Any, Any]]:
        """What an instruction writes: a register, or a place of memory."""
        register = _NAME.match(name)
        address = _ADDRESS.match(rest) if kind in ("sld", "sst") else None
        if address:
            offset = address[2] or "0"
            place = self.read(str(int(offset, 0)) if offset[0].isdigit() else offset)
            if address[4] and not self._holds(address[3], address[4]):
                return []
            key = address[1], place
            if kind == "sst":
                return [(self.memory, key, self.read(rest[address.end() :].strip()))]
            assert register is not None
            self.late.append((self.cycles + self.latency, register[1], self.memory.get(key)))
            return []
        if register is None or kind == "sphi":
            return []
        guard = re.match(r"\((!?)(%\w+)(, %\w+)?\),? ?", rest)
        words = [w.strip() for w in (rest[guard.end() :] if guard else rest).split(",")]
        if guard and kind == "smov" and not self._holds(guard[1], guard[2]):
            return []
        return [(self.registers, register[1], self._value(kind, words))]

    def _value(self, kind: str, words: list[str]) -> Any:
        values = [self.read(word) for word in words]
        base, _, more = kind.partition(".")
        if base == "smov":
            return values[0]
        if base == "scalar_select":
            return None if values[0] is None else values[1] if values[0] else values[2]
        if None in values:
            return None
        if base == "pneg":
            return not values[0]
        if base == "scmp":
            return _TESTS[more.partition(".")[0]](*values)
        if base in _TRUTHS:
            return _TRUTHS[base](*values)
        if base in _NUMBERS:
            return (_NUMBERS[base](*values) + _SIGN) % (1 << 32) - _SIGN
        return None


def scalars(visits: int, windows: int = 128) -> list[list[int]]:
    """Those of a map whose groups of tiles are visited once: see ``Visits`` in tpu_kernel.py.

    ``windows``: of a visit, at most; where they begin changes no cycle.
    """
    groups = list(range(visits))
    return [groups, groups, [0] * (windows * visits), [1] * (windows * visits), [0, visits]]


def compiled(chip: str, folder: str) -> None:
    """Compile the forward kernel; libtpu writes its listing into a folder."""
    import jax
    from benchmarks.tpu import program

    from voxax import _compat

    device = _compat.tpu_topology(program.BY_CHIP[chip])[0]
    place = jax.sharding.SingleDeviceSharding(device)
    run, *shapes = program.product(chip, rows=ROWS)
    del folder
    jax.jit(run, in_shardings=place, out_shardings=place).lower(*shapes).compile()


def count(chip: str, visits: int) -> int:
    """Return the cycles of the kernel for a map of so many visits."""
    with tempfile.TemporaryDirectory(prefix="voxax-second-count-") as folder:
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        subprocess.run(
            [sys.executable, __file__, "--compile", folder, chip],
            check=True,
            env=os.environ
            | {
                "JAX_PLATFORMS": "cpu",
                "TPU_SKIP_MDS_QUERY": "1",
                "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
                "LIBTPU_INIT_ARGS": f"{flags} --xla_jf_dump_llo_pass_label_regex={LISTING}",
            },
        )
        names = Path(folder).glob(f"*-product.*-{LISTING}.txt")
        (path,) = (name for name in names if "schedule-analysis" not in name.name)
        text = path.read_text()
    # A step selects for a visit and multiplies for the one before.
    return Core(text, scalars(visits), visits + 1, SLOTS.get(chip, 4)).run()


def main() -> None:
    from benchmarks import report

    parser = report.options(__doc__, out=False)
    parser.add_argument("chips", nargs="+")
    parser.add_argument("--visits", type=int, default=VISITS)
    parser.add_argument("--compile", metavar="FOLDER", help="compile alone; for this script")
    arguments = parser.parse_args()
    if arguments.compile:
        compiled(arguments.chips[0], arguments.compile)
        return
    import voxax.predict

    for chip in arguments.chips:
        mine = count(chip, arguments.visits)
        program = voxax.predict.count(chip, "benchmarks.tpu.program:product", rows=ROWS)
        other = program.kernel().cost(program.chip, arguments.visits + 1).cycles
        print(f"{chip}: {mine:,} cycles, by voxax.predict {other:,.0f}, {other / mine - 1:+.2%}")


if __name__ == "__main__":
    main()
