"""The tuner's decision as a pure function of the candidates, the cached entry and the policy.

:func:`decide` reads no clock, file, lock or device. It returns a choice, and whether candidates
must be checked or measured before the choice is used. :mod:`voxax.tuning.tuner` checks or measures
them and calls :func:`decide` again; the docstring of that module has the table of decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

from voxax.errors import AlgorithmError
from voxax.kernels import Kernel, Parameters, Problem
from voxax.tuning.entry import Entry, described
from voxax.tuning.request import AutotuneMode
from voxax.tuning.space import Candidate, Identity, Space

Source = Literal["measured", "cached", "shipped", "predicted", "pinned"]
"""Why an algorithm was chosen. ``measured``: it was the fastest in a measurement just now;
``cached``: in an earlier run on this device; ``shipped``: in measurements shipped with voxax.
``predicted``: it was chosen without a measurement. ``pinned``: it is the only candidate."""

Pending = Literal["check", "measure"] | None
"""What must be done before a choice may be used. ``check``: compare its result with that of the
reference algorithm. ``measure``: measure all candidates. None: the choice is final."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The kernel and parameters that the tuner chose for one product of a layer.

    Attributes:
      problem: the product (forward, dgrad or wgrad) that is executed.
      kernel, parameters: the kernel that executes the product, and its parameters.
      source: why the kernel was chosen, see :data:`Source`.
      seconds: measured time of one call, or None.
      entry: the cache's entry of this problem, or None.
      refused: ``(name, reason)`` of each algorithm that the request admits but that cannot run.
      pending: what must be done before the choice may be used, see :data:`Pending`.
    """

    problem: Problem
    kernel: Kernel
    parameters: Parameters
    source: Source
    seconds: float | None = None
    entry: Entry | None = None
    refused: tuple[tuple[str, str], ...] = ()
    pending: Pending = None

    @property
    def algorithm(self) -> str:
        """The name of the kernel's algorithm."""
        return self.kernel.name

    @property
    def candidate(self) -> Candidate:
        """The chosen kernel with its parameters."""
        return Candidate(self.kernel, self.parameters)

    def __str__(self) -> str:
        return described(self.algorithm, self.parameters)


@dataclasses.dataclass(frozen=True)
class Policy:
    """Input of :func:`decide`: what the tuner may do for a problem, and what was done so far.

    Attributes:
      mode: ``on``, ``cached`` or ``off``, as in ``VOXAX_AUTOTUNE``.
      has_device: whether candidates can be checked and measured in this process.
      ruled: whether the user made no request, and the default candidate is known to be the fastest.
      foreseen: True if the choice is only for a report, and no program will use it. Then nothing is
        checked or measured. If there is only one candidate, its time is from the user's cache.
      measured: whether the cache entry of the problem was measured just now.
      rejected: candidates that must not be used on this device, with the reasons.
    """

    mode: AutotuneMode
    has_device: bool
    ruled: bool = False
    foreseen: bool = False
    measured: bool = False
    rejected: Mapping[Identity, str] = dataclasses.field(default_factory=dict)


def decide(space: Space, entry: Entry | None, policy: Policy) -> Choice:
    """Choose a kernel and its parameters for a product, by the table in :mod:`voxax.tuning.tuner`.

    Args:
      space: the candidates (kernels with parameters) that the user's request admits.
      entry: the cache's entry of the problem, or None.
      policy: what the tuner may do, and what was done so far.

    Raises:
      AlgorithmError: no candidate can run; the message lists every reason.
    """
    if not space.candidates:
        raise AlgorithmError(_nothing_left(space.problem, space.refused, None))
    pinned, off = len(space.candidates) == 1, policy.mode == "off"
    own = entry is not None and entry.source == "measured"
    if off or (pinned and not (own and policy.foreseen)):
        entry = None
    known = {} if entry is None else {m.candidate: m for m in entry.measured}
    if entry is not None and not pinned and space.heuristics[0].identity not in known:
        # A prediction without the default belongs to other kernels, or to a device with another
        # number of cores. A measurement without the default was made while another algorithm was
        # pinned, among the forms of that algorithm.
        useless = entry.predicted or (policy.ruled and policy.mode == "cached")
        entry, known = (None, {}) if useless else (entry, known)
    records = [known.get(candidate.identity) for candidate in space.candidates]
    # The fastest candidate that was measured completely, or else the best one given up early.
    timed = [
        (m.verdict != "ok", m.seconds, number)
        for number, m in enumerate(records)
        if m is not None and m.verdict in ("ok", "slow")
    ]
    given_up, seconds, best = min(timed, default=(True, None, None))
    refused = space.refused
    if entry is None or best is None:
        if policy.measured:
            raise AlgorithmError(_nothing_left(space.problem, refused, entry))
        candidate, refused = _default(space, policy)
        source: Source = "predicted"
    else:
        candidate = space.candidates[best]
        if candidate.identity in policy.rejected and not own:
            return decide(space, None, policy)
        source = ("measured" if policy.measured else "cached") if own else "shipped"
        if entry.predicted:
            source, seconds = "predicted", None
    source = "pinned" if pinned else source
    pending: Pending = None
    unknown = given_up or None in records or (entry is not None and entry.predicted)
    if policy.mode == "on" and policy.has_device and unknown and not (pinned or policy.measured):
        source, seconds, pending = "predicted", None, "measure"
    # Times of other devices and predictions do not show that results are right on this device.
    elif policy.has_device and not off and source not in ("measured", "cached"):
        pending = None if candidate == space.reference else "check"
    pending = None if policy.foreseen else pending
    how = candidate.kernel, candidate.parameters
    return Choice(space.problem, *how, source, seconds, entry, refused, pending)


def _default(space: Space, policy: Policy) -> tuple[Candidate, tuple[tuple[str, str], ...]]:
    """Return the first candidate that `policy` does not reject, and the reasons against others.

    The candidates of `space` are considered in this order: the default candidate of each algorithm,
    the reference that all results are compared with, all others. If results cannot be checked,
    kernels that never ran on a device come last among the default candidates. The second result has
    ``(name, reason)`` of each refused algorithm, and of each rejected candidate that comes before
    the returned one.
    """
    unchecked = policy.mode == "off" or not policy.has_device
    heuristics = sorted(space.heuristics, key=lambda c: unchecked and c.kernel.unproven)
    refused = space.refused
    rest = sorted(space.candidates, key=lambda c: c != space.reference)
    for candidate in dict.fromkeys((*heuristics, *rest)):
        if candidate.identity not in policy.rejected:
            return candidate, refused
        refused = (*refused, (str(candidate), policy.rejected[candidate.identity]))
    raise AlgorithmError(_nothing_left(space.problem, refused, None))


def _nothing_left(problem: Problem, refused: Iterable[tuple[str, str]], entry: Entry | None) -> str:
    """Return an error message that lists why no candidate can compute the product in `problem`.

    The reasons are the pairs ``(name, reason)`` in `refused`, for algorithms or candidates, and the
    failed and rejected measurements in `entry`, if it is given.
    """
    reasons = [f"{name}: {reason}" for name, reason in refused]
    for measured in () if entry is None else entry.measured:
        if measured.verdict in ("failed", "rejected"):
            reasons.append(f"{measured}: {measured.verdict}, {measured.reason}")
    return f"no admitted algorithm runs {problem.product} on {problem.platform}: " + (
        "; ".join(reasons) or "none was measured"
    )
