"""Explain how ``implicit_gemm`` on a TPU reads the input rows, see :class:`RowsMoved`."""

from __future__ import annotations

import dataclasses

import numpy as np

from voxax.hardware import HardwareInfo
from voxax.kernels.implicit_gemm.items import Shape, on_host
from voxax.kernels.implicit_gemm.tpu import WINDOWED
from voxax.kernels.implicit_gemm.tpu_items import candidates, is_items, is_preferred
from voxax.tuning import Choice


@dataclasses.dataclass(frozen=True)
class RowsMoved:
    """How a kernel reads the input rows of a forward product on a TPU: by items or by windows.

    Attributes:
      items: average number of items per output row, over the rows that have neighbors. An item
        describes, for 8 output rows and one kernel offset, the neighbors within 8 consecutive input
        rows; see :mod:`voxax.kernels.implicit_gemm.items`.
      neighbors: average number of neighbors per output row, over the same rows.
      counted: whether both were counted on the product's own map; otherwise on a similar map.
      by_items: whether the kernel reads rows by lists of items; otherwise by windows, which are
        ranges of consecutive input rows.
      why: the reason for this choice, as a text.
    """

    items: float
    neighbors: float
    counted: bool
    by_items: bool
    why: str

    def __str__(self) -> str:
        kernel = "lists of items" if self.by_items else "windows of rows"
        about = "" if self.counted else "~"
        return (
            f"{kernel}, with {about}{self.items:.2g} items and {about}{self.neighbors:.2g} "
            f"neighbors a row: {self.why}"
        )


def chooses_rows(choice: Choice) -> bool:
    """Return whether the kernel in `choice` can read input rows both by items and by windows."""
    return choice.kernel is WINDOWED and choice.problem.product == "forward"


def rows_moved(
    choice: Choice, table: np.ndarray, counted: bool, hardware: HardwareInfo
) -> RowsMoved:
    """Return how the chosen kernel reads the input rows of a map: by items or by windows.

    Args:
      choice: a choice for which :func:`chooses_rows` returns True.
      table: ``int32[rows, taps]``, the map's table of neighbors.
      counted: whether the table belongs to the product's own map.
      hardware: the TPU.
    """
    pairs = table >= 0
    rows = max(int(np.count_nonzero(pairs.any(1))), 1)
    return RowsMoved(
        _items_of(table) / rows,
        np.count_nonzero(pairs) / rows,
        counted,
        is_items(choice.parameters),
        _reason(choice, hardware),
    )


def _items_of(table: np.ndarray) -> int:
    """Return the number of items that a kernel map has, given its table of neighbors.

    For items see :class:`RowsMoved`. Each item has one nonzero word in the lists that the TPU
    kernel reads, and these words are counted.
    """
    first = 2 * Shape.of(*table.shape).list_rows
    return int(np.count_nonzero(on_host(table, None)[:, first : first + first // 2]))


def _reason(choice: Choice, hardware: HardwareInfo) -> str:
    problem, by_items = choice.problem, is_items(choice.parameters)
    if choice.source == "pinned":
        return "the only candidate"
    if by_items or candidates(problem, hardware):
        if choice.source != "predicted":
            return "the faster kernel"
        if choice.entry is not None:
            return "predicted to be the faster kernel"
        if by_items != is_preferred(problem):
            return "the other kernel failed its check"
        return "not measured; for so many neighbors and channels they come first"
    if problem.layer.density is None:
        return "the program finds its own map, whose items are not known when it is compiled"
    if candidates(problem.with_layer(density=0.0), hardware):
        return "lists are for fewer neighbors"
    return "lists do not fit the taps, channels or rows on this chip"
