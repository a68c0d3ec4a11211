"""implicit: implicit_gemm with one filter per channel. Its tiles take any kind of weight."""

from __future__ import annotations

from voxax.algorithms.base import Algorithm
from voxax.algorithms.implicit_gemm import xla
from voxax.algorithms.rows import EVERY_PRODUCT

ALGORITHM = Algorithm(
    name="implicit",
    kinds=frozenset({"depthwise"}),
    products=EVERY_PRODUCT,
    platforms=frozenset({"any"}),
    revision=1,
    supports=xla.supports,
    space=xla.space,
    heuristic=xla.heuristic,
    views=xla.views,
    forms=((),),
    apply=xla.apply,
)
