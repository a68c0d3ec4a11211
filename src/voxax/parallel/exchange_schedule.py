"""The exchange schedule: which shards send their halo rows to which others, in which round.

A round is one ``ppermute``: each shard sends to at most one other, and all send equally many rows,
as shapes are static. Few rounds of similar messages waste little.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from voxax.geometry.halo import Round

Messages = Mapping[tuple[int, int], int]
"""``{(sender, receiver): rows}``."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One round: its pairs, and rows of each message at most."""

    pairs: Round
    rows: int


def matched(messages: Messages) -> tuple[Exchange, ...]:
    """A schedule for exactly these messages, the largest first, each in the first free round.

    It has at most ``2 d - 1`` rounds where no shard sends or receives more than d messages, and
    messages of a round are of similar size.
    """
    rounds: list[dict[int, int]] = []  # receiver by sender
    rows: list[int] = []
    for (sender, receiver), number in sorted(messages.items(), key=lambda m: (-m[1], m[0])):
        free = (
            index
            for index, pairs in enumerate(rounds)
            if sender not in pairs and receiver not in pairs.values()
        )
        index = next(free, None)
        if index is None:
            rounds.append({})
            rows.append(number)
            index = -1
        rounds[index][sender] = receiver
    return tuple(Exchange(tuple(sorted(p.items())), n) for p, n in zip(rounds, rows, strict=True))


def ring(messages: Messages, shards: int) -> tuple[Exchange, ...]:
    """A schedule for any scene: in each round every shard sends over one distance along a ring.

    It has the distances that occur, and always those to both neighbours along the ring.
    """
    largest = {shift: 0 for shift in {1, shards - 1} if 0 < shift < shards}
    for (sender, receiver), number in messages.items():
        shift = (receiver - sender) % shards
        largest[shift] = max(number, largest.get(shift, 0))
    return tuple(
        Exchange(tuple((place, (place + shift) % shards) for place in range(shards)), rows)
        for shift, rows in sorted(largest.items())
    )
