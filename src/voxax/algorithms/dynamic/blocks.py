"""Blocks of positions with their halo: how a dynamic product becomes few large matrix products.

The grid is ``[B, D, H, W]``; absent axes have one position. ``P`` positions that follow each other
along W stand side by side in one row, so that few channels fill the matrix unit: a row of P
sources times a matrix of ``P x P`` weight blocks is a part of P outputs. A block is ``lines`` lines
of ``length`` rows. The *shell* of a size has the taps that the next smaller size lacks. All taps
of a shell that lie on one line are the fewest *passes* that cover them: a pass multiplies the
rows that begin ``column`` positions further on.

Strides are taken apart into phases: the source of ``forward`` has a plane for each phase of its
positions, and ``dgrad`` computes each phase of its result by itself, so every tap is a shift.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import numpy as np

from voxax.algorithms.dynamic.grid import Grid, grid_of
from voxax.algorithms.kernel import Problem

TILE_ROWS = 16
"""Rows of a register tile of 16-bit values; blocks are as many rows long, or a multiple."""

Triple = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Pass:
    """One matrix product of a shell.

    Attributes:
      line: how many lines further the source's rows lie.
      column: how many positions further they begin.
      taps: ``[P][P]``, the tap by which each source of a row reaches each output, or -1.
    """

    line: int
    column: int
    taps: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Shell:
    """The taps of one size that the next smaller one lacks: passes, plane after plane."""

    planes: tuple[tuple[int, tuple[Pass, ...]], ...]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """All, in the order of the weight's blocks."""
        return tuple(p for _, passes in self.planes for p in passes)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The static side of a call.

    Attributes:
      scenes: B.
      phase: of the result, in ``dgrad``; else zeros.
      phases: of the source, those that taps read.
      source: ``(D, H, W)`` of the source with its margin, W a multiple of ``pack``.
      low: zeros in front of the source, by axis.
      outputs: ``(D, H, W)`` of the result.
      pack: P.
      lines, length: of a block.
      planes: ``(phase, shift along D)`` of each window.
      window: lines and rows of a window.
      begin: first line of a block's window, for the first block.
      columns: distinct :attr:`Pass.column`, ascending.
      shells: from the smallest size.
      sizes: the size of each shell.
    """

    scenes: int
    phase: Triple
    phases: tuple[Triple, ...]
    source: Triple
    low: Triple
    outputs: Triple
    pack: int
    lines: int
    length: int
    planes: tuple[tuple[int, int], ...]
    window: tuple[int, int]
    begin: int
    columns: tuple[int, ...]
    shells: tuple[Shell, ...]
    sizes: tuple[int, ...]

    @property
    def number(self) -> Triple:
        """Blocks along ``B * D``, H and W."""
        depth, high, wide = self.outputs
        length = self.length * self.pack
        return self.scenes * depth, -(-high // self.lines), -(-wide // length)

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.lines * self.length

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Of all shells, in the order of the weight's blocks."""
        return tuple(p for shell in self.shells for p in shell.passes)

    def on_plane(self, plane: int, reached: int) -> list[tuple[int, int, tuple[Pass, ...]]]:
        """``(shell, number of its first pass, passes)`` of the first shells, on one plane."""
        found, at = [], 0
        for number, shell in enumerate(self.shells[:reached]):
            for on, passes in shell.planes:
                if on == plane:
                    found.append((number, at, passes))
                at += len(passes)
        return found

    def taps(self) -> np.ndarray:
        """``int[passes, P, P]``, see :attr:`Pass.taps`."""
        return np.asarray([p.taps for p in self.passes]).reshape(-1, self.pack, self.pack)


@functools.lru_cache(maxsize=256)
def blocks_of(problem: Problem, pack: int, rows: int) -> tuple[Blocks, ...]:
    """Return the calls of a product, one for each phase of ``dgrad``'s result.

    Args:
      problem: a dynamic product.
      pack: P, see the module.
      rows: of a block, at least :data:`TILE_ROWS` and about so many.
    """
    grid = grid_of(problem)
    return _calls(problem.product == "dgrad", _Extents.of(grid), pack, rows)


def shells_of(problem: Problem) -> int:
    """Return how many sizes have taps of their own."""
    return len(np.unique(grid_of(problem).reach))


@dataclasses.dataclass(frozen=True)
class _Extents:
    """A grid with three spatial axes, hashable; taps are in the weight's order."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stride: Triple
    taps: tuple[Triple, ...]
    reach: tuple[int, ...]

    @classmethod
    def of(cls, grid: Grid) -> _Extents:
        missing = 3 - len(grid.stride)
        places = np.argsort(grid.order)
        taps = np.pad(grid.taps[places], ((0, 0), (missing, 0)))

        def whole(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (shape[0], *(1,) * missing, *shape[1:])

        return cls(
            whole(grid.inputs),
            whole(grid.outputs),
            ((1,) * missing + grid.stride)[-3:],  # pyright: ignore[reportArgumentType]
            tuple(map(tuple, taps.tolist())),  # pyright: ignore[reportArgumentType]
            tuple(int(r) for r in grid.reach[places]),
        )


def _calls(backward: bool, grid: _Extents, pack: int, rows: int) -> tuple[Blocks, ...]:
    taps, stride = np.asarray(grid.taps), np.asarray(grid.stride)
    if not backward:
        phases, shifts = taps % stride, taps // stride
        source = -(-np.asarray(grid.inputs[1:]) // stride)
        found = _call(grid, (0, 0, 0), source, grid.outputs[1:], phases, shifts, None, pack, rows)
        return (found,)
    calls = []
    for phase in itertools.product(*map(range, grid.stride)):
        outputs = -(-(np.asarray(grid.inputs[1:]) - phase) // stride)
        own = np.flatnonzero(((np.asarray(phase) - taps) % stride == 0).all(1))
        if not len(own) or min(outputs) < 1:
            continue
        shifts = (np.asarray(phase) - taps[own]) // stride
        place: Triple = phase  # pyright: ignore[reportAssignmentType]
        calls.append(
            _call(
                grid, place, np.asarray(grid.outputs[1:]), outputs, 0 * shifts, shifts, own, pack,
                rows,
            )
        )  # fmt: skip
    return tuple(calls)


def _call(
    grid: _Extents,
    phase: Triple,
    source: np.ndarray,
    outputs: Any,
    phases: np.ndarray,
    shifts: np.ndarray,
    own: np.ndarray | None,
    pack: int,
    rows: int,
) -> Blocks:
    """One call; ``own`` are its taps, None all, with their phase and shift."""
    own = np.arange(len(shifts)) if own is None else own
    depth, high, wide = (int(n) for n in outputs)
    low = np.maximum(0, -shifts.min(0))
    low[2] = -(-low[2] // (TILE_ROWS * pack)) * TILE_ROWS * pack
    shifts = shifts + low
    least, most = shifts.min(0), shifts.max(0)

    length = min(rows, -(-wide // pack))
    length = -(-length // TILE_ROWS) * TILE_ROWS
    lines = max(1, min(high, rows // length))
    blocks_high, blocks_wide = -(-high // lines), -(-wide // (length * pack))
    window = lines + int(most[1] - least[1]), length + int(most[2] + pack - 1) // pack + 1
    window = window[0], -(-window[1] // TILE_ROWS) * TILE_ROWS
    padded = np.maximum(low + source, (depth + most[0], 0, 0))
    padded[1] = max(padded[1], blocks_high * lines + most[1])
    padded[2] = max(padded[2], ((blocks_wide - 1) * length + window[1]) * pack)
    padded[2] = -(-padded[2] // pack) * pack

    used = sorted({tuple(p) for p in phases.tolist()})
    reach = np.asarray(grid.reach)[own]
    plane_of = [
        (used.index(tuple(p)), int(s[0])) for p, s in zip(phases.tolist(), shifts, strict=True)
    ]
    windows = sorted(set(plane_of))
    place = np.array([windows.index(plane) for plane in plane_of])
    sizes = np.unique(reach)
    shells = []
    for size in sizes:
        planes = []
        for plane in range(len(windows)):
            of = np.flatnonzero((reach == size) & (place == plane))
            passes: list[Pass] = []
            for line in np.unique(shifts[of, 1]):
                on = of[shifts[of, 1] == line]
                at = dict(zip(shifts[on, 2].tolist(), own[on].tolist(), strict=True))
                passes += _cover(int(line - least[1]), at, pack)
            if passes:
                planes.append((plane, tuple(passes)))
        shells.append(Shell(tuple(planes)))
    columns = sorted({p.column for shell in shells for p in shell.passes})
    return Blocks(
        scenes=grid.inputs[0],
        phase=phase,
        phases=tuple(used),  # pyright: ignore[reportArgumentType]
        source=tuple(int(n) for n in padded),  # pyright: ignore[reportArgumentType]
        low=tuple(int(n) for n in low),  # pyright: ignore[reportArgumentType]
        outputs=(depth, high, wide),
        pack=pack,
        lines=lines,
        length=length,
        planes=tuple(windows),
        window=window,
        begin=int(least[1]),
        columns=tuple(columns),
        shells=tuple(shells),
        sizes=tuple(int(s) for s in sizes),
    )


def _cover(line: int, taps: dict[int, int], pack: int) -> list[Pass]:
    """Return the fewest passes for taps on one line, by their shift along W.

    Output ``a`` of a row reads the source at ``a + shift``. From the left, each pass begins at the
    first source that none before it has: the fewest intervals of P that cover points.
    """
    reads: dict[int, list[tuple[int, int]]] = {}
    for (shift, tap), a in itertools.product(taps.items(), range(pack)):
        reads.setdefault(a + shift, []).append((a, tap))
    passes, column, table = [], -math.inf, np.zeros(0)
    for source in sorted(reads):
        if source >= column + pack:
            column, table = source, np.full((pack, pack), -1)
            passes.append((column, table))
        for a, tap in reads[source]:
            table[int(source - column), a] = tap
    return [Pass(line, at, tuple(map(tuple, t.tolist()))) for at, t in passes]
