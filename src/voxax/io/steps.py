"""Scenes of each training step, and the part of them that one process reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np

from voxax.errors import InputError

Made = TypeVar("Made")

# Runs whose seeds differ augment their first million scenes by different numbers.
_SEEDS_APART = 1_000_003


@dataclass(frozen=True, eq=False)
class Steps(Sequence[Made], Generic[Made]):
    """A sequence of steps: item i is the result of ``make`` for the scenes of step i.

    Scenes come all in one random order, then all in another. With several processes each takes its
    part of every step, so it reads only these scenes; together they take what one process alone
    would, with the same seeds. A run that goes on at a step needs nothing but its number.

    Args:
      scenes: of all processes, in the same order everywhere.
      make: takes the scenes of a step, and for each a seed of its augmentation; what it returns
          is for a pipeline's workers.
      batch_size: scenes of a step, of all processes together.
      steps: in all.
      seed: of the order and of augmentation.
      begin: the step that item 0 is.
      process: this process's number, from 0.
      processes: how many there are.

    Raises:
      InputError: no scene, no such process, or fewer scenes in a step than processes.
    """

    scenes: Sequence[Any]
    make: Callable[[Sequence[Any], Sequence[int]], Made]
    batch_size: int
    steps: int
    seed: int = 0
    begin: int = 0
    process: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        if not self.scenes:
            raise InputError("steps need at least one scene, got none")
        if not 0 <= self.process < self.processes:
            raise InputError(
                f"process {self.process} of {self.processes}: they are counted from 0, to "
                f"{self.processes - 1}"
            )
        if self.batch_size < self.processes:
            raise InputError(
                f"a batch size of {self.batch_size} leaves some of {self.processes} processes "
                f"without a scene: give at least {self.processes}"
            )

    def __len__(self) -> int:
        return max(self.steps - self.begin, 0)

    @overload
    def __getitem__(self, item: int) -> Made: ...
    @overload
    def __getitem__(self, item: slice) -> list[Made]: ...
    def __getitem__(self, item: int | slice) -> Made | list[Made]:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        if not -len(self) <= item < len(self):
            raise IndexError(f"step {item} of {len(self)}")
        chosen, seeds = self.share(self.begin + item % len(self))
        return self.make([self.scenes[i] for i in chosen], seeds)

    def share(self, step: int) -> tuple[list[int], list[int]]:
        """Return ``(indices of scenes, their seeds)`` that this process takes in a step."""
        first = step * self.batch_size
        places = range(first + self.process, first + self.batch_size, self.processes)
        chosen = [_scene(len(self.scenes), self.seed, place) for place in places]
        return chosen, [self.seed * _SEEDS_APART + place for place in places]

    def first_seed(self, step: int) -> int:
        """Return the least seed of a step; those of later steps are larger."""
        return self.seed * _SEEDS_APART + step * self.batch_size


def _scene(number: int, seed: int, place: int) -> int:
    epoch, within = divmod(place, number)
    return int(_epoch(number, seed, epoch)[number - 1 - within])


@functools.lru_cache(maxsize=8)
def _epoch(number: int, seed: int, epoch: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    for _ in range(epoch):
        rng.permutation(number)
    return rng.permutation(number)
