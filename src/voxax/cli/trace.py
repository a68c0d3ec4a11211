"""A profile of a few training steps."""

from __future__ import annotations

import contextlib
from pathlib import Path

import jax


class Trace(contextlib.ExitStack):
    """Profile of the second to sixth step: the first compiles, and a trace of all is too large."""

    FIRST, LAST = 2, 6

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.folder, self.steps = folder, 0

    def step(self) -> None:
        """Note that a step begins."""
        self.steps += 1
        if self.folder is not None and self.steps == self.FIRST:
            self.folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self.folder))
            self.callback(jax.profiler.stop_trace)
        elif self.steps > self.LAST:
            self.close()
