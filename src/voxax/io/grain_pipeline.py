"""The pipeline that grain runs, in place of :class:`voxax.io.pipeline.Pipeline`.

Source: grain, https://google-grain.readthedocs.io, whose data sets are sequences of which every
item can be had without those before it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from voxax.errors import MissingExtraError
from voxax.io.pipeline import ignore_interrupts

Item = TypeVar("Item")
Result = TypeVar("Result")


class GrainPipeline(Generic[Item, Result]):
    """Map a picklable function over a sequence in grain's worker processes, keeping its order.

    The items are made in the workers, each of which has the sequence: for long ones, such as
    :class:`voxax.io.steps.Steps`, nothing but results passes between processes. Workers start with
    each pass, and end with it.

    Args:
        make: ``item -> example``; importable by name, or a picklable object.
        workers: processes; 0 works in threads of this process.
        prefetch: examples made ahead.

    Raises:
        MissingExtraError: grain is not installed.
    """

    def __init__(
        self, make: Callable[[Item], Result], *, workers: int = 1, prefetch: int = 4
    ) -> None:
        _grain()
        self._make, self._workers, self._prefetch = make, workers, prefetch

    def __call__(self, items: Iterable[Item], *, prefetch: int | None = None) -> Iterator[Result]:
        """Examples of ``items``, in order; those that are no sequence are listed first."""
        grain = _grain()
        source = items if isinstance(items, Sequence) else list(items)
        if len(source) == 0:
            return
        workers, ahead = min(self._workers, len(source)), max(prefetch or self._prefetch, 1)
        read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=ahead if not workers else 1)
        examples = grain.MapDataset.source(source).map(self._make).to_iter_dataset(read)
        if workers:
            _accept_flags()
            options = grain.MultiprocessingOptions(
                num_workers=workers, per_worker_buffer_size=max(1, ahead // workers)
            )
            examples = examples.mp_prefetch(options, worker_init_fn=_start)
        iterator = iter(examples)
        try:
            yield from iterator
        finally:
            iterator.close()

    def __enter__(self) -> GrainPipeline[Item, Result]:
        return self

    def __exit__(self, *error: object) -> None:
        """Passes end their own workers."""


def _start(worker: int, workers: int) -> None:
    del worker, workers
    ignore_interrupts()


def _accept_flags() -> None:
    """Grain reads flags of absl, which refuses as long as no program has parsed them."""
    flags = importlib.import_module("absl.flags").FLAGS
    if not flags.is_parsed():
        flags.mark_as_parsed()  # with their defaults


def _grain() -> Any:
    try:
        return importlib.import_module("grain")
    except ImportError as error:
        raise MissingExtraError(
            'this pipeline needs grain: pip install "voxax[grain]", or use '
            "voxax.io.pipeline.Pipeline, which needs nothing"
        ) from error
