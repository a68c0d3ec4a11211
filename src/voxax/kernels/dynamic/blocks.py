"""Block layout of the dynamic TPU kernels: which matrix products compute a block of positions.

The grid is ``[B, D, H, W]``; absent axes have one position. Terms of this module, of ``tpu.py`` and
of ``tpu_kernel.py``:

- *source*: the operand that taps read, ``x`` in ``forward`` and ``wgrad``, ``dy`` in ``dgrad``.
- *row*: the channels of P consecutive positions along W, ``[P * C]``, so that few channels fill the
  matrix unit. A row of P sources times a matrix of ``P x P`` weights contributes to P outputs.
- *line*: all rows with the same index along ``B * D`` and along H.
- *block*: ``lines`` lines of ``length`` rows. Its *window* is the part of the source that its taps
  read: the block and its halo.
- *shell*: the taps that one kernel size adds to the next smaller size. The *level* of a position is
  the number of shells within its size.
- *pass*: one matrix product for some taps of a shell. The rows that it multiplies begin ``column``
  positions further along W than those of the outputs, and may be on another line. The taps of a
  shell that read the same line are divided among as few passes as possible.
- *plane*: the sources with the same index along D and the same phase.
- *phase*: the remainder of a position modulo the stride. The source of ``forward`` is sorted by
  phase, and ``dgrad`` computes each phase of its result separately, so that every tap is a shift.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import numpy as np

from voxax.kernels.dynamic.grid import Grid, grid_of
from voxax.kernels.implicit_gemm.windows import CHANNELS
from voxax.kernels.kernel import Problem

TILE_ROWS = 16
"""Number of rows of a register tile of 16-bit values. A block's length is a multiple of it."""
MOST_PACKED = 8
"""The largest number P of positions in a row: the sublanes of a register of 32-bit values."""

Triple = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Pass:
    """One matrix product, for some of the taps that a kernel size adds to the next smaller size.

    The docstring of :mod:`voxax.kernels.dynamic.blocks` explains the terms.

    Attributes:
      line: index of the window's line that is read, minus the index of the output's line in the
        block.
      column: position in a line of the window at which the first row of sources begins.
      taps: ``taps[source][output]``, P by P: the tap by which this output of a row of P outputs
        reads this source of a row of P sources, or -1.
    """

    line: int
    column: int
    taps: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Shell:
    """The matrix products (passes) for a shell: the taps that a size adds to the next smaller size.

    Attributes:
      planes: ``(plane, passes)`` for each plane that is read, that is, the sources with one index
        along D and one phase: its index in :attr:`Blocks.planes`, and the passes that read it.
    """

    planes: tuple[tuple[int, tuple[Pass, ...]], ...]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """All matrix products of the shell, in the order of their matrices in the kernel."""
        return tuple(p for _, passes in self.planes for p in passes)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The block layout of one kernel call; the module's docstring explains the terms.

    Attributes:
      scenes: B, the number of scenes.
      phase: the phase of the result in ``dgrad``; otherwise zeros.
      phases: the phases of the source that taps read.
      source: extents ``(D, H, W)`` of the source with its margin, in positions; W is a multiple of
        ``pack``.
      low: width of the margin before the source along each axis, in positions.
      outputs: extents ``(D, H, W)`` of the result, in positions.
      pack: P, the number of positions in a row.
      lines: number of lines of a block.
      length: number of rows of a line of a block.
      planes: ``(index into phases, shift along D)`` of each plane that a block reads.
      window: ``(lines, rows)``, the number of lines of a window and of rows of each line.
      begin: the line of the source at which the first block's window begins.
      columns: the distinct values of :attr:`Pass.column`, ascending.
      shells: the shells, from the smallest size.
      sizes: the kernel size of each shell.
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
        """Number of blocks along ``B * D``, H and W."""
        depth, high, wide = self.outputs
        length = self.length * self.pack
        return self.scenes * depth, -(-high // self.lines), -(-wide // length)

    @property
    def rows(self) -> int:
        """Number of rows of a block; a row has the channels of P positions."""
        return self.lines * self.length

    @property
    def passes(self) -> tuple[Pass, ...]:
        """All matrix products of a block, in the order of their matrices in the kernel."""
        return tuple(p for shell in self.shells for p in shell.passes)

    def on_plane(self, plane: int, reached: int) -> list[tuple[int, int, tuple[Pass, ...]]]:
        """Return the passes (matrix products) that read one plane, for the first shells.

        A shell is the taps that a kernel size adds to the next smaller size.

        Args:
          plane: the index of the plane in :attr:`planes`.
          reached: the number of shells, from the smallest size.

        Returns:
          A list with ``(shell, first, passes)`` for each shell that reads the plane: the index in
          :attr:`shells`, the index of the first of these passes in :attr:`passes`, and the passes.
        """
        found, at = [], 0
        for number, shell in enumerate(self.shells[:reached]):
            for on, passes in shell.planes:
                if on == plane:
                    found.append((number, at, passes))
                at += len(passes)
        return found


def _taps(passes: tuple[Pass, ...], pack: int) -> np.ndarray:
    return np.asarray([p.taps for p in passes]).reshape(-1, pack, pack)


def taps_of(passes: tuple[Pass, ...], pack: int, none: int) -> np.ndarray:
    """Return which tap's weight each entry of the passes' matrices has, ``int[passes * P * P]``.

    A pass is a matrix product, with one entry for each source and output of a row of P = ``pack``
    positions. These are the values of :attr:`Pass.taps`, where ``none`` replaces -1 (no tap).
    """
    table = _taps(passes, pack)
    return np.where(table < 0, none, table).reshape(-1)


def places_of(passes: tuple[Pass, ...], pack: int) -> np.ndarray:
    """Return the pass and the source by which each output reads each tap, ``int[K * P]``.

    A pass is a matrix product for rows of P = ``pack`` positions. Entry ``tap * P + output`` is
    ``pass * P + source``, where output and source are positions in a row. This is the inverse of
    :attr:`Pass.taps`.
    """
    table = _taps(passes, pack)
    number, source, output = np.nonzero(table >= 0)
    order = np.argsort(table[number, source, output] * pack + output)
    return (number * pack + source)[order]


def channels_of(channels: int, pack: int) -> int:
    """Round ``channels`` up so that ``pack`` times as many fill whole registers of 128 lanes."""
    lanes = max(1, CHANNELS // pack)
    return -(-channels // lanes) * lanes


def levels_of(own: tuple[int, ...], sizes: Any) -> Any:
    """Return the level of each kernel size in ``sizes``, as int32: the number of shells within it.

    A shell is the taps that a kernel size adds to the next smaller size. ``own`` has the kernel
    size of each shell, so the level is the number of these that do not exceed the given size.
    """
    return sum((sizes >= size).astype("int32") for size in own)


@functools.lru_cache(maxsize=256)
def blocks_of(problem: Problem, pack: int, rows: int) -> tuple[Blocks, ...]:
    """Return the block layouts of a product's kernel calls: one, or for dgrad one for each phase.

    Args:
      problem: a dynamic product. A phase is all input positions with the same remainder modulo
        stride.
      pack: P, the number of positions along W whose channels form a row.
      rows: approximate number of rows of a block, at least :data:`TILE_ROWS`.
    """
    grid = grid_of(problem)
    return _calls(problem.product == "dgrad", _Extents.of(grid), pack, rows)


def shells_of(problem: Problem) -> int:
    """Return the number of shells: how many kernel sizes have more taps than the next smaller."""
    return len(np.unique(grid_of(problem).reach))


def whole(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``(B, D, H, W)`` for a ``shape (B, *spatial)``; absent axes D and H have length 1."""
    return (shape[0], *(1,) * (4 - len(shape)), *shape[1:])


@dataclasses.dataclass(frozen=True)
class _Extents:
    """The fields of a :class:`Grid`, extended to three spatial axes.

    Kernel offsets (taps) are in the order of the weight. Absent axes come first, with extent 1,
    stride 1 and offset 0.
    """

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
    """Return the block layout of one kernel call: forward, wgrad, or one phase of dgrad.

    A phase is the remainder of a position modulo the stride. A source is an input position, or for
    dgrad an output position.

    Args:
      grid: extents of the grids, stride and kernel offsets (taps).
      phase, source, outputs: as in :class:`Blocks`, but ``source`` is without margin.
      phases: ``[taps, 3]``, the phase of the sources that each tap of the call reads.
      shifts: ``[taps, 3]``, the distance from a result's position to the source that each tap
        reads.
      own: indices in the weight of the taps that the call computes; None means all taps.
      pack, rows: as for :func:`blocks_of`.
    """
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
                passes += cover(int(line - least[1]), at, pack)
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


def cover(line: int, taps: dict[int, int], pack: int) -> list[Pass]:
    """Return as few passes (matrix products) as possible that compute the taps of one line.

    The taps of a line have the same offset on every axis except W. For the layout
    :class:`~voxax.kernels.dynamic.lanes.Lanes`, read H instead of W.

    Args:
      line: the value of :attr:`Pass.line` of the result.
      taps: the taps to compute, as ``{shift along W: tap}``.
      pack: P, the number of consecutive positions along W that a matrix product reads, and for
        which it computes the result.
    """
    # Output a of a row reads the source at a + shift. From the left, each pass begins at the first
    # source that no earlier pass covers. No choice of intervals of P sources needs fewer passes.
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
