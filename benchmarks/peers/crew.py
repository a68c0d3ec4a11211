"""The driver's side of the worker processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import IO, Any

from own_process import KEEP_HEAP

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerFailed(Exception):
    """A worker answered that it could not, or died."""


class Member:
    """A worker process, which runs only while it is asked.

    Between its turns it is stopped (SIGSTOP), so that the idle threads of one library's pool cannot
    spin in the time of another. Telling the pools to sleep instead (``OMP_WAIT_POLICY=passive``)
    made PyTorch's loop over offsets 1.6 to 1.9 times slower (2 cores of an AMD EPYC, Zen 3).
    """

    def __init__(
        self, library: str, python: Path, threads: int, log: IO[Any], extra: dict[str, str]
    ) -> None:
        self.library = library
        # Fresh pages doubled some times of every library (2 cores of an AMD EPYC, Zen 3).
        variables = {**os.environ, **KEEP_HEAP, **dict.fromkeys(_THREADS, str(threads)), **extra}
        script = Path(__file__).with_name("worker.py")
        self._process = subprocess.Popen(
            [str(python), str(script), library, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=variables,
        )
        self._read()
        self._stop()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for the answer.

        Raises:
          WorkerFailed: with the worker's message.
        """
        try:
            self._process.send_signal(signal.SIGCONT)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            return self._read()
        except BrokenPipeError as error:
            raise WorkerFailed(f"{self.library} is gone") from error
        finally:
            self._stop()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.library} ended with {self._process.wait()}")
        values = json.loads(line)
        if "failed" in values:
            raise WorkerFailed(values["failed"])
        return values

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
