"""implicit: implicit_gemm with one filter per channel. Its bodies take any kind of weight."""

from __future__ import annotations

import dataclasses

from voxax.algorithms import implicit_gemm

ALGORITHM = dataclasses.replace(
    implicit_gemm.ALGORITHM, name="implicit", kinds=frozenset({"depthwise"})
)
