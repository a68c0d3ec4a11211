"""explicit_gemm: gather rows, multiply dense, accumulate. Portable; every other's oracle."""

from __future__ import annotations

from voxax.algorithms.base import Algorithm
from voxax.algorithms.explicit_gemm import formulations
from voxax.algorithms.rows import EVERY_PRODUCT

ALGORITHM = Algorithm(
    name="explicit_gemm",
    kinds=frozenset({"dense", "grouped"}),
    products=EVERY_PRODUCT,
    platforms=frozenset({"any"}),
    revision=1,
    supports=formulations.supports,
    space=formulations.space,
    heuristic=formulations.heuristic,
    views=formulations.views,
    forms=formulations.FORMS,
    apply=formulations.apply,
)
