"""Choose the scenes of each training step, and divide them among several processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np

from voxax.errors import InputError

Made = TypeVar("Made")

# Distance between the augmentation seeds of runs with successive seeds: a million scenes.
_SEEDS_APART = 1_000_003


@dataclass(frozen=True, eq=False)
class Steps(Sequence[Made], Generic[Made]):
    """Sequence of training steps: item i is ``make(scenes, seeds)`` of step ``begin + i``.

    An epoch takes all scenes once, in a new random order. Several processes divide the scenes of
    every step, and a process reads only its part. Together, the processes take the scenes and the
    seeds that a single process would take. To resume a run, set `begin` to the next step.

    Args:
      scenes: all scenes, in the same order in every process.
      make: function that returns the item of a step, which a pipeline's workers process. Its
          arguments are this process's scenes of the step, and an augmentation seed for each scene.
      batch_size: number of scenes in a step, summed over all processes.
      steps: total number of steps of the run.
      seed: seed of the order of scenes and of the augmentation.
      begin: number of the step that is item 0.
      process: index of this process, from 0.
      processes: number of processes.

    Raises:
      InputError: there is no scene, ``process`` is not from 0 to ``processes - 1``, or a step has
          fewer scenes than there are processes.
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
        """Return this process's scenes in step `step`: indices into `scenes`, and their seeds.

        There is one augmentation seed for each scene.
        """
        first = step * self.batch_size
        places = range(first + self.process, first + self.batch_size, self.processes)
        chosen = [_scene(len(self.scenes), self.seed, place) for place in places]
        return chosen, [self.seed * _SEEDS_APART + place for place in places]

    def first_seed(self, step: int) -> int:
        """Return the smallest augmentation seed of step `step`; later steps have larger seeds."""
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
