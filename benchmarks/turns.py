"""Contestants that take turns: each has a process, which is stopped when another one computes."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def answer(load: Callable[[], Mapping[str, Callable[[], Any]]]) -> None:
    """Write the names of the runs, then answer each name on stdin with the seconds of one run.

    A run is made twice, and the second one counts.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    runs = load()
    print(json.dumps(list(runs)), file=answers, flush=True)
    for line in sys.stdin:
        run = runs[line.strip()]
        run()
        begin = time.perf_counter()
        run()
        print(time.perf_counter() - begin, file=answers, flush=True)


class Contestant:
    """A process that calls :func:`answer`, stopped (SIGSTOP) when it is not its turn.

    Args:
      script, arguments: the command line after Python's.
      threads: of PyTorch; JAX takes all cores.
      python: which runs it.
    """

    def __init__(
        self, script: str, *arguments: Any, threads: int, python: str = sys.executable
    ) -> None:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [python, script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.names = json.loads(self._answer())
        os.kill(self.process.pid, signal.SIGSTOP)

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return line

    def seconds(self, name: str) -> float:
        """Return the seconds of a run."""
        os.kill(self.process.pid, signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        took = float(self._answer())
        os.kill(self.process.pid, signal.SIGSTOP)
        return took

    def end(self) -> None:
        self.process.kill()  # stopped or not
        self.process.wait()


def medians(
    crew: Mapping[str, Contestant], names: Sequence[str], rounds: int
) -> dict[str, dict[str, float]]:
    """Return the median seconds of each run, by contestant; they take turns, back and forth."""
    times: dict[str, dict[str, float]] = {}
    for name in names:
        able = [who for who, one in crew.items() if name in one.names]
        if len(able) < 2:
            continue
        took: dict[str, list[float]] = {who: [] for who in able}
        for number in range(rounds):
            for who in able[:: 1 if number % 2 else -1]:
                took[who].append(crew[who].seconds(name))
        times[name] = {who: statistics.median(values) for who, values in took.items()}
        print(name, times[name], flush=True)
    return times


def write_results(out: Path, text: Sequence[str], results: Any) -> None:
    """Write ``out.md`` and ``out.json``."""
    out.with_suffix(".md").write_text("\n".join(text))
    out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
