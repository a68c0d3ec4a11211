"""Predict the fastest kernel for each convolution product on a TPU that is not present.

A product is a convolution's forward, dgrad or wgrad; a candidate is a kernel with its parameters.
The seconds from the compiler's schedules are stored in the tuning cache as predicted. Programs for
this TPU use them until someone measures on it, beginning with the predicted fastest candidate.
"""

from __future__ import annotations

import base64
import concurrent.futures
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from voxax import _compat
from voxax.errors import VoxaxError
from voxax.explanation.inspect import find_products
from voxax.hardware import HardwareInfo, targeting
from voxax.kernels import Parameters, Problem, lookup
from voxax.predict.compiled_program import CompiledProgram
from voxax.predict.cycles import outcomes
from voxax.tuning import Resolved
from voxax.tuning.entry import Entry, Measured, utc_now
from voxax.tuning.sample import Sample, sample_of
from voxax.tuning.space import Candidate, space_of, views_read

_OPEN = "it has loops whose length is known at run time only"


def products_of(
    hardware: HardwareInfo, fn: Callable[..., Any], arguments: tuple[Any, ...]
) -> list[tuple[Problem, Resolved]]:
    """Return the distinct convolution products that ``fn(*arguments)`` computes on a TPU.

    Each result is ``(product, allowed algorithms)``. `hardware` is the TPU.

    Raises:
      InputError: ``fn`` has no sparse convolution.
    """
    with targeting(hardware), _compat.separate_traces(hardware):
        calls = find_products(fn, arguments, "tpu")
    return list(dict.fromkeys((call.problem, call.admitted) for call in calls))


def is_known(
    entry: Entry | None, hardware: HardwareInfo, problem: Problem, admitted: Resolved
) -> bool:
    """Return whether an entry of the tuning cache suffices to choose the kernel of a product.

    A measured entry suffices. A predicted entry suffices only if it contains the candidate that is
    the default on the device ``hardware``. An ``entry`` of None does not suffice. ``problem`` is
    the product, and ``admitted`` are its allowed algorithms.
    """
    if entry is None or not entry.predicted:
        return entry is not None
    default = space_of(problem, admitted, hardware).heuristics[0].identity
    return any(m.candidate == default for m in entry.measured)


def predict_all(
    chip: str, hardware: HardwareInfo, products: Sequence[tuple[Problem, Resolved]]
) -> Iterator[tuple[Problem, Entry | None]]:
    """Run :func:`predict` for many products in parallel on all CPU cores.

    ``products`` are pairs ``(product, allowed algorithms)``. Yield a pair ``(product, result)`` for
    each product, in the same order, where the result is that of :func:`predict`. ``chip`` and
    ``hardware`` are arguments of :func:`predict`.
    """
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        pending = [pool.submit(predict, chip, hardware, *asked) for asked in products]
        try:
            for (problem, _), entry in zip(products, pending, strict=True):
                yield problem, entry.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def predict(
    chip: str, hardware: HardwareInfo, problem: Problem, admitted: Resolved
) -> Entry | None:
    """Predict the seconds of a product's kernels from the compiler's schedules; nothing runs.

    The voxels are a recorded sample. The candidates are all window kernels (which read runs of
    input rows), and every other algorithm with default parameters. :data:`voxax.predict.LEFT_OUT`
    lists what is not counted.

    Args:
      chip: a TPU generation, one of :data:`voxax.predict.TOPOLOGIES`.
      hardware: facts about a device of this generation.
      problem: a product on the platform ``tpu``.
      admitted: the algorithms that are allowed.

    Returns:
      The entry for the tuning cache. It is None if no candidate has predicted seconds. It is also
      None if the default candidate has loops of unknown length, because another candidate would
      then always be chosen.
    """
    begin = time.perf_counter()
    space = space_of(problem, admitted, hardware)
    windowed = (c for c in space.candidates if "windows" in c.kernel.views)
    priced = list(dict.fromkeys((*windowed, *space.heuristics)))
    sample = sample_of(problem, None, views_read(problem, priced))
    packed = base64.b64encode(pickle.dumps(problem)).decode()
    shapes = {name: view.shape for name, view in sample.views.items()}
    arguments = [{"packed": packed, "shapes": shapes, **_named(candidate)} for candidate in priced]
    found = outcomes([(chip, f"{__name__}:product", each) for each in arguments])
    measured = [
        _measured(problem, candidate, outcome, sample)
        for candidate, outcome in zip(priced, found, strict=True)
    ]
    default = measured[priced.index(space.heuristics[0])]
    if default.verdict == "skipped" or not any(m.verdict == "ok" for m in measured):
        return None
    spent = time.perf_counter() - begin
    return Entry(tuple(measured), sample.name, "predicted", utc_now(), spent)


def product(
    packed: str,
    shapes: dict[str, list[int]],
    algorithm: str,
    platform: str,
    parameters: list[list[Any]],
) -> tuple[Any, ...]:
    """Return ``(function, *shapes)``: a function that runs a candidate, and its arguments' shapes.

    A ``Request`` names this function, so that the separate process can compile the program.

    Args:
      packed: the pickled problem, in base64.
      shapes: shapes of the kernel map's arrays, by name.
      algorithm, platform: name and platform of the candidate's kernel.
      parameters: the candidate's parameters, as pairs of name and value.
    """
    problem: Problem = pickle.loads(base64.b64decode(packed))
    chosen = tuple((str(name), value) for name, value in parameters)
    (run,) = (k for k in lookup(algorithm, problem.layer.kind) if k.platform == platform)
    a, b = (jax.ShapeDtypeStruct(shape, problem.dtype) for shape in problem.operand_shapes)
    names = run.views_of(problem, chosen)
    views = {name: jax.ShapeDtypeStruct(tuple(shapes[name]), "int32") for name in names}

    def call(a: jax.Array, b: jax.Array, views: dict[str, jax.Array]) -> jax.Array:
        return run.apply(problem, chosen, a, b, views)

    return call, a, b, views


def steps(problem: Problem, parameters: Parameters, windows: np.ndarray) -> int:
    """Return the number of grid steps that a window kernel takes on one core.

    A window kernel reads input rows by windows, which are parts of runs of consecutive rows. A tile
    of consecutive output rows needs one run for each column of the kernel (offsets that differ
    along the last axis only). A step reads a window for every column and for several tiles
    together. The longest run of these tiles therefore determines their number of steps.

    Args:
      problem: a product.
      parameters: parameters of a window kernel, dense or depthwise.
      windows: ``int32[2, tiles, columns]``, the first row and the length of each run.
    """
    values = dict(parameters)
    _, lengths = np.asarray(windows)
    tiles = int(values["tiles"])
    lengths = np.pad(lengths, ((0, -len(lengths) % tiles), (0, 0)))
    lengths = lengths.reshape(len(lengths) // tiles, -1)
    visits = np.max(-(-lengths // int(values["window_rows"])), axis=1)
    return max(-(-int(visits.sum()) // int(values["stripes"])), 1)


def passes(items: np.ndarray) -> float:
    """Return the mean number of loop passes per block of output rows in a kernel that reads items.

    Args:
      items: the kernel map's array ``items``, see :mod:`voxax.kernels.implicit_gemm.items`. It has
        a list of items for each block of output rows.
    """
    used = np.asarray(items)[:, -1, 0]
    return float(np.mean(np.where(used > 0, used + 2, 0)))


def passes_of(problem: Problem, candidate: Candidate, views: Mapping[str, Any]) -> float:
    """Return the number of passes of a kernel's loop, if this number depends on the kernel map.

    See :func:`steps` for kernels that read windows, and :func:`passes` for kernels that read items.
    Return 1 for other kernels, which have no such loop.

    Args:
      problem: a product; dgrad for a program that computes dgrad and wgrad together.
      candidate: a candidate of the problem.
      views: concrete arrays of the kernel map, by name.
    """
    for name in candidate.kernel.views_of(problem, candidate.parameters):
        view = np.asarray(views[name])
        if name.endswith("windows"):
            return steps(problem, candidate.parameters, view)
        if name == "items":
            return passes(view)
    return 1


def _named(candidate: Candidate) -> dict[str, Any]:
    kernel = candidate.kernel
    return {
        "algorithm": kernel.name,
        "platform": kernel.platform,
        "parameters": candidate.parameters,
    }


def _measured(
    problem: Problem, candidate: Candidate, outcome: CompiledProgram | VoxaxError, sample: Sample
) -> Measured:
    if isinstance(outcome, VoxaxError):
        return Measured(*candidate.identity, None, "failed", str(outcome))
    number = passes_of(problem, candidate, sample.views)
    known = {kernel.name: number for kernel in outcome.kernels if kernel.is_pallas}
    if outcome.open(known):
        return Measured(*candidate.identity, None, "skipped", f"not predicted: {_OPEN}")
    seconds = outcome.seconds(known)
    if seconds <= 0:
        return Measured(*candidate.identity, None, "skipped", "not predicted: it has no cost")
    return Measured(*candidate.identity, seconds, "ok", "")
