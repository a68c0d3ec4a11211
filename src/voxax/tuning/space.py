"""The candidates for a product of a layer: the kernels with parameters to choose from.

A candidate is admitted by the user's request, can run on the hardware, and reads only arrays that
the kernel map has.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from voxax.geometry.kernel_maps import View
from voxax.hardware import HardwareInfo
from voxax.kernels import Kernel, Parameters, Problem, lookup
from voxax.tuning.entry import described, key_of
from voxax.tuning.request import Resolved

Identity = tuple[str, Parameters, int]
"""Algorithm, parameters and revision: the key of a measurement within an entry of the cache."""

_ANYWHERE = HardwareInfo(platform="any", device_kind="unknown")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kernel with one set of values for its parameters, such as block sizes."""

    kernel: Kernel
    parameters: Parameters

    @property
    def identity(self) -> Identity:
        """Algorithm, parameters and revision: the key of a measurement within a cache entry."""
        return self.kernel.name, self.parameters, self.kernel.revision

    def __str__(self) -> str:
        return described(self.kernel.name, self.parameters)


@dataclasses.dataclass(frozen=True)
class Space:
    """All candidates (kernels with parameters) for one product, and the algorithms that cannot run.

    Attributes:
      problem: the product (forward, dgrad or wgrad of a layer) that the candidates compute.
      candidates: candidates that can run, one or more for each algorithm that is not refused.
        Algorithms that are preferred on this hardware come first, then the others; each group is in
        the order of the request.
      heuristics: for each algorithm in ``candidates``, in the same order, its default candidate,
        which is used if nothing was measured.
      refused: ``(name, reason)`` of each algorithm that the request admits but that cannot run.
      reference: the candidate whose result the others are compared with, see
        :func:`reference_of`. It need not be among ``candidates``.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    heuristics: tuple[Candidate, ...]
    refused: tuple[tuple[str, str], ...]
    reference: Candidate

    @functools.cached_property
    def key(self) -> str:
        """The key of the product's entry in the tuning cache."""
        return key_of(self.problem)


def space_of(
    problem: Problem,
    admitted: Resolved,
    hardware: HardwareInfo,
    available_views: Iterable[str] | None = None,
) -> Space:
    """Return the kernels with parameters that can compute a product (forward, dgrad or wgrad).

    Args:
      problem: the product to compute.
      admitted: names of the algorithms that the request admits.
      hardware: hardware that runs the product.
      available_views: names of the kernel map's arrays that are available; None means all.
    """
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
        # The candidate for which the algorithm is preferred may need arrays that are missing.
        preferred = first in found and first.kernel.preferred(problem, hardware)
        runnable.append((not preferred, first if first in found else found[0], found))
    runnable.sort(key=lambda item: item[0])
    return Space(
        problem,
        tuple(candidate for *_, found in runnable for candidate in found),
        tuple(taken for _, taken, _ in runnable),
        tuple(refused),
        reference_of(problem),
    )


def _running(
    name: str, problem: Problem, hardware: HardwareInfo
) -> tuple[list[Kernel], str | None]:
    """Return ``(kernels, None)`` of an algorithm that can run, or ``([], reason)`` if none can.

    The kernels are those called `name` that can compute `problem` on `hardware`. If one of them has
    the attribute ``alone``, it is the only one.
    """
    kernels = lookup(name, problem.layer.kind)
    running = [kernel for kernel in kernels if kernel.refusal(problem, hardware) is None]
    if not running:
        # Give the reason of the kernel for all platforms, because it is the most general one.
        portable = max(kernels, key=lambda kernel: kernel.platform == "any")
        return [], portable.refusal(problem, hardware)
    return [kernel for kernel in running if kernel.alone][:1] or running, None


def reference_of(problem: Problem) -> Candidate:
    """Return the candidate with whose result the results of all other candidates are compared.

    Its algorithm is ``explicit`` for depthwise layers, ``masked`` for dynamic convolutions, and
    otherwise ``explicit_gemm``. Its kernel is the one for all platforms.
    """
    name = {"depthwise": "explicit", "dynamic": "masked"}.get(problem.layer.kind, "explicit_gemm")
    reference = _portable(name, problem)
    assert reference is not None
    return reference


def _portable(name: str, problem: Problem) -> Candidate | None:
    """Return the kernel of the algorithm `name` for all platforms, with default parameters.

    The result is a candidate for `problem`, or None if the algorithm has no such kernel.
    """
    for kernel in lookup(name, problem.layer.kind):
        if kernel.platform == "any":
            return Candidate(kernel, kernel.heuristic(problem, _ANYWHERE))
    return None


def views_read(problem: Problem, candidates: Iterable[Candidate]) -> dict[str, View | None]:
    """Return the arrays of a kernel map that candidates for `problem` read, as ``{name: builder}``.

    A builder is a :class:`voxax.geometry.kernel_maps.View`, a recipe for the array. It is None for
    arrays that every kernel map can make itself.
    """
    views: dict[str, View | None] = {}
    for candidate in candidates:
        views.update(candidate.kernel.views_of(problem, candidate.parameters))
    return views


def views_of(
    requests: Iterable[tuple[Problem, Resolved]], hardware: HardwareInfo, every: bool
) -> dict[str, View | None]:
    """Return which arrays of a kernel map the products of one layer may read.

    Args:
      requests: a pair for each product (forward, dgrad, wgrad): the problem, and the algorithms
        that the user's request admits.
      hardware: the hardware that will most likely run the products.
      every: True returns the arrays of all candidates, False those of the default candidate of each
        product. The arrays of each algorithm's kernel for all platforms are always included.

    Returns:
      ``{name: builder or None}``, sorted by name, see :func:`views_read`.
    """
    views: dict[str, View | None] = {}
    for problem, admitted in requests:
        space = space_of(problem, admitted, hardware)
        likely = space.candidates if every else space.heuristics[:1]
        elsewhere = (_portable(c.kernel.name, problem) or c for c in space.heuristics)
        views.update(views_read(problem, (*likely, *elsewhere)))
    return dict(sorted(views.items()))
