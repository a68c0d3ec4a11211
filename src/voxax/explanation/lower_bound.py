"""The least time that the hardware allows a product.

The roofline of Williams, Waterman, Patterson, "Roofline: an insightful visual performance model",
CACM 2009: a product takes at least the time of its arithmetic at the rate of the device's best
dense matrix product, and at least that of its bytes at the bandwidth of a copy. The arithmetic is
over the pairs of an input and an output that the product's map has.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from voxax.geometry.dtypes import product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels import Problem
from voxax.tuning.concrete_maps import concrete_map, map_key
from voxax.tuning.sample import recorded_map, sizes_of, taps_of

Bound = Literal["compute", "memory"]

_HALVES = ("bfloat16", "float16")
# Names for products with all digits of float32.
_FULL = ("highest", "float32", "F32_F32_F32")
_INDEX_BYTES = 4
_TABLES = ("neighbors", "transposed_neighbors")


@dataclasses.dataclass(frozen=True)
class LowerBound:
    """The work of a product, and the least time that it takes.

    Attributes:
      operations: multiplications and additions over the pairs that exist; missing neighbors and
        padding count for nothing.
      bytes: features, gradients, weights, results and the table of neighbors (of a dynamic
        product: the sizes), each once and at its full capacity. A product that is mostly padding
        and skips it, or whose operands are in a cache, may beat a bound that is set by memory.
      seconds: the greater of ``operations`` over the matrix rate and ``bytes`` over the
        bandwidth; None unless both are known.
      bound: which of the two gives ``seconds``; None without.
    """

    operations: int
    bytes: int
    seconds: float | None
    bound: Bound | None


def lower_bound_of(problem: Problem, pairs: int, hardware: HardwareInfo | None) -> LowerBound:
    """The lower bound of a product over ``pairs`` pairs; without hardware, its work alone."""
    p = problem
    channels = (
        p.in_channels
        if p.layer.kind == "depthwise"
        else p.in_channels * p.out_channels // p.layer.groups
    )
    operations, size = 2 * pairs * channels, _bytes(p)
    rate = None if hardware is None else matrix_rate(p.dtype, p.layer.precision, hardware)
    bandwidth = None if hardware is None else hardware.memory_bandwidth
    if not rate or not bandwidth:
        return LowerBound(operations, size, None, None)
    compute, memory = operations / rate, size / bandwidth
    return LowerBound(
        operations, size, max(compute, memory), "compute" if compute > memory else "memory"
    )


def matrix_rate(dtype: str, precision: str, hardware: HardwareInfo) -> float | None:
    """Operations per second of the best dense product that may serve; None if unknown.

    The values of half precision are float32's too, so its products serve them. float32 at less
    than the highest precision may be rounded to half precision. On CPUs half precision has the
    rate of float32 unless it is known; elsewhere it is several times as fast, and what is
    known of float32 alone is no bound.

    Args:
      dtype: of the operands.
      precision: name of a ``jax.lax.Precision``; of no consequence but for float32.
      hardware: the device.
    """
    exact = hardware.peak_rate("float32")
    if dtype in _HALVES:
        short = hardware.peak_rate(dtype)
    elif dtype == "float32" and precision not in _FULL:
        short = max(filter(None, map(hardware.peak_rate, _HALVES)), default=None)
    else:
        return hardware.peak_rate(dtype)
    if not short and hardware.platform != "cpu":
        return None
    return max(filter(None, (short, exact)), default=None)


def _bytes(p: Problem) -> int:
    # A symmetric map's transpose is the same table.
    transposed = p.product == "dgrad" and not p.layer.symmetric
    table = p.layer.num_offsets * (p.layer.in_capacity if transposed else p.layer.out_capacity)
    if p.layer.kind == "dynamic":  # sizes, and no table
        table = p.layer.out_capacity
    sizes = {
        "forward": p.layer.out_capacity * p.out_channels,
        "dgrad": p.layer.in_capacity * p.in_channels,
        "wgrad": math.prod(p.weight_shape),
    }
    written = sizes[p.product]
    read = sum(sizes.values()) - written
    element, result = (jnp.dtype(d).itemsize for d in (p.dtype, product_dtype(p.dtype)))
    return read * element + written * result + table * _INDEX_BYTES


class PairCounter:
    """Counts the pairs of maps, each map once."""

    def __init__(self) -> None:
        # By the table's identity, with the table, so that no other takes its place in memory.
        self._counted: dict[int, tuple[Any, int]] = {}
        self._estimated: dict[Hashable, int] = {}

    def count(self, views: Mapping[str, Any], problem: Problem) -> int:
        """The pairs of a map, from its arrays; of a dynamic problem, from its sizes."""
        if problem.layer.kind == "dynamic":
            return taps_of(problem, np.asarray(views["sizes"]))
        if "pair_starts" in views:  # by tap; the last is where all end
            return int(views["pair_starts"][-1])
        table = next(views[name] for name in _TABLES if name in views)
        if id(table) not in self._counted:
            self._counted[id(table)] = table, int((np.asarray(table) >= 0).sum())
        return self._counted[id(table)][1]

    def estimate(self, problem: Problem) -> int:
        """The pairs of a map like this problem's, on which the tuner would measure: a concrete one,
        else that of a recorded scene.
        """
        views = concrete_map(problem)
        if views is not None:
            return self.count(views, problem)
        if problem.layer.kind == "dynamic":
            return taps_of(problem, sizes_of(problem, None)[0])
        key = map_key(problem.layer), problem.layer.num_offsets
        if key not in self._estimated:
            self._estimated[key] = int((table_like(problem, None) >= 0).sum())
        return self._estimated[key]


def table_like(problem: Problem, views: Mapping[str, Any] | None) -> np.ndarray:
    """The table of neighbors of a forward product's map, from its arrays; without them that of a
    map like it, on which the tuner would measure."""
    for known in (views, concrete_map(problem)):
        if known is not None and "neighbors" in known:
            return np.asarray(known["neighbors"])
    return recorded_map(problem.layer)
