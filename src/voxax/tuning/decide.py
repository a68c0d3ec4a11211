"""The tuner's decision: a pure function of the candidates, of what is known and what may be done.

:func:`decide` reads no clock, file, lock or device. It answers with a choice, and says whether that
must be checked or measured before it is used; :mod:`voxax.tuning.tuner` does so and asks again.
The table of decisions stands there.
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
"""``measured``: just now, on this hardware. ``cached``: by an earlier run. ``shipped``: with voxax,
on hardware of this kind. ``predicted``: without measuring. ``pinned``: the only candidate."""

Pending = Literal["check", "measure"] | None
"""The step before a choice may be used: compare its result with the reference's, or measure all
candidates. None: the choice stands."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A decision about one problem.

    Attributes:
      problem: the product that is executed.
      kernel, parameters: how it is executed.
      source: where the decision comes from.
      seconds: measured time of one call, or None.
      entry: everything measured about this problem, or None.
      refused: ``(name, reason)`` of admitted algorithms that cannot run.
      pending: see :data:`Pending`.
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
    """The means that the tuner has for a problem, and what it found with them so far.

    Attributes:
      mode: ``VOXAX_AUTOTUNE``.
      has_device: candidates can be checked and measured here.
      ruled: nothing is requested, and the first heuristic is known to be the fastest.
      foreseen: the choice is told and not used: nothing is checked or measured for it, and a
        pinned candidate comes with the time that the user's cache has of it.
      measured: the entry was measured just now.
      rejected: candidates that must not be used on this device, with the reason.
    """

    mode: AutotuneMode
    has_device: bool
    ruled: bool = False
    foreseen: bool = False
    measured: bool = False
    rejected: Mapping[Identity, str] = dataclasses.field(default_factory=dict)


def decide(space: Space, entry: Entry | None, policy: Policy) -> Choice:
    """Choose among the candidates of ``space``; see the table in :mod:`voxax.tuning.tuner`.

    Args:
      space: the candidates that the request admits.
      entry: what the cache knows of the problem, or None.
      policy: what may be done about it.

    Raises:
      AlgorithmError: no candidate can run; the message has every reason.
    """
    if not space.candidates:
        raise AlgorithmError(_nothing_left(space.problem, space.refused, None))
    pinned, off = len(space.candidates) == 1, policy.mode == "off"
    own = entry is not None and entry.source == "measured"
    if off or (pinned and not (own and policy.foreseen)):
        entry = None
    known = {} if entry is None else {m.candidate: m for m in entry.measured}
    if entry is not None and not pinned and space.heuristics[0].identity not in known:
        # A prediction without the default is of other kernels, or of a device with other cores. A
        # measurement without it is what a pin of another algorithm measured among its own forms.
        useless = entry.predicted or (policy.ruled and policy.mode == "cached")
        entry, known = (None, {}) if useless else (entry, known)
    records = [known.get(candidate.identity) for candidate in space.candidates]
    # The fastest that ran to the end; without one, the best that was given up early.
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
    # Times of other devices, and predictions, say nothing about results on this one.
    elif policy.has_device and not off and source not in ("measured", "cached"):
        pending = None if candidate == space.reference else "check"
    pending = None if policy.foreseen else pending
    how = candidate.kernel, candidate.parameters
    return Choice(space.problem, *how, source, seconds, entry, refused, pending)


def _default(space: Space, policy: Policy) -> tuple[Candidate, tuple[tuple[str, str], ...]]:
    """The first heuristic that was not rejected, then the reference, then any other candidate;
    with the refusals of those before. Where nothing is compared, unproven kernels come last."""
    unchecked = policy.mode == "off" or not policy.has_device
    heuristics = sorted(space.heuristics, key=lambda c: unchecked and c.kernel.unproven)
    rest, refused = sorted(space.candidates, key=lambda c: c != space.reference), space.refused
    for candidate in dict.fromkeys((*heuristics, *rest)):
        if candidate.identity not in policy.rejected:
            return candidate, refused
        refused = (*refused, (str(candidate), policy.rejected[candidate.identity]))
    raise AlgorithmError(_nothing_left(space.problem, refused, None))


def _nothing_left(problem: Problem, refused: Iterable[tuple[str, str]], entry: Entry | None) -> str:
    """The message of an error: every reason why no admitted candidate can run."""
    reasons = [f"{name}: {reason}" for name, reason in refused]
    for measured in () if entry is None else entry.measured:
        if measured.verdict in ("failed", "rejected"):
            reasons.append(f"{measured}: {measured.verdict}, {measured.reason}")
    return f"no admitted algorithm runs {problem.product} on {problem.platform}: " + (
        "; ".join(reasons) or "none was measured"
    )
