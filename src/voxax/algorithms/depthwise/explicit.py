"""explicit: explicit_gemm with one filter per channel. Its formulations take any kind of weight."""

from __future__ import annotations

import dataclasses

from voxax.algorithms import explicit_gemm

ALGORITHM = dataclasses.replace(
    explicit_gemm.ALGORITHM, name="explicit", kinds=frozenset({"depthwise"})
)
