"""The tuner's decision: a pure function of the candidates, of what is known and what may be done.

:func:`decide` reads no clock, file, lock or device. It answers with a choice, and says whether that
must be checked or measured before it is used; :mod:`voxax.tuning.tuner` does so and asks again.
The table of decisions stands there.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

from voxax.errors import AlgorithmError
from voxax.kernels import Kernel, Parameters, Problem
from voxax.tuning.entry import Entry, Measured, described, family_of, key_of
from voxax.tuning.request import AutotuneMode
from voxax.tuning.space import Candidate, Identity, Space, reference_of

Source = Literal["measured", "cached", "shipped", "predicted", "pinned"]
"""``measured``: just now, on this hardware. ``cached``: by an earlier run. ``shipped``: with voxax,
on hardware of this kind. ``predicted``: without measuring. ``pinned``: the only candidate."""

Pending = Literal["check", "measure"] | None
"""The step before a choice may be used: compare its result with the reference's, or measure all
candidates. None: the choice stands."""

# A candidate is not tried if it took this many times the best in so many similar problems.
_SLOWER, _SIMILAR = 2.0, 3


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
      has_time: time is left for measuring.
      ruled: nothing is requested, and the first heuristic is known to be the fastest.
      measured: the entry was measured just now.
      rejected: candidates that must not be used on this device, with the reason.
    """

    mode: AutotuneMode
    has_device: bool
    has_time: bool = True
    ruled: bool = False
    measured: bool = False
    rejected: Mapping[Identity, str] = dataclasses.field(default_factory=dict)

    def rejecting(self, candidate: Candidate, reason: str) -> Policy:
        """The policy after a candidate failed its check."""
        return dataclasses.replace(self, rejected={**self.rejected, candidate.identity: reason})


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
    if len(space.candidates) == 1:
        return _pinned(space, policy)
    if policy.mode == "off":
        return _choice(space, _unchecked(space)[0], "predicted")
    if policy.ruled and policy.mode == "cached" and entry is not None:
        # Without it, the entry is what a pin of another algorithm measured among its own forms.
        entry = entry if entry.knows(space.heuristics[0].identity) else None
    best = fastest(space, entry)
    own = entry is not None and entry.source == "measured"
    if best is not None and not own and best[0].identity in policy.rejected:
        entry = best = None
    if policy.measured and best is None:
        raise AlgorithmError(_nothing_left(space.problem, space.refused, entry))
    can_measure = policy.mode == "on" and policy.has_device and policy.has_time
    if can_measure and not policy.measured:
        if leaves_unknown(space, entry):
            return _choice(space, space.heuristics[0], "predicted", None, entry, "measure")
        if entry is not None and entry.predicted:
            likely = space.heuristics[0] if best is None else best[0]
            return _choice(space, likely, "predicted", None, entry, "measure")
    if best is None or entry is None:
        return _default(space, entry, policy)
    candidate, seconds = best
    if own:
        source: Source = "measured" if policy.measured else "cached"
        return _choice(space, candidate, source, seconds, entry)
    # Times that were predicted, or measured elsewhere, say nothing about results on this device.
    check = _check(space, candidate, policy)
    if entry.source == "shipped":
        return _choice(space, candidate, "shipped", seconds, entry, check)
    return _choice(space, candidate, "predicted", None, entry, check)


def _pinned(space: Space, policy: Policy) -> Choice:
    """The only candidate, unless it was rejected."""
    (only,) = space.candidates
    if only.identity in policy.rejected:
        refused = (*space.refused, (str(only), policy.rejected[only.identity]))
        raise AlgorithmError(_nothing_left(space.problem, refused, None))
    check = None if policy.mode == "off" else _check(space, only, policy)
    return _choice(space, only, "pinned", pending=check)


def _default(space: Space, entry: Entry | None, policy: Policy) -> Choice:
    """The first heuristic that was not rejected, then the reference, then any other candidate."""
    reference = reference_of(space.problem)
    rest = sorted(space.candidates, key=lambda c: c != reference)
    first = space.heuristics if policy.has_device else _unchecked(space)
    for candidate in dict.fromkeys((*first, *rest)):
        if candidate.identity not in policy.rejected:
            check = _check(space, candidate, policy)
            return _choice(space, candidate, "predicted", None, entry, check)
        refusal = str(candidate), policy.rejected[candidate.identity]
        space = dataclasses.replace(space, refused=(*space.refused, refusal))
    raise AlgorithmError(_nothing_left(space.problem, space.refused, entry))


def _unchecked(space: Space) -> list[Candidate]:
    """The heuristics as they are taken where no result is compared: unproven kernels last."""
    return sorted(space.heuristics, key=lambda candidate: candidate.kernel.unproven)


def _check(space: Space, candidate: Candidate, policy: Policy) -> Pending:
    """The check of an unmeasured candidate; the reference needs none."""
    is_reference = candidate.identity == reference_of(space.problem).identity
    return "check" if policy.has_device and not is_reference else None


def _choice(
    space: Space,
    candidate: Candidate,
    source: Source,
    seconds: float | None = None,
    entry: Entry | None = None,
    pending: Pending = None,
) -> Choice:
    how = candidate.kernel, candidate.parameters
    return Choice(space.problem, *how, source, seconds, entry, space.refused, pending)


def _nothing_left(problem: Problem, refused: Iterable[tuple[str, str]], entry: Entry | None) -> str:
    """The message of an error: every reason why no admitted candidate can run."""
    reasons = [f"{name}: {reason}" for name, reason in refused]
    for measured in () if entry is None else entry.measured:
        if measured.verdict in ("failed", "rejected"):
            reasons.append(f"{measured}: {measured.verdict}, {measured.reason}")
    return f"no admitted algorithm runs {problem.product} on {problem.platform}: " + (
        "; ".join(reasons) or "none was measured"
    )


def fastest(space: Space, entry: Entry | None) -> tuple[Candidate, float] | None:
    """The fastest candidate that ran to the end; without one, the best that was given up early.

    A prediction without the heuristic is of other kernels, or of a device with other cores.
    """
    if entry is None or (entry.predicted and not entry.knows(space.heuristics[0].identity)):
        return None
    for verdict in ("ok", "slow"):
        timed = [
            (m.seconds, index, candidate)
            for index, (candidate, m) in enumerate(_records(space, entry))
            if m is not None and m.verdict == verdict and m.seconds is not None
        ]
        if timed:
            seconds, _, candidate = min(timed, key=lambda item: item[:2])
            return candidate, seconds
    return None


def leaves_unknown(space: Space, entry: Entry | None) -> bool:
    """Return whether a candidate was never considered, or none ran to the end."""
    records = [m for _, m in _records(space, entry)]
    return None in records or not any(m is not None and m.verdict == "ok" for m in records)


def is_complete(space: Space, entry: Entry) -> bool:
    """Return whether every candidate had its turn."""
    return all(m is not None and m.reached for _, m in _records(space, entry))


def _records(space: Space, entry: Entry | None) -> list[tuple[Candidate, Measured | None]]:
    """Each candidate with what the entry says about it; others in the entry are ignored."""
    by_identity = {} if entry is None else {m.candidate: m for m in entry.measured}
    return [(c, by_identity.get(c.identity)) for c in space.candidates]


def likely_first(space: Space, entry: Entry | None) -> list[Candidate]:
    """The candidates in the order to try them: by the times that the entry has of them, measured
    or predicted, then in the order of the space."""
    if entry is None:
        return list(space.candidates)
    times = {m.candidate: m.seconds for m in entry.measured if m.seconds is not None}
    return sorted(space.candidates, key=lambda c: times.get(c.identity, float("inf")))


def hopeless(space: Space, known: Iterable[tuple[str, Entry]]) -> dict[Identity, str]:
    """Candidates that need not be tried, with the reason.

    Most of the time of tuning is spent on compiling, and most of that on candidates that are slow
    everywhere on this device. Problems are similar that share product, kind of weight, dtype,
    precision and number of taps. Where no candidate would be left, none is hopeless.

    Args:
      space: the candidates.
      known: the cache's entries by key.
    """
    family, key = family_of(space.problem), key_of(space.problem)
    losses: collections.Counter[Identity] = collections.Counter()
    wins: collections.Counter[Identity] = collections.Counter()
    for other, entry in known:
        if other == key or not other.startswith(family) or entry.predicted:
            continue
        timed = {m.candidate: m.seconds for m in entry.measured if m.seconds is not None}
        best = min(timed.values(), default=0.0)
        for candidate, seconds in timed.items():
            (losses if seconds > _SLOWER * best else wins)[candidate] += 1
    found = {
        c.identity: f"at least {_SLOWER:g} times the best in {losses[c.identity]} similar problems"
        for c in space.candidates
        if losses[c.identity] >= _SIMILAR and not wins[c.identity]
    }
    return found if len(found) < len(space.candidates) else {}
