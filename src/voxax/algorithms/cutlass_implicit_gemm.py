"""cutlass_implicit_gemm: NVIDIA CUTLASS on GPUs. Registered; its kernels are not written yet.

The name and its parameters are known, so that requests which list it beside others work today
and need no change later.
"""

from __future__ import annotations

import itertools

import jax

from voxax.algorithms.base import Algorithm, Parameters, Problem, Product
from voxax.algorithms.rows import EVERY_PRODUCT, table_views
from voxax.errors import AlgorithmError
from voxax.hardware import HardwareInfo

_SPACE: tuple[Parameters, ...] = tuple(
    (("accumulator_type", "float32"), ("mma_tile", tile), ("split_k_slices", slices))
    for tile, slices in itertools.product((0, 1, 2, 3), (1, 2, 4, 8))
)


def _supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    del hardware
    if problem.platform != "gpu":
        return f"runs on NVIDIA GPUs only, not on {problem.platform}"
    return "its kernels are not part of this version of voxax"


def _space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    del problem, hardware
    return _SPACE


def _heuristic(problem: Problem, hardware: HardwareInfo) -> Parameters:
    del problem, hardware
    return _SPACE[0]


def _views(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    del parameters
    return table_views(product, symmetric)


def _apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    del parameters, a, b, views
    raise AlgorithmError(f"cutlass_implicit_gemm cannot run {problem.product}: it has no kernels")


ALGORITHM = Algorithm(
    name="cutlass_implicit_gemm",
    kinds=frozenset({"dense", "grouped"}),
    products=EVERY_PRODUCT,
    platforms=frozenset({"any"}),
    revision=1,
    supports=_supports,
    space=_space,
    heuristic=_heuristic,
    views=_views,
    forms=((),),
    apply=_apply,
)
