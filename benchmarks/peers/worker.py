"""One library in a process of its own, which runs what the driver asks for.

python worker.py LIBRARY THREADS
"""

from __future__ import annotations

import gc
import importlib
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.turns import pin, seconds_of, serve

# Shorter calls are warmed by others that do not count, for so many seconds, since the caches were
# another's and the threads were asleep; then as many are timed as fit in so many seconds.
_SHORT, _WARMING, _TIMING = 0.1, 0.03, 0.06


class Worker:
    """Contestants of a library by slot and name; its methods answer the commands."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._slots: dict[str, dict[str, Any]] = {}
        self._last: dict[tuple[str, str], float] = {}

    def prepare(self, case: list[Any], problem: str) -> dict[str, str | None]:
        """Load a problem. Answers the contestants: None, or why one cannot take part."""
        import numpy as np
        from benchmarks.peers.cases import Case

        with np.load(problem) as file:
            arrays = {name: file[name] for name in file.files}
        makers = self._library.contestants(Case(*case), arrays)
        made = {name: make() for name, make in makers.items()}
        self._slots["case"] = {name: c for name, c in made.items() if not isinstance(c, str)}
        return {name: c if isinstance(c, str) else None for name, c in made.items()}

    def sgemm(self) -> None:
        """Prepare the dense product, in the slot of that name."""
        self._slots["sgemm"] = {"sgemm": self._library.sgemm()}

    def save(self, name: str, path: str) -> None:
        """Write a contestant's result, for the others to be compared with."""
        import numpy as np

        contestant = self._slots["case"][name]
        with contestant.exact():
            arrays = contestant.arrays(contestant.run())
        if broken := sorted(n for n, values in arrays.items() if not np.isfinite(values).all()):
            raise ValueError(f"{', '.join(broken)} with entries that are not finite")
        np.savez(path, **arrays)

    def check(self, name: str, path: str, tolerance: float) -> dict[str, Any]:
        """Compare a contestant's result with a saved one.

        Answers the largest error (relative to the array's largest entry) as it is timed, and the
        rows of ``out`` beyond the tolerance; and the error with exact settings. NaN is an error of
        NaN, which no tolerance admits.
        """
        import numpy as np

        with np.load(path) as file:
            expected = {n: file[n] for n in file.files}
        contestant = self._slots["case"][name]
        found = contestant.arrays(contestant.run())
        answer: dict[str, Any] = {"error": _error(found, expected), "exact_error": None}
        if not answer["error"] <= tolerance:
            with contestant.exact():
                answer["exact_error"] = _error(contestant.arrays(contestant.run()), expected)
            for key in ("out", "logits"):
                if key in found and found[key].shape == expected[key].shape:
                    off = np.abs(found[key] - expected[key]).max(1)
                    limit = tolerance * np.abs(expected[key]).max()
                    answer["wrong_rows"] = int((~(off <= limit)).sum())
        return answer

    def time(self, slot: str, name: str) -> float:
        """Seconds of a call: the median of those that fit into a turn."""
        run = self._slots[slot][name].run
        short = self._last.get((slot, name), 0.0) < _SHORT
        if short:
            _calls(run, _WARMING)
        seconds = statistics.median(_calls(run, _TIMING if short else 0.0))
        self._last[slot, name] = seconds
        return seconds

    def drop(self) -> dict[str, int]:
        """Forget the case. Answers what the library notes about it."""
        self._slots.pop("case", None)
        self._last = {key: v for key, v in self._last.items() if key[0] != "case"}
        notes = self._library.forget() if hasattr(self._library, "forget") else {}
        gc.collect()
        return notes


def _calls(run: Callable[[], Any], span: float) -> list[float]:
    """Seconds of each of the calls until ``span`` has passed; one at least."""
    seconds: list[float] = []
    while not seconds or sum(seconds) < span:
        seconds.append(seconds_of(run))
    return seconds


def _error(found: dict[str, Any], expected: dict[str, Any]) -> float:
    import numpy as np

    worst = 0.0
    for name, right in expected.items():
        got = found[name]
        if got.shape != right.shape:
            raise ValueError(f"{name} of shape {got.shape} instead of {right.shape}")
        if name == "pairs":
            if got != right:
                raise ValueError(f"{got} pairs instead of {right}")
            continue
        scale = max(float(np.abs(right).max(initial=0)), 1e-30)
        # max() of Python would drop a NaN.
        worst = np.maximum(worst, np.abs(got - right).max(initial=0) / scale)
    return float(worst)


def _load() -> tuple[dict[str, str], dict[str, Callable[..., Any]]]:
    name, threads = sys.argv[1].partition("-")[0], int(sys.argv[2])
    pin(threads)  # before the library is imported
    library = importlib.import_module(f"benchmarks.peers.by_{name}")
    if hasattr(library, "setup"):
        library.setup(threads)
    worker = Worker(library)
    gc.disable()
    names = ("prepare", "sgemm", "save", "check", "time", "drop")
    return library.versions(), {do: getattr(worker, do) for do in names}


if __name__ == "__main__":
    serve(_load)
