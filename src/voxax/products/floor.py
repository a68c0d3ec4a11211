"""The least time that the hardware allows a product.

The roofline of Williams, Waterman, Patterson, "Roofline: an insightful visual performance model",
CACM 2009: a product takes at least the time of its arithmetic at the rate of the device's best
dense matrix product, and at least that of its bytes at the bandwidth of a copy.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import jax.numpy as jnp

from voxax.algorithms import Problem
from voxax.geometry.dtypes import product_dtype
from voxax.hardware import HardwareInfo

Bound = Literal["compute", "memory"]

# Their values are float32's too, so its products are theirs.
_HALVES = ("bfloat16", "float16")
_INDEX_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Floor:
    """What a product has to do, and how fast that could be.

    Attributes:
      operations: multiplications and additions over the pairs that exist; missing neighbours and
        padding count for nothing.
      bytes: features, gradients, weights, results and the table of neighbours, each once and at
        its full capacity. A product that is mostly padding and skips it, or whose operands are
        in a cache, may beat a floor that is set by memory.
      seconds: the greater of ``operations`` over the matrix rate and ``bytes`` over the
        bandwidth; None unless both are known.
      bound: which of the two gives ``seconds``; None without.
    """

    operations: int
    bytes: int
    seconds: float | None
    bound: Bound | None


def floor_of(problem: Problem, pairs: int, hardware: HardwareInfo | None) -> Floor:
    """The floor of a product over ``pairs`` pairs of the map; ``hardware`` None is unknown."""
    p = problem
    channels = (
        p.in_channels if p.kind == "depthwise" else p.in_channels * p.out_channels // p.groups
    )
    operations, size = 2 * pairs * channels, _bytes(p)
    rate = None if hardware is None else matrix_rate(p.dtype, hardware)
    bandwidth = None if hardware is None else hardware.memory_bandwidth
    if not rate or not bandwidth:
        return Floor(operations, size, None, None)
    compute, memory = operations / rate, size / bandwidth
    return Floor(
        operations, size, max(compute, memory), "compute" if compute > memory else "memory"
    )


def matrix_rate(dtype: str, hardware: HardwareInfo) -> float | None:
    """Operations per second of the best dense product of ``dtype``; None if unknown."""
    names = (dtype, "float32") if dtype in _HALVES else (dtype,)
    known = [rate for name in names if (rate := hardware.peak_rate(name))]
    return max(known, default=None)


def _bytes(p: Problem) -> int:
    # A symmetric map's transpose is the same table.
    transposed = p.product == "dgrad" and not p.symmetric
    table = p.num_offsets * (p.in_capacity if transposed else p.out_capacity)
    sizes = {
        "forward": p.out_capacity * p.out_channels,
        "dgrad": p.in_capacity * p.in_channels,
        "wgrad": math.prod(p.weight_shape),
    }
    written = sizes[p.product]
    read = sum(sizes.values()) - written
    element, result = (jnp.dtype(d).itemsize for d in (p.dtype, product_dtype(p.dtype)))
    return read * element + written * result + table * _INDEX_BYTES
