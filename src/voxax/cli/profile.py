"""A trace of a few training steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Trace:
    """Profiles the second to sixth step: the first compiles, and a trace of all is too large."""

    FIRST, LAST = 2, 6

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.steps, self.running = folder, 0, False

    def step(self) -> None:
        """A step begins."""
        self.steps += 1
        if self.folder is None or not self.FIRST <= self.steps <= self.LAST + 1:
            return
        import jax

        if self.steps == self.FIRST:
            self.folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self.folder))
            self.running = True
        elif self.steps > self.LAST:
            self._stop()

    def _stop(self) -> None:
        import jax

        if self.running:
            jax.profiler.stop_trace()
            self.running = False

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop()
