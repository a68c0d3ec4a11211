"""What an entry of the cache says about the candidates of a space."""

from __future__ import annotations

from voxax.tuning.entry import Entry, Measured
from voxax.tuning.space import Candidate, Space


def _records(space: Space, entry: Entry) -> list[tuple[Candidate, Measured | None]]:
    """What the entry says about each candidate; others in it are ignored."""
    by_identity = {m.candidate: m for m in entry.measured}
    return [(c, by_identity.get(c.identity)) for c in space.candidates]


def is_complete(space: Space, entry: Entry) -> bool:
    """Whether every candidate had its turn."""
    return all(m is not None and m.reached for _, m in _records(space, entry))


def leaves_unknown(space: Space, entry: Entry) -> bool:
    """Whether something admitted was never considered, or nothing admitted ran to the end."""
    records = _records(space, entry)
    considered = all(m is not None for _, m in records)
    return not considered or not any(m is not None and m.verdict == "ok" for _, m in records)


def fastest(space: Space, entry: Entry) -> tuple[Candidate, float] | None:
    """The fastest that ran to the end; where none did, of those that were given up early.

    A prediction without the heuristic is of other kernels, or of a device with other cores.
    """
    if entry.predicted and not entry.knows(space.heuristics[0].identity):
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
