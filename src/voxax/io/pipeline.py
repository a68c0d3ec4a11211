"""Prepare the training examples of a network in worker processes, in order and ahead of time.

Workers run NumPy only: they simulate or read, augment, voxelize and build kernel maps.
They never start a JAX backend.

:class:`Pipeline` needs only Python. :class:`GrainPipeline` can replace it if grain is installed.
Source: grain, https://google-grain.readthedocs.io, whose data sets are sequences with random
access.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any, Generic, TypeVar

from voxax import _limits
from voxax._interrupts import uninterrupted
from voxax._parent import end_with
from voxax.errors import MissingExtraError, WorkerError

Item = TypeVar("Item")
Result = TypeVar("Result")

# The signal that ended a worker may arrive in this process a little later.
_MOMENT = 0.5  # seconds
# A worker continues for this time after SIGTERM, so that its parent can end it in order.
_END_SECONDS = 5.0
_ENDING = {getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}


class Pipeline(Generic[Item, Result]):
    """Callable that applies a function to items in worker processes, with results in item order.

    Args:
      make: function that returns the result for an item, such as an example; it must be picklable.
      workers: number of processes; 0 runs `make` in this process.
      prefetch: number of results that are prepared before they are needed.

    Use the pipeline in a ``with`` block; the end of the block stops the workers. If `make` raises
    an error for an item, the error is raised in place of that item's result. If a worker is killed,
    a call raises :class:`voxax.WorkerError`.

    Raises:
      InputError: more than 256 workers, or fewer than 0.
    """

    def __init__(
        self, make: Callable[[Item], Result], *, workers: int = 1, prefetch: int = 4
    ) -> None:
        _limits.WORKERS.check("workers", workers, 0)
        self._make, self._prefetch = make, max(1, prefetch)
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        if workers > 0:
            # "spawn" is used because forking a process that runs XLA's threads can deadlock.
            with _without_interrupts():  # this starts Python's process that tracks resources
                self._pool = concurrent.futures.ProcessPoolExecutor(
                    workers, multiprocessing.get_context("spawn"), set_up_worker
                )

    def __call__(self, items: Iterable[Item], *, prefetch: int | None = None) -> Iterator[Result]:
        """Yield the result of each item, in order; workers prepare up to `prefetch` results early.

        If `prefetch` is None or 0, it is the value that was given to the constructor. Without
        workers, each result is computed when it is needed.
        """
        if self._pool is None:
            yield from map(self._make, items)
            return
        queue: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        try:
            for item in items:
                with _without_interrupts():
                    queue.append(self._pool.submit(self._make, item))
                if len(queue) >= (prefetch or self._prefetch):
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        except BrokenProcessPool as error:
            time.sleep(_MOMENT)
            raise WorkerError(
                "a worker process was killed, as systems do when memory runs out: give fewer "
                "workers, or smaller scenes"
            ) from error
        finally:
            for future in queue:
                future.cancel()

    def close(self) -> None:
        """End the worker processes; items that no worker has begun are dropped."""
        if self._pool is not None:
            # Waiting here costs nothing, because the end of the process waits too. Without waiting,
            # the executor's thread may close a pipe just when Python's exit writes to the pipe.
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Pipeline[Item, Result]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Delay Ctrl-C to the end of the ``with`` block; block signals in workers started in the block.

    A worker inherits the blocked signals. Otherwise Ctrl-C would print a traceback in a worker that
    imports modules and does not ignore Ctrl-C yet. SIGTERM or SIGHUP to the process group would end
    a worker that the parent still needs. An interrupted start of a worker would also print a
    traceback in the parent, so the parent delays Ctrl-C. Blocking the signal in the parent's
    current thread would not be enough, because another thread may receive the signal.
    """
    with uninterrupted():
        if not hasattr(signal, "pthread_sigmask"):  # on Windows
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            resource_tracker.ensure_running()  # its start unblocks Ctrl-C and SIGTERM
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_ENDING})
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def set_up_worker(*worker: object) -> None:
    """Set up a worker process: handle signals, use one NumPy thread, and end when the parent ends.

    Signals such as Ctrl-C reach the whole process group, but the parent handles them and ends its
    workers. The worker therefore ignores Ctrl-C, and a SIGTERM ends it only after some seconds.

    Args:
      worker: number of the worker, which grain passes; unused.
    """
    del worker
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        end_with(parent.pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_soon)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    # One thread for each worker: NumPy's threads would compete with XLA's for the same cores.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _end_soon(number: int, frame: object) -> None:
    del frame
    timer = threading.Timer(_END_SECONDS, os._exit, [128 + number])
    timer.daemon = True
    timer.start()


class GrainPipeline(Generic[Item, Result]):
    """Callable that applies a function to a sequence in grain's worker processes, in order.

    Each worker has a copy of the sequence and takes items from this copy, so only results pass
    between processes. The sequence may compute its items, as :class:`voxax.io.steps.Steps` does.
    Each iteration over the results starts new workers, and ends them.

    Args:
      make, prefetch: as in :class:`Pipeline`.
      workers: number of processes; 0 runs `make` in threads of this process.

    Raises:
      MissingExtraError: grain is not installed.
      InputError: more than 256 workers, or fewer than 0.
    """

    def __init__(
        self, make: Callable[[Item], Result], *, workers: int = 1, prefetch: int = 4
    ) -> None:
        _grain()
        _limits.WORKERS.check("workers", workers, 0)
        self._make, self._workers, self._prefetch = make, workers, prefetch

    def __call__(self, items: Iterable[Item], *, prefetch: int | None = None) -> Iterator[Result]:
        """Yield the result of each item, in order; `items` that are no sequence become a list.

        Workers prepare up to `prefetch` results early. None or 0 takes the constructor's value.
        """
        grain = _grain()
        source = items if isinstance(items, Sequence) else list(items)
        if len(source) == 0:
            return
        workers, ahead = min(self._workers, len(source)), max(prefetch or self._prefetch, 1)
        read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=ahead if not workers else 1)
        examples = grain.MapDataset.source(source).map(self._make).to_iter_dataset(read)
        if workers:
            # grain reads absl's flags. absl raises an error until they are marked as parsed.
            flags = importlib.import_module("absl.flags").FLAGS
            if not flags.is_parsed():
                flags.mark_as_parsed()  # they have their defaults
            options = grain.MultiprocessingOptions(
                num_workers=workers, per_worker_buffer_size=max(1, ahead // workers)
            )
            examples = examples.mp_prefetch(options, worker_init_fn=set_up_worker)
            # A new thread starts the workers. It inherits the signals that this thread blocks.
            examples = grain.experimental.ThreadPrefetchIterDataset(
                examples, prefetch_buffer_size=1
            )
        iterator = iter(examples)
        try:
            if workers:
                with _without_interrupts():
                    iterator.start_prefetch()
            yield from iterator
        finally:
            iterator.close()

    def __enter__(self) -> GrainPipeline[Item, Result]:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the workers end with each iteration over the items."""


def _grain() -> Any:
    try:
        return importlib.import_module("grain")
    except ImportError as error:
        raise MissingExtraError(
            'this pipeline needs grain: pip install "voxax[grain]", or use '
            "voxax.io.pipeline.Pipeline, which needs nothing"
        ) from error
