"""How many pairs of an input and an output a product's map has."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from voxax.algorithms import Problem
from voxax.tuning import at_hand
from voxax.tuning.occupancy import DEFAULT_KIND, sample_map
from voxax.tuning.sample import sizes_of, taps_of

_TABLES = ("neighbors", "transposed_neighbors")


class PairCounter:
    """Counts the pairs of maps, each map once."""

    def __init__(self) -> None:
        # By the table's identity, with the table, so that no other takes its place in memory.
        self._counted: dict[int, tuple[Any, int]] = {}
        self._estimated: dict[Hashable, int] = {}

    def count(self, views: Mapping[str, Any], problem: Problem) -> int:
        """The pairs of a map, from its arrays; of a dynamic problem, from its sizes."""
        if problem.kind == "dynamic":
            return taps_of(problem, np.asarray(views["sizes"]))
        if "pair_starts" in views:  # by tap; the last is where all end
            return int(views["pair_starts"][-1])
        table = next(views[name] for name in _TABLES if name in views)
        if id(table) not in self._counted:
            self._counted[id(table)] = table, int((np.asarray(table) >= 0).sum())
        return self._counted[id(table)][1]

    def estimate(self, problem: Problem) -> int:
        """The pairs of a map like this problem's: one that is at hand, else a recorded scene.

        The same that the tuner would measure on.
        """
        views = at_hand.find(problem)
        if views is not None:
            return self.count(views, problem)
        if problem.kind == "dynamic":
            return taps_of(problem, sizes_of(problem, None)[0])
        p = problem
        key = (p.spec, p.level, p.in_capacity, p.out_capacity, p.num_offsets)
        if key not in self._estimated:
            table = sample_map(DEFAULT_KIND, *key).neighbors
            self._estimated[key] = int((table >= 0).sum())
        return self._estimated[key]
