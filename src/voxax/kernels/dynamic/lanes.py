"""Block layout of the dynamic TPU kernels for 2-D grids with W along the lanes of a register.

``tpu_lanes_kernel.py`` has the kernels. The terms are those of ``blocks.py`` with the axes
exchanged: a *group* is P consecutive positions along H, and a *line* is all positions with the same
index along H.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.kernels.dynamic.blocks import Pass, cover
from voxax.kernels.dynamic.grid import grid_of
from voxax.kernels.implicit_gemm.windows import CHANNELS
from voxax.kernels.kernel import Problem

_WIDE_TILE = 256


@dataclasses.dataclass(frozen=True)
class Lanes:
    """The block layout of one kernel call, for a grid ``[B, H, W]``.

    A line is all positions of a scene with the same index along H.

    Attributes:
      scenes: B, the number of scenes.
      high, wide: H and W, the extents of the grid.
      width: W, rounded up to whole registers.
      pack: P, the number of consecutive positions along H that form a group.
      lines: number of lines of a block.
      low: number of lines of a block's window (the block and its halo) before the block.
      shifts: the shifts of taps along W, ascending.
      shells: for each shell (the taps that a kernel size adds to the next smaller) the matrix
        products. The ``line`` of a product is its index into ``shifts``. Its ``column`` is the line
        of the window at which its first group of sources begins.
      sizes: the kernel size of each shell.
      masks_source: whether a tap that a position's size lacks is masked in the source, as in dgrad.
        Otherwise it is masked in the result.
    """

    scenes: int
    high: int
    wide: int
    width: int
    pack: int
    lines: int
    low: int
    shifts: tuple[int, ...]
    shells: tuple[tuple[Pass, ...], ...]
    sizes: tuple[int, ...]
    masks_source: bool

    @property
    def number(self) -> int:
        """Number of blocks of a scene."""
        return -(-self.high // self.lines)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The matrix products of all shells, in the order of :attr:`shells`."""
        return tuple(p for shell in self.shells for p in shell)

    @property
    def window(self) -> int:
        """Number of lines (indices along H) of a block and its halo, also outside of the grid."""
        return self.lines + max(p.column for p in self.passes)

    @property
    def taken(self) -> int:
        """Number of lines (indices along H) loaded for a block and its halo, at most H."""
        return min(self.window, self.high)

    @property
    def tile(self) -> int:
        """Number of lanes (positions along W) that one product multiplies."""
        return _WIDE_TILE if self.width % _WIDE_TILE == 0 else CHANNELS

    @functools.cached_property
    def slots(self) -> dict[tuple[int, int], int]:
        """The index in scratch memory of each shifted window, by ``(shell, index into shifts)``.

        A window is a block and its halo, here shifted along W. A shell is the taps that a kernel
        size adds to the next smaller size. If ``masks_source`` is False, all shells read the same
        shifted windows, and the shell in the key is 0.
        """
        found = {
            (number if self.masks_source else 0, p.line)
            for number, shell in enumerate(self.shells)
            for p in shell
        }
        return {key: place for place, key in enumerate(sorted(found))}

    def slot(self, number: int, shift: int) -> int:
        """Return the index in scratch memory of the window that shell ``number`` reads.

        The window is shifted along W by ``shifts[shift]``; see :attr:`slots`.
        """
        return self.slots[number if self.masks_source else 0, shift]

    def begin(self, block: Any) -> Any:
        """Return the index along H at which the window of block number ``block`` begins.

        The window is the block and its halo, so the index is negative if the halo begins outside
        of the grid. Blocks are numbered scene after scene.
        """
        return jax.lax.rem(block, jnp.int32(self.number)) * self.lines - self.low

    def start(self, block: Any) -> Any:
        """Return the first index along H that is loaded for block number ``block``.

        All :attr:`taken` lines (indices along H) from there on are inside the grid.
        """
        return jnp.clip(self.begin(block), 0, self.high - self.taken)


@functools.lru_cache(maxsize=256)
def lanes_of(problem: Problem, pack: int, lines: int) -> Lanes:
    """Return the block layout of a product over a 2-D grid with stride 1.

    ``pack`` is the number of consecutive positions along H that form a group. ``lines`` is the
    number of lines (indices along H) of a block.
    """
    grid = grid_of(problem)
    places = np.argsort(grid.order)
    shifts, reach = np.asarray(grid.taps)[places], np.asarray(grid.reach)[places]
    backward = problem.product == "dgrad"
    shifts = -shifts if backward else shifts
    across = np.unique(shifts[:, 1])
    low = max(0, -int(shifts[:, 0].min()))
    shells = []
    for size in np.unique(reach):
        passes: list[Pass] = []
        for turn, shift in enumerate(across):
            on = np.flatnonzero((reach == size) & (shifts[:, 1] == shift))
            at = dict(zip((shifts[on, 0] + low).tolist(), on.tolist(), strict=True))
            passes += cover(turn, at, pack)
        shells.append(tuple(passes))
    scenes, high, wide = grid.inputs
    return Lanes(
        scenes=scenes,
        high=high,
        wide=wide,
        width=-(-wide // CHANNELS) * CHANNELS,
        pack=pack,
        lines=lines,
        low=low,
        shifts=tuple(across.tolist()),
        shells=tuple(shells),
        sizes=tuple(np.unique(reach).tolist()),
        masks_source=backward,
    )
