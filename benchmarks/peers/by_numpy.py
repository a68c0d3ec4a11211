"""NumPy: the dense product alone."""

from __future__ import annotations

import numpy as np
from cases import Case
from contestant import Contestant, Makers, sgemm_operands


def setup(threads: int) -> None:
    del threads  # OPENBLAS_NUM_THREADS says so


def forget() -> dict[str, int]:
    return {}


def versions() -> dict[str, str]:
    return {"NumPy": np.__version__}


def sgemm() -> Contestant:
    a, b = sgemm_operands()
    return Contestant(lambda: a @ b, lambda result: {"out": result})


def contestants(case: Case, arrays: dict[str, np.ndarray]) -> Makers:
    del case, arrays
    return {}
