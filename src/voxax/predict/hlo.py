"""Read the operations that a compiled program runs, in order, from its HLO text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

_COMPUTATION = re.compile(r"^(ENTRY )?%(\S+) \(")
_END = re.compile(r"^\}(?:, execution_thread=.*)?$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%(\S+) = (.*)$")
_CALL = re.compile(r" ([a-z][a-z0-9\-]*)\(")
_SHAPE = re.compile(r"(pred|[a-z]+[0-9]+(?:e\w+)?)\[([0-9,]*)\](?:\{([^}]*)\})?")
_BRANCHES = re.compile(r"(?:branch_computations=\{([^}]+)|(?:true|false)_computation=([^,]+))")
_OPERAND = re.compile(r"%([\w.\-]+)")
_BITS = {"pred": 8}
# Operations that execute nothing, or not as kernels.
_FREE = (
    "parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "opt-barrier",
    "partition-id", "replica-id",
)  # fmt: skip
# Calls that execute nothing: adjacent arrays in memory are used as one array.
_FREE_TARGETS = ("ConcatBitcast",)
_BESIDE = ("copy-start", "slice-start", "async-start", "copy-done", "slice-done", "async-done")


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a compiled program.

    Attributes:
      name: name in the program's HLO. The compiler's schedule file has the same name.
      kind: the HLO opcode, or the target of a custom call; ``tpu_custom_call`` for Pallas.
      label: the JAX operation that it comes from, HLO's ``op_name``.
      times: how often the program runs it. A loop of the program whose number of passes is known
        only at run time counts as one pass.
      in_open_loop: whether the operation is inside a loop of unknown length.
      bytes: bytes of operands and results in HBM, each counted once, padded to tiles.
      operands: ``(dtype, shape)`` of each operand, with HLO's name of the dtype.
      completes: for the end of a copy that runs in parallel with kernels, the name of the operation
        that starts the copy; else empty.
      prefetched: for the start of such a copy, whether the program's previous run may start it.
    """

    name: str
    kind: str
    label: str
    times: int
    in_open_loop: bool
    bytes: int
    operands: tuple[tuple[str, tuple[int, ...]], ...]
    completes: str = dataclasses.field(default="", kw_only=True)
    prefetched: bool = dataclasses.field(default=False, kw_only=True)


@dataclasses.dataclass(frozen=True)
class _Line:
    name: str
    opcode: str
    shape: str
    rest: str


def operations(text: str) -> list[Operation]:
    """Return the operations that a program runs, in order, including the bodies of its loops.

    Args:
      text: the program's HLO, ``compiled.as_text()``.
    """
    computations, entry = _computations(text)
    return list(_walk(computations, entry, 1, False))


def _computations(text: str) -> tuple[dict[str, list[_Line]], str]:
    found: dict[str, list[_Line]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif _END.match(line):
            current = None
        elif current is not None and (match := _OPERATION.match(line)):
            call = _CALL.search(match[2])
            if call:
                shape, rest = match[2][: call.start()], match[2][call.end() - 1 :]
                current.append(_Line(match[1], call[1], shape, rest))
        elif current:  # metadata of a kernel may have line breaks
            current[-1] = dataclasses.replace(current[-1], rest=current[-1].rest + line)
    return found, entry


def _walk(
    computations: dict[str, list[_Line]], name: str, times: int, in_open_loop: bool
) -> Iterator[Operation]:
    lines = computations.get(name, [])
    shapes = {line.name: line.shape for line in lines}
    for line in lines:
        if line.opcode in _FREE:
            continue
        if line.opcode == "while":
            trips = _trips(computations, line)
            inside = times * (1 if trips is None else trips), in_open_loop or trips is None
            yield from _walk(computations, _called(line, "body"), *inside)
        elif line.opcode == "conditional":
            # Which branch runs is not known here, so count all of them.
            for several, one in _BRANCHES.findall(line.rest):
                for branch in (several or one).split(","):
                    yield from _walk(computations, branch.strip("% "), times, in_open_loop)
        elif line.opcode == "call":
            yield from _walk(computations, _called(line, "to_apply"), times, in_open_loop)
        else:
            target = re.search(r'custom_call_target="([^"]*)"', line.rest)
            if target and target[1] in _FREE_TARGETS:
                continue
            label = re.search(r'op_name="([^"]*)"', line.rest)
            yield Operation(
                line.name,
                target[1] if target else line.opcode,
                label[1] if label else "",
                times,
                in_open_loop,
                _bytes_of(computations, line, shapes),
                _operands(line, shapes),
                completes=_OPERAND.findall(line.rest)[0] if line.opcode.endswith("-done") else "",
                prefetched="cross_program_prefetch_index" in line.rest,
            )


def _called(line: _Line, role: str) -> str:
    match = re.search(rf"{role}=%?([\w.\-]+)", line.rest)
    return match[1] if match else ""


def _trips(computations: dict[str, list[_Line]], line: _Line) -> int | None:
    """Return the number of passes of the ``while`` loop in `line`; None if it is unknown.

    The number is XLA's ``known_trip_count``. Without it, it is the constant in the loop's
    condition, which is found in `computations`, the program's HLO lines by computation.
    """
    known = re.search(r'known_trip_count":\{"n":"(\d+)"', line.rest)
    if known:
        return int(known[1])
    condition = computations.get(_called(line, "condition"), [])
    numbers = [re.match(r"\((\d+)\)", i.rest) for i in condition if i.opcode == "constant"]
    bounds = [int(match[1]) for match in numbers if match]
    # Assume that the counter begins at 0, as in jax.lax.fori_loop and scan.
    return bounds[0] if len(bounds) == 1 and "LT" in "".join(i.rest for i in condition) else None


def _bytes_of(computations: dict[str, list[_Line]], line: _Line, shapes: dict[str, str]) -> int:
    written = _hbm_bytes(line.shape)
    arguments = line.rest[1 : _closing(line.rest)]
    read = [_hbm_bytes(shapes.get(name, "")) for name in _OPERAND.findall(arguments)]
    if line.opcode.endswith("-done"):
        return 0
    if line.opcode.endswith("-start"):
        # The result is a tuple of the target, the source and a flag: count only the source.
        return sum(read[:1]) or written
    inside = {item.opcode for item in computations.get(_called(line, "calls"), [])} | {line.opcode}
    if inside & {"gather", "dynamic-slice", "slice"}:
        # Such operations read only the rows that they take, no more bytes than the result has.
        whole = _padded_bytes(line.shape)
        read = [min(size, whole) for size in read]
    if inside & {"dynamic-update-slice"}:
        written = min(written, sum(sorted(read)[:-1]))
        read = sorted(read)[:-1]
    return written + sum(read)


def _operands(line: _Line, shapes: dict[str, str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    names = _OPERAND.findall(line.rest[1 : _closing(line.rest)])
    found = [_SHAPE.search(shapes.get(name, "")) for name in names]
    return tuple(
        (match[1], tuple(int(extent) for extent in match[2].split(",") if extent))
        for match in found
        if match
    )


def _closing(text: str) -> int:
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return at
    return len(text)


def _hbm_bytes(shape: str) -> int:
    return sum(_size(*found) for found in _SHAPE.findall(shape) if "S(" not in found[2])


def _padded_bytes(shape: str) -> int:
    return sum(_size(*found) for found in _SHAPE.findall(shape))


def _size(dtype: str, extents: str, layout: str) -> int:
    """Return the bytes of an array, with its dimensions padded to whole tiles of the layout.

    The arguments are parts of an HLO shape such as ``bf16[100,64]{1,0:T(8,128)}``: the dtype, the
    `extents` ``100,64``, and the layout in braces.
    """
    bits = _BITS.get(dtype) or int(re.sub(r"^\D+(\d+).*$", r"\1", dtype))
    shape = [int(extent) for extent in extents.split(",") if extent]
    order = [int(axis) for axis in layout.split(":")[0].split(",") if axis.isdigit()]
    major_to_minor = [shape[axis] for axis in reversed(order)] if order else shape
    tile = re.search(r"T\(([0-9,]+)\)", layout)
    if tile:
        sides = [int(side) for side in tile[1].split(",")]
        for back, side in enumerate(reversed(sides), start=1):
            if back <= len(major_to_minor):
                major_to_minor[-back] = -(-major_to_minor[-back] // side) * side
    return math.prod(major_to_minor) * bits // 8


def runs_beside(operation: Operation) -> bool:
    """Return True for the start or end of a copy that runs in parallel with kernels."""
    return operation.kind in _BESIDE
