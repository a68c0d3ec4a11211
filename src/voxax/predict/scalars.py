"""Evaluate the scalar instructions of a kernel's listing, one pass of a loop after another.

Scalars decide what a pass of a loop does: the loop counts an index and compares it with a constant,
and the result is the predicate of a branch or of a copy. The values of scalars that come from
constants are known without a TPU. A value that is loaded from memory, such as the size of a grid at
run time, is unknown, and so are all values that depend on it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_DEFINITION = re.compile(r"(?:\{|;;)\s+(%[\w]+) = ([^;}]*)")
_STORE = re.compile(r"= sst \[smem:\[(#\w+_spill)\]\] (%\w+)")
_NOTE = re.compile(r"/\*.*?\*/")
_GUARD = re.compile(r"^\((!?)(%\w+)(?:, (%\w+))?\)(?:,? |$)")
# Key of the row where the loop begins, in a dict of known values.
_BEGIN = "begin"
_SIGN, _WORD = 1 << 31, 1 << 32
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
# Comparisons that are true if the first operand is the smaller one, or the greater one.
_BELOW, _ABOVE, _EQUALITY = ("lt", "le"), ("gt", "ge"), ("eq", "ne")
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sadd.s32": lambda a, b: a + b,
    "ssub.s32": lambda a, b: a - b,
    "smul.u32": lambda a, b: a * b,
    "sand.u32": lambda a, b: a & b,
    "sor.u32": lambda a, b: a | b,
    "smin.u32": lambda a, b: min(a % _WORD, b % _WORD),
    "smax.u32": lambda a, b: max(a % _WORD, b % _WORD),
    "sshll.u32": lambda a, b: a << (b & 31),
    "sshrl.u32": lambda a, b: (a % _WORD) >> (b & 31),
    "sshra.s32": lambda a, b: a >> (b & 31),
}
_LOGIC: dict[str, Callable[[bool | None, bool | None], bool | None]] = {
    "pand": lambda a, b: _both(a, b),
    "pnand": lambda a, b: _not(_both(a, b)),
    "por": lambda a, b: _not(_both(_not(a), _not(b))),
    "pnor": lambda a, b: _both(_not(a), _not(b)),
}


class Scalars:
    """Evaluator of the scalar instructions of a listing.

    Args:
      lines: the instruction bundles of the listing, one per line.

    Attributes:
      endless: whether to compare unknown numbers as if they were larger than all known numbers.
        This is for the first passes of a loop whose end is unknown.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self.endless = False
        self._rows: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._stored: dict[str, list[tuple[int, str]]] = {}
        for row, line in enumerate(lines):
            for name, text in _DEFINITION.findall(line):
                self._rows[name], self._texts[name] = row, text
            for place, name in _STORE.findall(line):
                self._stored.setdefault(place, []).append((row, name))

    def text(self, name: str) -> str:
        """Return the instruction that computes the scalar ``name``, without notes; "" if none does.

        Notes are comments of the compiler inside the instruction.
        """
        return _NOTE.sub("", self._texts.get(name, "")).strip()

    def origin(self, name: str) -> str:
        """Follow moves and spills, and return the scalar of which ``name`` is a copy."""
        while True:
            kind, _, rest = self.text(name).partition(" ")
            if kind == "sld" and (stored := self._before(name, self._place(rest))):
                name = stored[1]
            elif moved := re.match(r"smov (%\w+)$", self.text(name)):
                name = moved[1]
            else:
                return name

    def is_noted(self, name: str, note: str) -> bool:
        """Return True if the compiler's notes on a name contain the text ``note``."""
        return note in self._texts.get(name, "")

    def passes(
        self, begin: int, end: int, around: Mapping[str, Any], most: int
    ) -> Iterator[dict[str, Any]]:
        """Yield the known values of scalars in each pass of a loop, from the first pass on.

        Args:
          begin, end: index of the loop's first line in the listing, and index after its last line.
          around: known values outside of the loop, by name.
          most: largest number of passes.
        """
        carried = {}
        for name, row in self._rows.items():
            if row == begin and (text := self.text(name)).startswith("sphi "):
                first, again = text.removeprefix("sphi ").split(",")
                carried[name] = first.strip(), again.strip()
        start = {name: self.value(first, dict(around)) for name, (first, _) in carried.items()}
        stored = {}
        for place, stores in self._stored.items():
            if inside := [name for row, name in stores if begin <= row < end]:
                stored[place] = inside[-1]
                first = [name for row, name in stores if row < begin]
                start[place] = self.value(first[-1], dict(around)) if first else None
        outside = {k: v for k, v in around.items() if not begin <= self._rows.get(k, -1) < end}
        for _ in range(most):
            known = {**outside, **start, _BEGIN: begin}
            yield known
            start = {name: self.value(again, known) for name, (_, again) in carried.items()}
            start |= {place: self.value(name, known) for place, name in stored.items()}

    def value(self, name: str, known: dict[str, Any]) -> Any:
        """Return the value of a scalar, or None if it is unknown.

        A value is an ``int``, a ``bool``, or ``(allocation, index)`` for the flag of a copy.

        Args:
          name: name of a scalar or predicate, or a number as text.
          known: known values by name. The method adds the values that it computes.
        """
        if re.fullmatch(r"-?\d+", name):
            return _signed(int(name))
        if name.startswith("["):
            return name.strip("[]"), 0
        if name not in known:
            known[name] = None  # A value that depends on itself is unknown.
            known[name] = self._computed(name, known)
        return known[name]

    def _computed(self, name: str, known: dict[str, Any]) -> Any:
        kind, _, rest = self.text(name).partition(" ")
        if kind == "sld":
            return self._loaded(name, rest, known)
        guard = _GUARD.match(rest)
        if guard:
            rest = rest[guard.end() :]
        names = [part.strip() for part in rest.split(", ")]
        if kind == "smov":
            return self._moved(guard, names[0], known)
        values = [self.value(part, known) for part in names]
        if kind == "pneg":
            return _not(values[0])
        if kind == "scalar_select":
            return None if values[0] is None else values[1 if values[0] else 2]
        if kind in _LOGIC and len(values) == 2:
            return _LOGIC[kind](*values)
        comparison = re.match(r"scmp\.(\w\w)\.s32", kind)
        if len(values) != 2:
            return None
        if comparison and self.endless and None in values and int in map(type, values):
            return comparison[1] in (_BELOW if values[1] is None else _ABOVE) or (
                None if comparison[1] in _EQUALITY else False
            )
        if None in values:
            return None
        if kind.startswith("scalar_lea.sflag"):
            return (values[0][0], values[0][1] + values[1]) if type(values[0]) is tuple else None
        if any(type(value) is not int for value in values):
            return None
        if kind in _OPERATIONS:
            return _signed(_OPERATIONS[kind](*values))
        return None if comparison is None else _COMPARISONS[comparison[1]](*values)

    def _moved(self, guard: re.Match[str] | None, new: str, known: dict[str, Any]) -> Any:
        """Return the value that a move instruction assigns; None if it is unknown.

        The value is that of the scalar `new`. An instruction with a predicate may name a second
        scalar, whose value it assigns if the predicate is false. `guard` is the match of the
        predicate and of the second scalar, None if there is no predicate. `known` has the known
        values by name.
        """
        if guard is None or guard[3] is None:
            return self.value(new, known)
        holds = self.value(guard[2], known)
        if holds is None:
            return None
        return self.value(new if holds != bool(guard[1]) else guard[3], known)

    def _loaded(self, name: str, place: str, known: dict[str, Any]) -> Any:
        """Return the value that a load instruction assigns to `name`; None if it is unknown.

        It is the value that was last stored at the address `place`, in this pass of the loop or in
        an earlier one. `known` has the known values in this pass, by name.
        """
        place, begin = self._place(place), known.get(_BEGIN, 0)
        before = self._before(name, place)
        if place in known and (before is None or before[0] < begin):
            return known[place]  # By the pass before.
        return self.value(before[1], known) if before else None

    @staticmethod
    def _place(address: str) -> str:
        return address.removeprefix("[smem:").strip("[] ")

    def _before(self, name: str, place: str) -> tuple[int, str] | None:
        """Return the last store to the address `place` before the row that defines `name`.

        The result is ``(row, scalar)``: the row of the store in the listing, and the name of the
        stored scalar. It is None if there is no such store.
        """
        row = self._rows[name]
        stores = [store for store in self._stored.get(place, ()) if store[0] < row]
        return stores[-1] if stores else None


def _both(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a


def _signed(value: int) -> int:
    return (value + _SIGN) % _WORD - _SIGN
