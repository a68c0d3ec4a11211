"""The candidates of a problem: admitted by the request, run by the hardware, served by views."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from voxax.algorithms import Algorithm, Parameters, Problem, lookup
from voxax.hardware import HardwareInfo
from voxax.tuning.entry import described
from voxax.tuning.request import Resolved

Identity = tuple[str, Parameters, int]
"""Algorithm, parameters and revision: what a measurement is filed under within an entry."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One algorithm with one set of parameters."""

    algorithm: Algorithm
    parameters: Parameters

    @property
    def identity(self) -> Identity:
        """The key of its measurement within an entry."""
        return self.algorithm.name, self.parameters, self.algorithm.revision

    def __str__(self) -> str:
        return described(self.algorithm.name, self.parameters)


@dataclasses.dataclass(frozen=True)
class Space:
    """Candidates, the promising ones first, and why other algorithms are not among them.

    Attributes:
      problem: the product that they compute.
      candidates: runnable, at least one for each algorithm that is not refused. Algorithms that
        are preferred on this hardware come first, the others in the request's order.
      heuristics: the candidate to take unmeasured, of each algorithm in the same order.
      refused: ``(algorithm's name, reason)``.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    heuristics: tuple[Candidate, ...]
    refused: tuple[tuple[str, str], ...]


def space_of(
    problem: Problem,
    admitted: Resolved,
    hardware: HardwareInfo,
    available_views: Iterable[str] | None = None,
) -> Space:
    """Build the :class:`Space` of a problem; ``available_views`` None means every view."""
    refused: list[tuple[str, str]] = []
    available = None if available_views is None else set(available_views)

    def served(parameters: Parameters, algorithm: Algorithm) -> bool:
        needed = algorithm.views(parameters, problem.product, problem.symmetric)
        return available is None or available.issuperset(needed)

    runnable: list[tuple[bool, Candidate, list[Parameters]]] = []
    for algorithm in (lookup(name, problem.kind) for name in admitted):
        name, reason = algorithm.name, refusal(algorithm, problem, hardware)
        if reason is None:
            found = [p for p in algorithm.space(problem, hardware) if served(p, algorithm)]
            if not found:
                reason = "the map came without the views it reads"
        if reason is not None:
            refused.append((name, reason))
            continue
        first = algorithm.heuristic(problem, hardware)
        # The form that it is preferred for may read views that did not come.
        preferred = first in found and algorithm.preferred(problem, hardware)
        taken = Candidate(algorithm, first if first in found else found[0])
        runnable.append((not preferred, taken, found))
    runnable.sort(key=lambda item: item[0])
    return Space(
        problem,
        tuple(Candidate(taken.algorithm, p) for _, taken, found in runnable for p in found),
        tuple(taken for _, taken, _ in runnable),
        tuple(refused),
    )


def reference_of(problem: Problem) -> Candidate:
    """The candidate that every other must agree with: explicit_gemm as im2col, or its like."""
    name = {"depthwise": "explicit", "dynamic": "masked"}.get(problem.kind, "explicit_gemm")
    algorithm = lookup(name, problem.kind)
    return Candidate(algorithm, algorithm.forms[0])


def refusal(algorithm: Algorithm, problem: Problem, hardware: HardwareInfo) -> str | None:
    """The reason why the algorithm cannot run this problem, or None."""
    if problem.product not in algorithm.products:
        return f"does not compute {problem.product}"
    if not algorithm.platforms & {"any", problem.platform}:
        return f"does not run on {problem.platform}"
    return algorithm.supports(problem, hardware)


def views_of(
    requests: Iterable[tuple[Problem, Resolved]], hardware: HardwareInfo, every: bool
) -> tuple[str, ...]:
    """Names of the views that the products of one layer may read, sorted.

    Args:
      requests: each product's problem, and the algorithms that are admitted.
      hardware: the hardware that will most likely run them.
      every: names for all candidates; otherwise for those that are taken unmeasured, on this or on
        another platform.
    """
    names: set[str] = set()
    for problem, admitted in requests:
        space = space_of(problem, admitted, hardware)
        likely = space.candidates if every else space.heuristics[:1]
        elsewhere = (Candidate(c.algorithm, c.algorithm.forms[0]) for c in space.heuristics)
        for c in (*likely, *elsewhere):
            names.update(c.algorithm.views(c.parameters, problem.product, problem.symmetric))
    return tuple(sorted(names))
