"""The order in which candidates are tried, since time may not suffice for all."""

from __future__ import annotations

from voxax.tuning.entry import Entry
from voxax.tuning.space import Candidate, Space


def likely_first(space: Space, entry: Entry | None) -> list[Candidate]:
    """The candidates in the space's order; where they were predicted, the quick ones first."""
    if entry is None or not entry.predicted:
        return list(space.candidates)
    times = {m.candidate: m.seconds for m in entry.measured if m.seconds is not None}
    return sorted(space.candidates, key=lambda c: times.get(c.identity, float("inf")))
