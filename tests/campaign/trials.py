"""A trial: what every part of the campaign draws, tries and tells."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Trial = Mapping[str, Any]
"""All that a trial depends on, in JSON."""


class TrialError(AssertionError):
    """A promise that a trial found broken."""


def require(holds: object, told: str) -> None:
    """Raise :class:`TrialError` unless it holds."""
    if not holds:
        raise TrialError(told)


class Part(Protocol):
    """A module with trials of one kind.

    Attributes:
      WHOLE: trials of the whole campaign.
      SECONDS: a trial that takes longer hangs.
      draw: from the seed and a number to a trial.
      start: makes what all trials share, below a folder, and returns ``attempt``: it tries one
        trial and returns what it counted, or raises.
    """

    WHOLE: int
    SECONDS: int
    draw: Callable[[int, int], Trial]
    start: Callable[[Path], Callable[[Trial], dict[str, Any]]]


def generator(part: str, seed: int, number: int) -> np.random.Generator:
    """The generator of one trial."""
    return np.random.default_rng([seed, number, *part.encode()])


@dataclass
class Outcome:
    """A line of the ledger: one trial, and what came of it."""

    part: str
    seed: int
    number: int
    seconds: float
    failure: str | None
    counted: dict[str, Any]
