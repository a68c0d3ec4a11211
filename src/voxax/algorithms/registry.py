"""The only list of algorithms. A new one is one file and one line here."""

from __future__ import annotations

from voxax.algorithms import explicit_gemm
from voxax.algorithms.base import Algorithm
from voxax.errors import AlgorithmError

ALGORITHMS: tuple[Algorithm, ...] = (explicit_gemm.ALGORITHM,)


def names() -> tuple[str, ...]:
    """Every registered name, in order of preference."""
    return tuple(algorithm.name for algorithm in ALGORITHMS)


def lookup(name: str) -> Algorithm:
    """The algorithm called ``name``.

    Raises:
      AlgorithmError: unknown; lists the known names.
    """
    for algorithm in ALGORITHMS:
        if algorithm.name == name:
            return algorithm
    raise AlgorithmError(f"unknown algorithm {name!r}; known: {', '.join(names())}")
