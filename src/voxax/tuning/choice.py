"""What the tuner decided, and who listens."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Literal

from voxax.algorithms import Algorithm, Parameters, Problem, lookup
from voxax.tuning.entry import Entry

Source = Literal["measured", "cached", "shipped", "predicted", "pinned"]
"""``measured``: just now, on this hardware. ``cached``: by an earlier run. ``shipped``: by us, on
hardware of this kind. ``predicted``: nobody measured it. ``pinned``: there is no other."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One decision.

    Attributes:
      problem: what was decided about.
      algorithm, parameters: what runs.
      source: where the decision comes from.
      seconds: measured time of one call, or None.
      entry: everything measured about this problem, or None.
      refused: ``(name, reason)`` of admitted algorithms that cannot run.
    """

    problem: Problem
    algorithm: str
    parameters: Parameters
    source: Source
    seconds: float | None = None
    entry: Entry | None = None
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def implementation(self) -> Algorithm:
        """The record of the chosen algorithm."""
        return lookup(self.algorithm, self.problem.kind)

    def __str__(self) -> str:
        return described(self.algorithm, self.parameters)


def described(algorithm: str, parameters: Parameters) -> str:
    """``name(parameter=value, ...)``."""
    values = ", ".join(f"{name}={value}" for name, value in parameters)
    return f"{algorithm}({values})" if values else algorithm


_listeners: contextvars.ContextVar[tuple[list[Choice], ...]]
_listeners = contextvars.ContextVar("voxax_choices", default=())


@contextlib.contextmanager
def record_choices() -> Iterator[list[Choice]]:
    """A list that receives every choice made inside, in this thread.

    A choice is made when a product is lowered: a function that is already compiled makes none.
    """
    heard: list[Choice] = []
    token = _listeners.set((*_listeners.get(), heard))
    try:
        yield heard
    finally:
        _listeners.reset(token)


def announce(choice: Choice) -> Choice:
    """Tell all who listen."""
    for heard in _listeners.get():
        heard.append(choice)
    return choice
