"""The formulations as one parameter: three for all kinds of weights, and one of TPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from voxax.algorithms.base import Parameters, Problem, Product
from voxax.algorithms.explicit_gemm import sparse_core
from voxax.algorithms.explicit_gemm.im2col import im2col
from voxax.algorithms.explicit_gemm.output_stationary import output_stationary
from voxax.algorithms.explicit_gemm.pair_lists import pair_lists
from voxax.algorithms.rows import table_views, unsupported_dtype
from voxax.geometry import PAIR_ROOM
from voxax.hardware import HardwareInfo

IM2COL: Parameters = (("formulation", "im2col"),)
OUTPUT_STATIONARY: Parameters = (("formulation", "output_stationary"),)
BLOCKS = (256, 1024, PAIR_ROOM)
# Blocks of so many rows of a level and more are mostly empty; of so few, mostly overhead.
_EMPTY, _OVERHEAD = 1, 64
# Below so many rows lists do not pay.
_FEW_ROWS = 512


def pair_list_parameters(block: int) -> Parameters:
    """Pair lists in blocks of so many pairs."""
    return (("block", block), ("formulation", "pair_lists"))


FORMS = (IM2COL, pair_list_parameters(BLOCKS[0]))


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Anything that XLA multiplies."""
    del hardware
    return unsupported_dtype(problem)


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """The heuristic first, then im2col, which every other is checked against anyway.

    Not on CPUs: the output-stationary sum, whose passes over all output rows go through memory
    there. In 21 workloads of benchmarks/tuning.py it was never the fastest, and took 2.8 times the
    best in the mean, 7.2 at worst (2 cores of an AMD EPYC, Zen 3, shared). SparseCores come last:
    how fast they gather, no one has measured.
    """
    blocks = map(pair_list_parameters, _blocks(problem))
    rest = () if hardware.platform == "cpu" else (OUTPUT_STATIONARY,)
    rest += sparse_core.space(problem, hardware)
    return tuple(dict.fromkeys((heuristic(problem, hardware), IM2COL, *blocks, *rest)))


def heuristic(problem: Problem, hardware: HardwareInfo) -> Parameters:
    """On a CPU pair lists, in blocks whose gathered rows stay in cache; elsewhere im2col.

    im2col also for few rows: 14 ms against 24 in blocks of 1024 for 320 rows, 128 -> 256 channels
    (2 cores of an AMD EPYC, Zen 3), and its programs are compiled in two thirds of the time.
    """
    blocks = _blocks(problem)
    rows = max(problem.in_capacity, problem.out_capacity)
    if hardware.platform != "cpu" or not blocks or rows < _FEW_ROWS:
        return IM2COL
    # About a sixth of the rows have any one tap, and 256 KiB of gathered rows stay in cache.
    bytes_per_row = max(problem.in_channels, problem.out_channels) * np.dtype(np.float32).itemsize
    ideal = min(rows / 6, 2**18 / max(bytes_per_row, 1))
    return pair_list_parameters(min(blocks, key=lambda b: abs(math.log(b / max(ideal, 1)))))


def _blocks(problem: Problem) -> tuple[int, ...]:
    if problem.out_capacity * problem.num_offsets + PAIR_ROOM >= 2**31:  # int32 positions
        return ()
    rows = max(problem.in_capacity, problem.out_capacity)
    fitting = [b for b in BLOCKS if _EMPTY * b <= rows <= _OVERHEAD * b]
    return tuple(fitting) or (BLOCKS[0] if rows < BLOCKS[0] else BLOCKS[-1],)


def views(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """Pair lists, or the neighbour table of the side that is written."""
    if dict(parameters)["formulation"] == "pair_lists":
        return ("pair_starts", "pairs")
    return table_views(product, symmetric)


def apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    """Run the formulation that ``parameters`` name."""
    values = dict(parameters)
    if values["formulation"] == "sparse_core":
        return sparse_core.apply(problem, parameters, a, b, views)
    run: Callable[..., jax.Array] = {
        "im2col": im2col,
        "output_stationary": output_stationary,
        "pair_lists": partial(_pair_lists, int(values.get("block", BLOCKS[0]))),
    }[str(values["formulation"])]
    return run(problem, a, b, views)


def _pair_lists(
    block: int, problem: Problem, a: jax.Array, b: jax.Array, views: dict[str, jax.Array]
) -> jax.Array:
    return pair_lists(problem, block, a, b, views)
