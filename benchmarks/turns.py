"""Contestants that take turns: in this process, or each in one that stops when another computes.

The driver starts a :class:`Worker` for each contestant. Its script calls :func:`serve`. Runs in
Python 3.8 too, which the last builds of some peers need.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import json
import math
import os
import queue
import signal
import statistics
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


class WorkerFailed(Exception):
    """A worker answered that it could not, or died."""

    trace = ""
    """Of the worker's exception."""


def seconds_of(run: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def in_turns(
    players: Mapping[str, Callable[[], float]],
    rounds: int,
    wanted: Callable[[str, dict[str, list[float]]], int] | None = None,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of every round, and why a player did not reach the end.

    Every other round is backwards, so that no player always follows the same one.

    Args:
      players: what measures itself once, by name; a :class:`WorkerFailed` ends a player alone.
      rounds: at most.
      wanted: rounds of a player, judged by its name and the seconds until now.
    """
    seconds: dict[str, list[float]] = {name: [] for name in players}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for name in list(players)[:: 1 if number % 2 else -1]:
            if name in failed or (wanted and number >= wanted(name, seconds)):
                continue
            try:
                seconds[name].append(players[name]())
            except WorkerFailed as failure:
                failed[name] = str(failure)
                del seconds[name]
    return seconds, failed


def medians(
    runs: Mapping[str, Callable[[], Any]], rounds: int, warm: int = 1, least: float = 0.0
) -> dict[str, float]:
    """Return the median seconds of calls of JAX that take turns in this process.

    Args:
      runs: calls by name.
      rounds: that count.
      warm: rounds before that do not.
      least: seconds of calls in a turn, of which the median of the last two thirds counts: the
        caches were another's.
    """
    import jax

    def turn(run: Callable[[], Any]) -> float:
        taken: list[float] = []
        while not taken or sum(taken) < least:
            taken.append(seconds_of(lambda: jax.block_until_ready(run())))
        return statistics.median(taken[len(taken) // 3 :])

    players = {name: lambda run=run: turn(run) for name, run in runs.items()}
    seconds, _ = in_turns(players, rounds + warm)
    return {name: statistics.median(own[warm:]) for name, own in seconds.items()}


@contextlib.contextmanager
def limited(command: Sequence[str], seconds: float, **options: Any) -> Iterator[Any]:
    """A command that ends, with all that it started, after so many seconds or with this block."""
    timeout = ["timeout", "-k", "5", str(math.ceil(seconds))] if math.isfinite(seconds) else []
    given: Any = {"stdout": subprocess.PIPE, "text": True, "process_group": 0, **options}
    with subprocess.Popen([*timeout, *command], **given) as process:
        try:
            yield process
        finally:  # stopped or not, and before its end is waited for
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Worker(contextlib.ExitStack):
    """A process that calls :func:`serve`, and runs only while it is asked.

    Between its turns it is stopped (SIGSTOP), so that the idle threads of one library's pool cannot
    spin in the time of another. Telling the pools to sleep instead (``OMP_WAIT_POLICY=passive``)
    made PyTorch's loop over offsets 1.6 to 1.9 times slower (2 cores of an AMD EPYC, Zen 3).

    Args:
      name: in messages.
      command: with the arguments.
      environment: in place of this process's.
      log: file for what it prints.
      seconds: after which it ends; it is then never stopped.

    Raises:
      WorkerFailed: it could not load; or :meth:`ask` failed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[Any],
        environment: Mapping[str, str],
        log: Any = None,
        seconds: float = math.inf,
    ) -> None:
        super().__init__()
        self.name, self._stops = name, math.isinf(seconds)
        given: Any = {"stdin": subprocess.PIPE, "stderr": log, "env": {**environment}}
        self.process = self.enter_context(limited([*map(str, command)], seconds, **given))
        try:
            self.hello = self._read()
            self._send(signal.SIGSTOP)
        except WorkerFailed:
            self.close()
            raise

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a command, and return the answer."""
        try:
            self._send(signal.SIGCONT)
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
            return self._read()
        except BrokenPipeError as error:
            raise WorkerFailed(f"{self.name} is gone") from error
        finally:
            self._send(signal.SIGSTOP)

    def _read(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.name} ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "failed" in answer:
            failure = WorkerFailed(answer["failed"])
            failure.trace = answer["trace"]
            raise failure
        return answer["result"]

    def _send(self, what: signal.Signals) -> None:
        if self._stops and self.process.poll() is None:
            os.killpg(self.process.pid, what)


def serve(
    load: Callable[[], tuple[Any, Mapping[str, Callable[..., Any]]]], limit: float = 0.0
) -> None:
    """Answer a :class:`Worker`: commands and answers are lines of JSON.

    The process ends with its stdin, since whoever asked is gone then.

    Args:
      load: returns the first answer, and what answers each command.
      limit: seconds of a command, after which the process ends with a traceback.
    """
    # A worker that is stopped between its turns could not notice that the driver is gone.
    with contextlib.suppress(OSError, AttributeError):  # Linux alone
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    commands: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in os.fdopen(os.dup(0)):
            commands.put(line)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()

    def answer(call: Callable[[], Any]) -> Any:
        if limit:  # a thread of C's, which needs no interpreter: it ends hanging drivers
            faulthandler.dump_traceback_later(limit, exit=True)
        try:
            result = call()
            values = {"result": result[0] if call is load else result}
        except BaseException as error:
            result = None
            traceback.print_exc()
            words = " ".join(f"{type(error).__name__}: {error}".split())[:1000]
            values = {"failed": words, "trace": traceback.format_exc()[-2000:]}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(values), file=answers, flush=True)
        return result

    loaded = answer(load)
    if loaded is None:
        os._exit(0)  # the other thread holds stdin
    while True:
        given = json.loads(commands.get())
        answer(functools.partial(loaded[1][given.pop("do")], **given))


def pin(threads: int) -> None:
    """Use that many processors, where the system lets a process say so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
