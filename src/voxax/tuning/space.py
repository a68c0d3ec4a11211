"""The candidates of a problem: admitted by the request, run by the hardware, served by views."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from voxax.geometry.kernel_maps import View
from voxax.hardware import HardwareInfo
from voxax.kernels import Kernel, Parameters, Problem, lookup
from voxax.tuning.entry import described, family_of, key_of
from voxax.tuning.request import Resolved

Identity = tuple[str, Parameters, int]
"""Algorithm, parameters and revision: what a measurement is filed under within an entry."""

_ANYWHERE = HardwareInfo(platform="any", device_kind="unknown")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One kernel with one set of parameters."""

    kernel: Kernel
    parameters: Parameters

    @property
    def identity(self) -> Identity:
        """The key of its measurement within an entry."""
        return self.kernel.name, self.parameters, self.kernel.revision

    def __str__(self) -> str:
        return described(self.kernel.name, self.parameters)


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

    @functools.cached_property
    def key(self) -> str:
        """What the problem's entry is filed under."""
        return key_of(self.problem)

    @functools.cached_property
    def family(self) -> str:
        """The beginning that the keys of similar problems share."""
        return family_of(self.problem)

    @functools.cached_property
    def reference(self) -> Candidate:
        """The candidate that every other must agree with."""
        return reference_of(self.problem)


def space_of(
    problem: Problem,
    admitted: Resolved,
    hardware: HardwareInfo,
    available_views: Iterable[str] | None = None,
) -> Space:
    """Build the :class:`Space` of a problem; ``available_views`` None means every view."""
    refused: list[tuple[str, str]] = []
    available = None if available_views is None else set(available_views)
    runnable: list[tuple[bool, Candidate, list[Candidate]]] = []
    for name in admitted:
        kernels, reason = _running(name, problem, hardware)
        found = [
            Candidate(kernel, parameters)
            for kernel in kernels
            for parameters in kernel.space(problem, hardware)
            if available is None or available.issuperset(kernel.views_of(problem, parameters))
        ]
        if not found:
            refused.append((name, reason or "the map came without the views it reads"))
            continue
        first = Candidate(kernels[0], kernels[0].heuristic(problem, hardware))
        # The form that it is preferred for may read views that did not come.
        preferred = first in found and first.kernel.preferred(problem, hardware)
        runnable.append((not preferred, first if first in found else found[0], found))
    runnable.sort(key=lambda item: item[0])
    return Space(
        problem,
        tuple(candidate for *_, found in runnable for candidate in found),
        tuple(taken for _, taken, _ in runnable),
        tuple(refused),
    )


def _running(
    name: str, problem: Problem, hardware: HardwareInfo
) -> tuple[list[Kernel], str | None]:
    """The kernels of an algorithm that run this problem, or none and the reason."""
    kernels = lookup(name, problem.layer.kind)
    running = [kernel for kernel in kernels if kernel.refusal(problem, hardware) is None]
    if not running:
        # The portable kernel's reason is the general one.
        portable = max(kernels, key=lambda kernel: kernel.platform == "any")
        return [], portable.refusal(problem, hardware)
    return [kernel for kernel in running if kernel.alone][:1] or running, None


def reference_of(problem: Problem) -> Candidate:
    """The candidate that every other must agree with: explicit_gemm as im2col, or its like."""
    name = {"depthwise": "explicit", "dynamic": "masked"}.get(problem.layer.kind, "explicit_gemm")
    reference = _portable(name, problem)
    assert reference is not None
    return reference


def _portable(name: str, problem: Problem) -> Candidate | None:
    """The kernel of an algorithm that runs on every platform, as it is taken unmeasured there."""
    for kernel in lookup(name, problem.layer.kind):
        if kernel.platform == "any":
            return Candidate(kernel, kernel.heuristic(problem, _ANYWHERE))
    return None


def views_read(problem: Problem, candidates: Iterable[Candidate]) -> dict[str, View | None]:
    """The arrays that the candidates read, by name, and what builds each (None: the map)."""
    views: dict[str, View | None] = {}
    for candidate in candidates:
        views.update(candidate.kernel.views_of(problem, candidate.parameters))
    return views


def views_of(
    requests: Iterable[tuple[Problem, Resolved]], hardware: HardwareInfo, every: bool
) -> dict[str, View | None]:
    """The arrays that the products of one layer may read, sorted by name, and their builders.

    Args:
      requests: each product's problem, and the algorithms that are admitted.
      hardware: the hardware that will most likely run them.
      every: arrays for all candidates; otherwise for those that are taken unmeasured, on this or
        on another platform.

    Returns:
      For each name what builds it; None for those that the map itself builds.
    """
    views: dict[str, View | None] = {}
    for problem, admitted in requests:
        space = space_of(problem, admitted, hardware)
        likely = space.candidates if every else space.heuristics[:1]
        elsewhere = (_portable(c.kernel.name, problem) or c for c in space.heuristics)
        views.update(views_read(problem, (*likely, *elsewhere)))
    return dict(sorted(views.items()))
