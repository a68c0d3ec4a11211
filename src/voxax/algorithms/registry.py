"""The only list of algorithms. A new one is one file and one line here."""

from __future__ import annotations

from voxax.algorithms import cutlass_implicit_gemm, explicit_gemm, implicit_gemm
from voxax.algorithms.base import Algorithm, WeightKind
from voxax.algorithms.depthwise import explicit, implicit
from voxax.algorithms.dynamic import grouped, masked, selected
from voxax.errors import AlgorithmError

ALGORITHMS: tuple[Algorithm, ...] = (
    explicit_gemm.ALGORITHM,
    implicit_gemm.ALGORITHM,
    cutlass_implicit_gemm.ALGORITHM,
    explicit.ALGORITHM,
    implicit.ALGORITHM,
    grouped.GROUPED,
    masked.MASKED,
    masked.TILED,
    selected.ALGORITHM,
    grouped.SPECIALISED,
)


def names(kind: WeightKind = "dense") -> tuple[str, ...]:
    """Registered names for weights of this kind, in order of preference."""
    return tuple(algorithm.name for algorithm in ALGORITHMS if kind in algorithm.kinds)


def lookup(name: str, kind: WeightKind = "dense") -> Algorithm:
    """The algorithm called ``name`` for weights of this kind.

    Raises:
      AlgorithmError: unknown; lists the known names.
    """
    for algorithm in ALGORITHMS:
        if algorithm.name == name and kind in algorithm.kinds:
            return algorithm
    raise AlgorithmError(f"unknown algorithm {name!r}; known: {', '.join(names(kind))}")
