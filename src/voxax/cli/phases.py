"""What a command is doing, and how long it took."""

from __future__ import annotations

import contextlib
import time
from typing import Any

_MESSAGES = {
    "simulate": "simulating or reading scenes",
    "plan": "planning: which kernel maps the network needs, how large its levels are",
    "compile": "compiling the training step, once",
    "validate": "validating",
    "pictures": "drawing",
}


class Phase:
    """Adds the seconds spent inside to ``seconds[name]``, and says what is going on."""

    def __init__(self, name: str, seconds: dict[str, float]) -> None:
        from voxax.cli.progress import working

        self.name, self.seconds = name, seconds
        message = _MESSAGES.get(name)
        self.shown = working(message) if message else contextlib.nullcontext()

    def __enter__(self) -> None:
        self.begin = time.perf_counter()
        self.shown.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.shown.__exit__(*error)
        spent = time.perf_counter() - self.begin
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + spent
