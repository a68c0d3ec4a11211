"""Lists of items: a kernel map in units of 8 rows, for TPUs and maps with few neighbors.

An *item* belongs to one tap and a *group* of 8 consecutive output rows. It describes the neighbors
of these rows that lie within 8 consecutive input rows. Rows of both sides are in lexicographic
order, so most groups have at most one item for a tap. Neighbors that lie further apart need more
items. A row of a LiDAR sweep at 5 cm has 1.1 items of a 3x3x3 kernel, a row of an indoor scan 3.5.

This module defines the sizes of the map's array ``items``, which has a list of items for each block
of output rows, and builds the array in NumPy.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from voxax.geometry.kernel_spec import KernelSpec

GROUP = 8
"""Number of output rows and of input rows of an item: the sublanes of a register."""
PIECE = 16
"""Number of consecutive items in the list that share a tap. Their groups are distinct."""
PASS = 128
"""Number of items in a row of the list."""
CHUNK = 128
"""Number of rows of the list that one copy brings to scalar memory."""
TAPS = 8
"""Number of taps whose items are found together, one tap in each sublane of a register."""
# The largest number of output rows of a block. Their sums stay in vector memory.
_BLOCK = 16384


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the lists of items of one neighbor table.

    An item is the neighbors of 8 output rows by one tap, within 8 consecutive input rows.

    Attributes:
      blocks: number of blocks of output rows.
      block_rows: number of output rows of a block, a multiple of 1024.
      taps: K, rounded up to a multiple of ``TAPS``.
    """

    blocks: int
    block_rows: int
    taps: int

    @classmethod
    def of(cls, rows: int, taps: int) -> Shape:
        """Return the sizes for a table ``int32[rows, taps]``."""
        blocks = max(-(-rows // _BLOCK), 1)
        unit = GROUP * PASS  # groups fill whole registers
        return cls(blocks, max(-(-rows // (blocks * unit)), 1) * unit, taps + -taps % TAPS)

    @property
    def groups(self) -> int:
        """Number of groups of 8 output rows in a block."""
        return self.block_rows // GROUP

    @property
    def chunks(self) -> int:
        """Number of chunks in the list of a block, enough for the items of any neighbor table.

        A chunk is ``CHUNK`` rows of ``PASS`` items.
        """
        # A group has at most GROUP items for a tap, found in as many rounds. A round pads its last
        # piece of a tap, hence PIECE more.
        items = self.taps * GROUP * (self.groups + PIECE)
        return -(-items // (PASS * CHUNK))

    @property
    def list_rows(self) -> int:
        """Number of rows of 128 numbers that hold one number for each item of a block."""
        return self.chunks * CHUNK

    @property
    def array(self) -> tuple[int, int, int]:
        """Shape of the array ``items``, see ``tpu_items._build``."""
        return self.blocks, 3 * self.list_rows + self.list_rows // PIECE + GROUP, PASS


def on_host(neighbors: np.ndarray, spec: KernelSpec | None) -> np.ndarray:
    """Return the lists of items of the neighbor table ``neighbors int32[rows, K]``, built in NumPy.

    ``tpu_items._build`` describes the result, the map's array ``items``. ``spec`` is not used.
    """
    del spec
    shape = Shape.of(*neighbors.shape)
    table = np.full((shape.blocks * shape.block_rows, shape.taps), -1, np.int32)
    table[: len(neighbors), : neighbors.shape[1]] = neighbors
    left = table.reshape(shape.blocks, shape.groups, GROUP, -1).transpose(0, 3, 2, 1)
    own = np.arange(len(table), dtype=np.int32).reshape(shape.blocks, shape.groups, GROUP)
    # The first groups whose rows are their own neighbors under the middle tap need no items of it.
    center = left[:, neighbors.shape[1] // 2]
    is_own = np.logical_and.accumulate((center == own.swapaxes(1, 2)).all(1), axis=1)
    center[:] = np.where(is_own[:, None], np.int32(-1), center)
    found = [_Lists(shape, int(number)) for number in is_own.sum(1)]
    shifts = 4 * np.arange(GROUP, dtype=np.uint32)[:, None]
    for first in range(0, shape.taps, TAPS):
        mine = left[:, first : first + TAPS]
        # Each round finds one item per group and tap. The item starts at the least remaining input
        # row and takes all neighbors in the 8 rows from there on. Its word has 4 bits for each
        # output row: 8 plus the neighbor's place in the 8 input rows, or 0 without a neighbor.
        while np.any(mine >= 0):
            begins = np.where(mine < 0, np.iinfo(np.int32).max, mine).min(2)
            place = mine - begins[:, :, None]
            inside = (mine >= 0) & (place < GROUP)
            codes = np.where(inside, place | GROUP, 0).astype(np.uint32) << shifts
            words = np.bitwise_or.reduce(codes, axis=2).view(np.int32)
            mine = np.where(inside, np.int32(-1), mine)
            for block, lists in enumerate(found):
                for tap in range(TAPS):
                    lists.add(first + tap, begins[block, tap], words[block, tap])
    return np.stack([lists.array for lists in found])


class _Lists:
    """Builder of the list of items of one block of output rows.

    The list is the attribute ``array``, which becomes one entry of the array ``items``. ``own`` is
    the number of leading groups of the block whose rows are their own neighbors under the middle
    tap. See ``tpu_items._build`` for the rows of the array.
    """

    def __init__(self, shape: Shape, own: int) -> None:
        rows = shape.list_rows
        self.array = np.zeros(shape.array[1:], np.int32)
        self.array[rows : 2 * rows] = shape.block_rows
        self._numbers = self.array[: 3 * rows].reshape(3, -1)
        self._taps = self.array[3 * rows : 3 * rows + rows // PIECE].reshape(-1)
        self.array[-GROUP:, 1:] = own
        self._pieces = 0

    def add(self, tap: int, begins: np.ndarray, words: np.ndarray) -> None:
        (groups,) = np.nonzero(words)
        pieces = -(-len(groups) // PIECE)
        at = slice(self._pieces * PIECE, self._pieces * PIECE + len(groups))
        self._numbers[:, at] = begins[groups], GROUP * groups, words[groups]
        self._taps[self._pieces : self._pieces + pieces] = tap
        self._pieces += pieces
        self.array[-GROUP:, 0] = -(-self._pieces * PIECE // PASS)


def defined(view: np.ndarray, rows: int, taps: int) -> np.ndarray:
    """Return the lists of items ``view`` with zeros in the entries that a device leaves undefined.

    So lists from a device and from :func:`on_host` can be compared. ``rows`` and ``taps`` are the
    shape of the neighbor table from which ``view`` was built.
    """
    shape, found = Shape.of(rows, taps), np.zeros_like(view)
    for block, (used, own) in enumerate(view[:, -1, :2]):
        for part in range(3):
            at = slice(part * shape.list_rows, part * shape.list_rows + used)
            found[block, at] = view[block, at]
        # The taps of pieces with items; a row of the list has 8.
        words = found[block, 2 * shape.list_rows :][: shape.list_rows].reshape(-1, PIECE)
        pieces = slice(3 * shape.list_rows, 3 * shape.list_rows + shape.list_rows // PIECE)
        tap = view[block, pieces].reshape(-1)
        found[block, pieces] = np.where(words.any(1), tap, 0).reshape(-1, PASS)
        found[block, -GROUP:] = np.where(np.arange(PASS) == 0, used, own)
    return found
