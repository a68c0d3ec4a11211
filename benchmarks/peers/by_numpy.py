"""NumPy: the dense product alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.peers.cases import Contestant, sgemm_operands


def versions() -> dict[str, str]:
    return {"NumPy": np.__version__}


def sgemm() -> Contestant:
    a, b = sgemm_operands()
    return Contestant(lambda: a @ b, lambda result: {"out": result})


def contestants(case: Any, arrays: Any) -> dict[str, Any]:
    return {}
