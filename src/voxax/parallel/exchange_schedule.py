"""Who sends to whom at the same time, when shards exchange their halos.

A ``ppermute`` is a round: each shard sends to one other at most, and all send equally many rows, as
shapes are static. Few rounds of similar messages waste little.
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
    """Rounds for these very messages: the largest first, each into the first round that is free.

    At most ``2 d - 1`` rounds where no shard sends or receives more than d messages, and messages
    of a round are of similar size.
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
    """Rounds in which each shard sends to the one so many places further, for any scene.

    Only the distances that occur. Neighbours along the ring are always among them.
    """
    largest = {shift: 0 for shift in {1, shards - 1} if 0 < shift < shards}
    for (sender, receiver), number in messages.items():
        shift = (receiver - sender) % shards
        largest[shift] = max(number, largest.get(shift, 0))
    return tuple(
        Exchange(tuple((place, (place + shift) % shards) for place in range(shards)), rows)
        for shift, rows in sorted(largest.items())
    )
