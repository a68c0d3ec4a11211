"""What is measured: the named workloads, the operations on them, and which of both by default."""

from __future__ import annotations

from typing import NamedTuple

CHANNELS = (16, 32, 64, 128, 256)


class Operation(NamedTuple):
    """An operation of every library.

    Attributes:
      title: for the table.
      modes: ways to run it, the first being inference.
      kernel, stride: of its kernel map; 0 where it has several.
      layered: it has channels, pairs and hence a floor.
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


def cases(workloads: tuple[str, ...], channels: tuple[int, ...], only: str) -> list[Case]:
    """All cases of these workloads and channels whose name contains ``only``.

    Strided layers run with 32 and 128 channels (where asked for), MinkUNet18 on the first and the
    third workload: a sweep and a room.
    """
    found = []
    for operation, what in OPERATIONS.items():
        for number, workload in enumerate(workloads):
            if operation == "minkunet18" and number not in (0, 2):
                continue
            sizes: tuple[int, ...] = (0,)
            if what.layered:
                wanted = channels if operation == "conv3" else (32, 128)
                sizes = tuple(c for c in channels if c in wanted) or channels[:1]
            found += [Case(workload, operation, c, mode) for c in sizes for mode in what.modes]
    return [case for case in found if all(word in str(case).split() for word in only.split())]
