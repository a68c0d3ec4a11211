"""Cases: operations on workloads, the default selection, and what a library runs of one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

CHANNELS = (16, 32, 64, 128, 256)


class Operation(NamedTuple):
    """An operation of every library.

    Attributes:
      title: for the table.
      modes: ways to run it, the first being inference.
      kernel, stride: of its kernel map; 0 where it has several.
      layered: it has channels, pairs and hence a lower bound.
    """

    title: str
    modes: tuple[str, ...]
    kernel: int
    stride: int
    layered: bool


_BOTH = ("forward", "forward+backward")
OPERATIONS = {
    "conv3": Operation("3x3x3 submanifold", _BOTH, 3, 1, True),
    "conv2s2": Operation("2x2x2, stride 2", _BOTH, 2, 2, True),
    "conv3s2": Operation("3x3x3, stride 2, all reached sites", _BOTH, 3, 2, True),
    "map3": Operation("kernel map 3x3x3", ("sorted", "shuffled"), 3, 1, False),
    "minkunet18": Operation("MinkUNet18, maps included", ("inference", "training"), 0, 0, False),
}
MINKUNET_CHANNELS, MINKUNET_CLASSES = 4, 20


class Case(NamedTuple):
    """One line of the table."""

    workload: str
    operation: str
    channels: int
    mode: str

    def __str__(self) -> str:
        channels = f" C{self.channels}" if OPERATIONS[self.operation].layered else ""
        return f"{self.workload} {self.operation}{channels} {self.mode}"

    @property
    def trains(self) -> bool:
        return self.mode in ("forward+backward", "training")

    @property
    def work_factor(self) -> int:
        """Products to compute: forward, and for training dgrad and wgrad."""
        return 3 if self.trains else 1


# By default few points of the grid: the whole of it takes half an hour on two cores.
_FULLY = ("os0-128", "indoor")
_ELSEWHERE = (32, 128)
_STRIDED = (64,)


def cases(
    workloads: tuple[str, ...], channels: tuple[int, ...], only: str, everything: bool
) -> list[Case]:
    """The cases of these workloads and channels that ``only`` asks for.

    Args:
      workloads, channels: to take them from.
      only: words with spaces between them, all of which a case's name has; or several such,
        with commas between them.
      everything: all channels and operations on all workloads. Otherwise all channels on a sweep
        and an indoor scan, 32 and 128 elsewhere; strided layers and MinkUNet18 on these two alone.
    """
    found = []
    for operation, what in OPERATIONS.items():
        for workload in workloads:
            fully = everything or workload in _FULLY or len(workloads) == 1
            if operation not in ("conv3", "map3") and not fully:
                continue
            sizes: tuple[int, ...] = (0,)
            if what.layered:
                wanted = channels if fully else _ELSEWHERE
                wanted = wanted if operation == "conv3" or everything else _STRIDED
                sizes = tuple(c for c in channels if c in wanted) or channels[:1]
            # Ascending channels: who falls far behind with few is spared more.
            found += [Case(workload, operation, c, mode) for mode in what.modes for c in sizes]
    wanted = [set(words.split()) for words in only.split(",")]
    return [c for c in found if any(words <= set(str(c).split()) for words in wanted)]


class Contestant(NamedTuple):
    """One way of a library to run a case.

    Attributes:
      run: one call; returns when the result is there.
      arrays: of a result, by name: ``pairs`` of a map, ``out``, ``features_grad`` and
        ``weight_grad`` of a layer, ``logits`` or ``loss`` of a network; rows and taps in the order
        of the problem.
      exact: a context in which the result is exact, where it is not otherwise.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], dict[str, np.ndarray]]
    exact: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


# By name, what makes a contestant, or says why it cannot take part.
Makers = Mapping[str, Callable[[], Contestant | str]]

SGEMM_SHAPE = (4096, 512, 512)


def sgemm_operands() -> tuple[np.ndarray, np.ndarray]:
    """Return the operands of the dense product whose rate sets the lower bound."""
    m, k, n = SGEMM_SHAPE
    return np.ones((m, k), np.float32), np.ones((k, n), np.float32)
