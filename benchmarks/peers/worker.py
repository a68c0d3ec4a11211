"""One library in a process of its own, which runs what the driver asks for.

    python worker.py LIBRARY THREADS

Commands and answers are lines of JSON on stdin and on the original stdout.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Modules beside this one; imported after the processors are chosen.
LIBRARIES = {
    "voxax": "by_voxax",
    "voxax-xla": "by_voxax",
    "spconv": "by_spconv",
    "open3d": "by_open3d",
    "torch": "by_torch",
    "numpy": "by_numpy",
}
# Shorter calls are warmed by others that do not count, for so many seconds, since the caches were
# another's and the threads were asleep; then as many are timed as fit in so many seconds.
_SHORT, _WARMING, _TIMING = 0.1, 0.03, 0.06


class Worker:
    """Contestants by slot and name."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._slots: dict[str, dict[str, Any]] = {}
        self._last: dict[tuple[str, str], float] = {}

    def hello(self) -> dict[str, Any]:
        return {"versions": self._library.versions()}

    def prepare(
        self, slot: str, case: list[Any], problem: str, without: list[str]
    ) -> dict[str, Any]:
        """Load a problem. Answers the contestants: None, or why one cannot take part."""
        import numpy as np
        from cases import Case

        with np.load(problem) as file:
            arrays = {name: file[name] for name in file.files}
        makers = self._library.contestants(Case(*case), arrays)
        made = {name: make() for name, make in makers.items() if name not in without}
        self._slots[slot] = {name: c for name, c in made.items() if not isinstance(c, str)}
        return {"absent": {name: c if isinstance(c, str) else None for name, c in made.items()}}

    def sgemm(self) -> dict[str, Any]:
        """Prepare the dense product, in the slot of that name."""
        self._slots["sgemm"] = {"sgemm": self._library.sgemm()}
        return {}

    def save(self, slot: str, name: str, path: str) -> dict[str, Any]:
        """Write a contestant's result, for the others to be compared with."""
        import numpy as np

        contestant = self._slots[slot][name]
        with contestant.exact():
            arrays = contestant.arrays(contestant.run())
        if broken := sorted(n for n, values in arrays.items() if not np.isfinite(values).all()):
            raise ValueError(f"{', '.join(broken)} with entries that are not finite")
        np.savez(path, **arrays)
        return {"arrays": sorted(arrays)}

    def check(self, slot: str, name: str, path: str, tolerance: float) -> dict[str, Any]:
        """Compare a contestant's result with a saved one.

        Answers the largest error (relative to the array's largest entry) as it is timed, and the
        rows of ``out`` beyond the tolerance; and the error with exact settings. NaN is an error of
        NaN, which no tolerance admits.
        """
        import numpy as np

        with np.load(path) as file:
            expected = {n: file[n] for n in file.files}
        contestant = self._slots[slot][name]
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

    def time(self, slot: str, name: str) -> dict[str, Any]:
        """Seconds of a call: the median of those that fit into a turn."""
        run = self._slots[slot][name].run
        short = self._last.get((slot, name), 0.0) < _SHORT
        if short:
            _calls(run, _WARMING)
        seconds = statistics.median(_calls(run, _TIMING if short else 0.0))
        self._last[slot, name] = seconds
        return {"seconds": seconds}

    def drop(self, slot: str) -> dict[str, Any]:
        """Forget a slot. Answers what the library notes about it."""
        self._slots.pop(slot, None)
        self._last = {key: v for key, v in self._last.items() if key[0] != slot}
        notes = self._library.forget()
        gc.collect()
        return notes


def _calls(run: Callable[[], Any], span: float) -> list[float]:
    """Seconds of each of the calls until ``span`` has passed; one at least."""
    seconds = []
    while not seconds or sum(seconds) < span:
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
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


def die_with_the_driver() -> None:
    """A worker that is stopped between its turns could not notice that the driver is gone."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def pin(threads: int) -> None:
    """Use that many processors, where the system lets a process say so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    die_with_the_driver()
    pin(threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    try:
        library = importlib.import_module(LIBRARIES[name])
        library.setup(threads)
        worker = Worker(library)
    except Exception as error:
        traceback.print_exc()
        answer({"failed": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": True})
    gc.disable()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(getattr(worker, command.pop("do"))(**command))
        except Exception as error:
            traceback.print_exc()
            answer({"failed": f"{type(error).__name__}: {error}"[:1000]})


if __name__ == "__main__":
    main()
