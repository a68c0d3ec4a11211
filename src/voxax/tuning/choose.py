"""Choosing an algorithm for a problem.

========================================  =======================================
among the admitted algorithms             choice
========================================  =======================================
some run this product on this platform    the first of them, in the request's order
none does                                 :class:`AlgorithmError` with every reason
========================================  =======================================
"""

from __future__ import annotations

from voxax.algorithms import Algorithm, Problem, lookup
from voxax.errors import AlgorithmError
from voxax.tuning.request import Resolved


def choose(problem: Problem, admitted: Resolved) -> Algorithm:
    """The algorithm to execute ``problem`` with; see the table above.

    Raises:
      AlgorithmError: every admitted algorithm refuses; all reasons are given at once.
    """
    reasons = []
    for name in admitted:
        algorithm = lookup(name)
        reason = _refusal(algorithm, problem)
        if reason is None:
            return algorithm
        reasons.append(f"{name}: {reason}")
    raise AlgorithmError(
        f"no admitted algorithm runs {problem.product} on {problem.platform}: " + "; ".join(reasons)
    )


def _refusal(algorithm: Algorithm, problem: Problem) -> str | None:
    if problem.product not in algorithm.products:
        return f"does not compute {problem.product}"
    if not algorithm.platforms & {"any", problem.platform}:
        return f"does not run on {problem.platform}"
    return algorithm.supports(problem)
