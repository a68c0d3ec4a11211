"""implicit_gemm: gather tile by tile inside the computation, never the whole matrix."""

from __future__ import annotations

from voxax.algorithms.base import Algorithm
from voxax.algorithms.implicit_gemm import bodies, gpu, tpu, xla
from voxax.algorithms.rows import EVERY_PRODUCT

ALGORITHM = Algorithm(
    name="implicit_gemm",
    kinds=frozenset({"dense", "grouped"}),
    products=EVERY_PRODUCT,
    platforms=frozenset({"any"}),
    revision=1,
    supports=xla.supports,
    space=bodies.space,
    heuristic=bodies.heuristic,
    views=bodies.views,
    forms=((), tpu.FORM, gpu.FORM),
    apply=bodies.apply,
    preferred=bodies.preferred,
)
