"""The largest capacity whose program fits, with few compilations."""

from __future__ import annotations

import bisect
from collections.abc import Callable

from voxax.sizing.resize import buckets_up_to


def largest_fitting(
    need: Callable[[int], int | None], start: int, limit: int, tries: int = 6
) -> int | None:
    """The largest bucket whose need is within ``limit``, as far as ``tries`` tell.

    Memory is nearly a straight line in the capacity, so a line through what was tried says
    where to look next; the answer was itself compiled.

    Args:
      need: bytes at a capacity, None where the program cannot be built; slow.
      start: a capacity that was tried already, the first point of the line.
      limit: bytes.
      tries: calls of ``need`` at most, with those at ``start``.
    """
    buckets = buckets_up_to(64 * max(start, 16))
    known: dict[int, int | None] = {start: need(start)}
    at_start = bisect.bisect_right(buckets, start) - 1
    low, high = (at_start, len(buckets)) if _fits(known[start], limit) else (-1, at_start + 1)
    if low >= 0 and low == at_start and buckets[low] != start:
        known[buckets[low]] = known[start]  # a bucket below: needs no more
    elif low < 0 and buckets[at_start] == start:
        high = at_start
    guess = max(at_start - 8, 0)  # a quarter of the capacity: a second point for the line
    for _ in range(tries - 1):
        if high - low <= 1:
            break
        guess = min(max(guess, low + 1), high - 1)
        known[buckets[guess]] = need(buckets[guess])
        if _fits(known[buckets[guess]], limit):
            low = guess
        else:
            high = guess
        capacity = _on_the_line(known, limit)
        guess = bisect.bisect_right(buckets, capacity) - 1 if capacity else (low + high) // 2
    return buckets[low] if low >= 0 else None


def _fits(need: int | None, limit: int) -> bool:
    return need is not None and need <= limit


def _on_the_line(known: dict[int, int | None], limit: int) -> int:
    """Where the line through the two points closest to ``limit`` reaches it; 0 without two."""
    points = sorted((abs(n - limit), c, n) for c, n in known.items() if n is not None)[:2]
    if len(points) < 2:
        return 0
    (_, a, need_a), (_, b, need_b) = points
    if need_a == need_b:
        return 0
    return max(int(a + (limit - need_a) * (b - a) / (need_b - need_a)), 0)
