"""A small input pipeline: examples made in worker processes, in order, a few ahead.

Workers run NumPy only: they simulate or read, augment, voxelize and build kernel maps,
and no JAX backend is ever started in them.
"""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pipeline(Generic[Item, Result]):
    """Map a picklable function over items in worker processes, keeping their order.

    Args:
      make: ``item -> example``; importable by name, or a picklable object.
      workers: processes; 0 works in this process.
      prefetch: examples made ahead.

    Use as a context manager; leaving it ends the workers. Errors of a worker are raised
    where its example would have come.
    """

    def __init__(
        self, make: Callable[[Item], Result], *, workers: int = 1, prefetch: int = 4
    ) -> None:
        self._make, self._prefetch = make, max(1, prefetch)
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        if workers > 0:
            # spawn: forking a process that runs XLA's threads can dead-lock.
            self._pool = concurrent.futures.ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), ignore_interrupts
            )

    def __call__(self, items: Iterable[Item], *, prefetch: int | None = None) -> Iterator[Result]:
        """Examples of ``items``, in order; at most ``prefetch`` are under way."""
        if self._pool is None:
            yield from map(self._make, items)
            return
        queue: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        try:
            for item in items:
                queue.append(self._pool.submit(self._make, item))
                if len(queue) >= (prefetch or self._prefetch):
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            for future in queue:
                future.cancel()

    def close(self) -> None:
        """End the workers, dropping what they have not begun."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Pipeline[Item, Result]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def ignore_interrupts() -> None:
    """What a worker begins with.

    Ctrl-C reaches the whole process group; only the parent decides what it means.
    """
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One thread a worker: NumPy's would compete with XLA's for the same cores.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
