"""What measurements of similar problems say about a candidate."""

from __future__ import annotations

import collections

from voxax.algorithms import Problem
from voxax.tuning.cache import TuningCache
from voxax.tuning.key import family_of, key_of
from voxax.tuning.space import Space

# So many similar problems, in each of which the candidate took this many times the best.
_ENOUGH, _FACTOR = 3, 2.0

Identity = tuple[str, tuple[tuple[str, int | str], ...], int]


def hopeless(problem: Problem, space: Space, cache: TuningCache) -> dict[Identity, str]:
    """Candidates that need not be tried, with the reason.

    Most of the time that tuning takes is spent on compiling, and most of that on candidates that
    are slow everywhere on this device. Problems are similar that share product, kind of weight,
    dtype, precision and number of taps. Where nothing would be left, nothing is hopeless.
    """
    family, key = family_of(problem), key_of(problem)
    losses: collections.Counter[Identity] = collections.Counter()
    wins: collections.Counter[Identity] = collections.Counter()
    for other, entry in cache.items():
        if other == key or not other.startswith(family) or entry.predicted:
            continue
        timed = {m.candidate: m.seconds for m in entry.measured if m.seconds is not None}
        best = min(timed.values(), default=0.0)
        for candidate, seconds in timed.items():
            (losses if seconds > _FACTOR * best else wins)[candidate] += 1
    found = {
        c.identity: f"at least {_FACTOR:g} times the best in {losses[c.identity]} similar problems"
        for c in space.candidates
        if losses[c.identity] >= _ENOUGH and not wins[c.identity]
    }
    return found if len(found) < len(space.candidates) else {}
