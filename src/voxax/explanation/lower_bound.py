"""Lower bound of the time that a product (forward, dgrad or wgrad of a layer) takes on a device.

The bound is the roofline of Williams, Waterman, Patterson, "Roofline: an insightful visual
performance model", CACM 2009. A product takes at least the time of its arithmetic at the rate of
the device's best dense matrix product, and at least the time of moving its bytes at the bandwidth
of a copy. The arithmetic is counted over the pairs of an input row and an output row in the map.
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
# Names of ``jax.lax.Precision`` with all digits of float32.
_FULL = ("highest", "float32", "F32_F32_F32")
_INDEX_BYTES = 4
_TABLES = ("neighbors", "transposed_neighbors")


@dataclasses.dataclass(frozen=True)
class LowerBound:
    """The work of a product (forward, dgrad or wgrad of a layer), and the least time for it.

    Attributes:
      operations: number of multiplications and additions over the pairs that exist; missing
        neighbors and padding are not counted.
      bytes: size of the operands, the result and the table of neighbors (in a dynamic convolution,
        the kernel sizes instead of the table), each counted once at full capacity. A product that
        skips much padding, or has its operands in a cache, may be faster than this.
      seconds: the greater of ``operations / matrix rate`` and ``bytes / bandwidth``; None unless
        both rates are known.
      bound: the greater of these two times: ``compute`` for the operations, ``memory`` for the
        bytes; None if ``seconds`` is None.
    """

    operations: int
    bytes: int
    seconds: float | None
    bound: Bound | None


def lower_bound_of(problem: Problem, pairs: int, hardware: HardwareInfo | None) -> LowerBound:
    """Return the work of a product, and the least time that a device needs for it.

    Args:
      problem: the product (forward, dgrad or wgrad of a layer).
      pairs: number of (input row, output row) pairs in its kernel map.
      hardware: facts about the device; None leaves the time unknown.
    """
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
    """Return the operations per second of the fastest dense matrix product that could be used.

    The result is None if the rate is unknown. A product of half precision may also run in float32.
    A float32 product at less than the highest precision may also run in half precision. If the rate
    of half precision is unknown, CPUs take the rate of float32; other devices are several times as
    fast in half precision, so their result is None.

    Args:
      dtype: name of the operands' dtype.
      precision: name of a ``jax.lax.Precision``; matters for float32 only.
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
    """Counter of the (input row, output row) pairs of kernel maps, with a cache of counted maps."""

    def __init__(self) -> None:
        # By the id of the table. The table is kept too, so that no other one gets the same id.
        self._counted: dict[int, tuple[Any, int]] = {}
        self._estimated: dict[Hashable, int] = {}

    def count(self, views: Mapping[str, Any], problem: Problem) -> int:
        """Return the number of pairs in the kernel map of `problem`, whose arrays are `views`."""
        if problem.layer.kind == "dynamic":
            return taps_of(problem, np.asarray(views["sizes"]))
        if "pair_starts" in views:  # by tap; the last element is the number of all pairs
            return int(views["pair_starts"][-1])
        table = next(views[name] for name in _TABLES if name in views)
        if id(table) not in self._counted:
            self._counted[id(table)] = table, int((np.asarray(table) >= 0).sum())
        return self._counted[id(table)][1]

    def estimate(self, problem: Problem) -> int:
        """Return the number of pairs of the map on which the tuner would measure this problem.

        It is the concrete map of an earlier call of an equal layer. Without such a call, it is the
        map of a recorded scene. For a dynamic convolution, kernel sizes take the place of the map;
        without an earlier call they are made up, see :func:`voxax.tuning.sample.sizes_of`.
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
    """Return the table of neighbors of a forward product's map, ``int32[rows, taps]``.

    Args:
      problem: the product.
      views: the arrays of the map by name, or None. If they have no ``neighbors``, the result is
        the table of another map: the one on which the tuner would measure `problem`.
    """
    for known in (views, concrete_map(problem)):
        if known is not None and "neighbors" in known:
            return np.asarray(known["neighbors"])
    return recorded_map(problem.layer)
