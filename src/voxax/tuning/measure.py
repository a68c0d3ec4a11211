"""Time the candidates (kernels with parameters) for a product of a layer; check their results."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from voxax import _compat
from voxax.errors import InputError
from voxax.kernels import Problem
from voxax.tuning.entry import Measured
from voxax.tuning.sample import Sample, sample_of
from voxax.tuning.space import Candidate, views_read

# A candidate is given up if its first run takes more than this many times the best so far.
_HOPELESS = 2.0
# Candidates within this factor of the best get more rounds.
_CLOSE = 1.25
_ROUNDS, _MORE_ROUNDS, _MOST_ROUNDS = 5, 9, 50
# Rounds go on until _QUICK seconds have passed, because small problems are noisy; after _LONG
# seconds they end early.
_QUICK, _LONG = 0.2, 0.8
# This number of candidates is compared even if no time is left.
_AT_LEAST = 2
# On accelerators, starting and awaiting a call may take milliseconds, but the call itself a tenth
# of one. So each sample makes calls for _BATCH seconds, at most _MOST_CALLS, before one wait.
_BATCH, _MOST_CALLS = 0.01, 256

# Largest admitted mean error and worst error, relative to the root mean square of the reference.
# float32 sums of some thousand products in another order differ by a few 1e-6 of it, and half
# precision by its unit in the last place (2**-11, 2**-8). Products at reduced precision (TF32,
# bfloat16 passes) differ by the unit of that precision.
_TOLERANCE: dict[str, tuple[float, float]] = {
    "float64": (1e-12, 1e-10),
    "float32": (1e-5, 1e-3),
    "float16": (2e-3, 3e-2),
    "bfloat16": (1e-2, 1e-1),
    "complex64": (1e-5, 1e-3),
    "complex128": (1e-12, 1e-10),
}
_REDUCED = (1e-2, 1e-1)
# Three passes of tensor float32 lose a bit or two.
_ALL_DIGITS = ("highest", "float32", "TF32_TF32_F32_X3")
# The worst element may differ by this many times the admitted mean error.
_WORST = 100
_BLOCK = 2**20  # elements compared at a time

Program = Callable[[], jax.Array]
_Result = TypeVar("_Result")


@dataclasses.dataclass
class _Runner:
    candidate: Candidate
    run: Program
    seconds: list[float] = dataclasses.field(default_factory=list)
    calls: int = 1  # of one sample

    def once(self) -> float:
        """Call `self.run` `self.calls` times in a row; record and return the seconds per call."""
        begin = time.perf_counter()
        for _ in range(self.calls):
            result = self.run()  # a device runs one after another; results are freed as they come
        jax.block_until_ready(result)
        self.seconds.append((time.perf_counter() - begin) / self.calls)
        return self.seconds[-1]

    @property
    def figure(self) -> float:
        """Seconds per call: the lower quartile of `self.seconds`, since noise only adds time."""
        return float(np.quantile(self.seconds, 0.25))


def on_sample(
    problem: Problem,
    candidates: Iterable[Candidate],
    views: Mapping[str, jax.Array] | None,
    device: Any,
    run: Callable[[Sample], _Result],
) -> _Result:
    """Create data for measuring `problem` on `device`, and return ``run(data)``.

    The data are a :class:`Sample` with the map arrays that `candidates` read. They are built from
    `views`, the concrete arrays of the caller's map by name, or from a recorded scene if `views` is
    None. The elapsed time is added to the time spent on measuring. `run` is called in a new thread,
    because the caller may be inside a JAX trace, which would record the operations. The thread gets
    the caller's 64-bit setting of JAX.
    """
    settings = _compat.thread_settings(device)

    def work() -> _Result:
        with settings(), undisturbed():
            return run(sample_of(problem, views, views_read(problem, candidates)))

    begin = time.perf_counter()
    try:
        with concurrent.futures.ThreadPoolExecutor(1, "voxax-tuner") as pool:
            return pool.submit(work).result()
    finally:
        spend(time.perf_counter() - begin)


def measure(
    problem: Problem,
    candidates: Sequence[Candidate],
    reference: Candidate,
    sample: Sample,
    budget: float,
) -> tuple[Measured, ...]:
    """Compile `candidates`, check and time them on `sample`, and return their measurements.

    A candidate whose result differs from the result of `reference` is not timed. Candidates are
    taken in the given order. After half of `budget` seconds, no further candidate is compiled.
    After all of `budget`, no further candidate is run. Neither limit applies to the first two
    candidates. Candidates for which no time was left are not in the result.
    """
    begin = time.perf_counter()
    expected, programs = _compile(problem, reference, candidates, sample, begin + budget / 2)
    done: list[Measured] = []
    runners: list[_Runner] = []
    best = float("inf")
    for number, runner in enumerate(programs):
        if isinstance(runner, Measured):
            done.append(runner)
            continue
        if number >= _AT_LEAST and time.perf_counter() > begin + budget:
            break
        verdict = _verdict(problem, runner, expected)
        if verdict is not None:
            done.append(verdict)
            continue
        first = runner.once()
        best = min(best, first)
        if first > _HOPELESS * best:
            done.append(Measured(*runner.candidate.identity, first, "slow"))
            continue
        if problem.platform != "cpu":  # on CPUs, calls of one process may run in parallel
            while runner.calls * runner.seconds[-1] < _BATCH and runner.calls < _MOST_CALLS:
                runner.calls *= 2
                runner.once()
            del runner.seconds[:-1]  # in samples with fewer calls, the wait counts too much
        runners.append(runner)
    _rounds(runners, _ROUNDS)
    quickest = min((r.figure for r in runners), default=0.0)
    close = [r for r in runners if r.figure <= _CLOSE * quickest]
    if len(close) > 1:
        _rounds(close, _MORE_ROUNDS)
    return (*done, *(Measured(*r.candidate.identity, r.figure, "ok") for r in runners))


def check(
    problem: Problem, candidate: Candidate, reference: Candidate, sample: Sample
) -> str | None:
    """Compare a candidate with `reference` on `sample`; return why its result is wrong, or None."""
    expected, (runner,) = _compile(problem, reference, (candidate,), sample, float("inf"))
    verdict = runner if isinstance(runner, Measured) else _verdict(problem, runner, expected)
    return None if verdict is None else verdict.reason


def compiled(problem: Problem, candidate: Candidate, sample: Sample) -> Program:
    """Compile a candidate for the operands of `sample`; return a function that runs it on them."""
    kernel, parameters = candidate.kernel, candidate.parameters
    names = tuple(kernel.views_of(problem, parameters))
    operands = (sample.a, sample.b, *(sample.views[name] for name in names))

    def body(a: jax.Array, b: jax.Array, *views: jax.Array) -> jax.Array:
        return kernel.apply(problem, parameters, a, b, dict(zip(names, views, strict=True)))

    program = jax.jit(body).lower(*operands).compile()
    return lambda: program(*operands)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Inside ``with``, turn off ``jax.disable_jit`` and transfer guards; both prevent measuring."""
    with jax.disable_jit(False), jax.transfer_guard("allow"):
        yield


def _verdict(problem: Problem, runner: _Runner, expected: np.ndarray) -> Measured | None:
    """Run a candidate once, and return None if its result is right.

    `runner` is the compiled candidate, and `expected` is the right result, that of the reference
    candidate. If the run fails or its result differs too much, return a measurement that says so.
    """
    try:
        result = np.asarray(runner.run())
    except Exception as error:
        return _failed(runner.candidate, error)
    name = "masked" if problem.layer.kind == "dynamic" else "explicit_gemm"
    asked = problem.dtype, problem.layer.precision
    wrong = objection(result, expected, *asked, name, split_terms=split_terms_of(problem))
    return None if wrong is None else Measured(*runner.candidate.identity, None, "rejected", wrong)


def split_terms_of(problem: Problem) -> int:
    """Return the number of terms in the sum for one result element of a product on a TPU.

    The result is 0 on other platforms. The matrix unit of a TPU splits each float32 number into
    three bfloat16 numbers, so the error of a sum grows with the number of its terms.
    """
    if problem.platform != "tpu":
        return 0
    if problem.product == "wgrad":
        return problem.out_rows
    channels = problem.gathered_channels // problem.layer.groups
    return problem.layer.num_offsets * (1 if problem.layer.kind == "depthwise" else channels)


def _compile(
    problem: Problem,
    reference: Candidate,
    candidates: Sequence[Candidate],
    sample: Sample,
    deadline: float,
) -> tuple[np.ndarray, list[_Runner | Measured]]:
    """Compile the candidates in parallel; return the result of `reference` and a list of runners.

    A runner is a compiled candidate that can be timed. The list is in the order of `candidates`. It
    has a failed measurement instead of a runner for a candidate that does not compile. A candidate
    that does not begin to compile before `deadline`, a time of ``time.perf_counter``, is left out,
    unless it is one of the first two. All programs read the arrays of `sample`.

    Raises:
      RuntimeError: the reference does not compile.
    """
    settings = _compat.thread_settings()

    def build(candidate: Candidate) -> _Runner | Measured:
        try:
            with settings(), undisturbed():
                return _Runner(candidate, compiled(problem, candidate, sample))
        except Exception as error:
            return _failed(candidate, error)

    made: list[_Runner | Measured] = []
    # XLA compiles without Python's lock, so the threads use all cores.
    with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        asked = reference, *candidates
        distinct = dict.fromkeys(asked)  # the reference is most often a candidate too
        pending = {candidate: pool.submit(build, candidate) for candidate in distinct}
        for candidate in asked:
            if len(made) > _AT_LEAST and time.perf_counter() > deadline:
                pool.shutdown(wait=False, cancel_futures=True)
            if not pending[candidate].cancelled():
                made.append(pending[candidate].result())
    oracle, *programs = made
    if not isinstance(oracle, _Runner):
        raise RuntimeError(f"{reference} did not compile: {oracle.reason}")
    return np.asarray(oracle.run()), programs


def _failed(candidate: Candidate, error: Exception) -> Measured:
    return Measured(*candidate.identity, None, "failed", f"{type(error).__name__}: {error}")


def _rounds(runners: Sequence[_Runner], rounds: int) -> None:
    """Time each runner once per round, in at least `rounds` rounds and for at least 0.2 seconds.

    There are at most ``_MOST_ROUNDS`` rounds. After 0.8 seconds, three rounds are enough. The times
    are recorded in the runners.
    """
    begin = time.perf_counter()
    for number in range(_MOST_ROUNDS):
        spent = time.perf_counter() - begin
        if (number >= rounds and spent > _QUICK) or (number >= 3 and spent > _LONG):
            return
        for runner in runners:
            runner.once()


def objection(
    result: np.ndarray,
    reference: np.ndarray,
    dtype: str,
    precision: str,
    name: str = "explicit_gemm",
    split_terms: int = 0,
) -> str | None:
    """Return a text on how `result` differs too much from `reference`, or None if it is right.

    Args:
      result, reference: outputs of the candidate and of the reference on the same data.
      dtype: name of the operands' dtype.
      precision: name of the ``jax.lax.Precision`` of both computations.
      name: name of the reference in messages.
      split_terms: number of terms in the sum for one element on a TPU, see :func:`split_terms_of`.
    """
    if result.shape != reference.shape:
        return f"returned shape {result.shape}, expected {reference.shape}"
    if result.dtype != reference.dtype:
        return f"returned {result.dtype}, expected {reference.dtype}"
    if not result.size:
        return None
    if np.issubdtype(result.dtype, np.integer):
        wrong = int((result != reference).sum())
        return f"{wrong} of {result.size} integers differ" if wrong else None
    wide = np.complex128 if np.iscomplexobj(result) else np.float64
    total = squares = worst = 0.0
    nonzero, unfinished = False, 0
    for begin in range(0, result.size, _BLOCK):  # whole copies may not fit into memory
        part = slice(begin, begin + _BLOCK)
        got, want = (x.reshape(-1)[part].astype(wide) for x in (result, reference))
        if not np.isfinite(want).all():
            return f"{name} itself returned values that are not finite"
        unfinished += int((~np.isfinite(got)).sum())
        error = np.abs(got - want)
        total, worst = total + float(error.sum()), max(worst, float(error.max()))
        squares += float((np.abs(want) ** 2).sum())
        nonzero |= bool(got.any())
    if unfinished:
        return f"{unfinished} of {result.size} values are not finite"
    scale = float(np.sqrt(squares / result.size))
    if scale == 0:
        return None if not nonzero else f"returned values where {name} returns zeros"
    if not nonzero:
        return "returned zeros only"
    mean, worst = total / result.size / scale, worst / scale
    most_mean, most_worst = _TOLERANCE.get(dtype, _REDUCED)
    if dtype in ("float32", "complex64") and precision not in _ALL_DIGITS:
        most_mean, most_worst = _REDUCED
    elif dtype == "float32" and split_terms:
        # Errors of omitted products, and of rounded sums of the others; see docs/tuning.md.
        most_mean = 2.0**-20 + 2.0**-24 * split_terms**0.5
        most_worst = _WORST * most_mean
    if mean > most_mean or worst > most_worst:
        return (
            f"differs from {name} by {mean:.1e} on average and {worst:.1e} at worst, "
            f"admitted are {most_mean:.1e} and {most_worst:.1e} of the root mean square"
        )
    return None


_PER_PROBLEM = 2.0
_PER_PROCESS = 40.0

_lock = threading.Lock()
_spent = 0.0


def allowance() -> float:
    """Return the seconds that measuring the next product may take, at most 2.

    A process may spend 40 seconds, or the seconds in ``VOXAX_AUTOTUNE_BUDGET``, on all products
    (forward, dgrad and wgrad of layers) together. Time for compiling and checks counts too.

    Raises:
      InputError: the value of ``VOXAX_AUTOTUNE_BUDGET`` is invalid.
    """
    text = os.environ.get("VOXAX_AUTOTUNE_BUDGET", "").strip()
    try:
        limit = float(text or _PER_PROCESS)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise InputError(f"VOXAX_AUTOTUNE_BUDGET={text}: expected seconds, 0 or more")
    return min(_PER_PROBLEM, max(0.0, limit - _spent))


def spend(seconds: float) -> None:
    """Add `seconds` to the time that this process has spent on measuring."""
    global _spent
    with _lock:
        _spent += seconds


def spent() -> float:
    """Return the seconds that this process has spent on measuring."""
    return _spent


_CLEAR = "\r\x1b[K"
_COLUMNS = 79  # a line of 80 would wrap on some terminals
_EVERY = 5.0  # seconds between lines where there is no terminal
_HINT = "voxax measures each new problem once; VOXAX_AUTOTUNE=off leaves it out"
_told = float("-inf")


@contextlib.contextmanager
def progress(what: str, candidates: int) -> Iterator[None]:
    """Show on stderr, during ``with``, that `candidates` ways to compute `what` are measured.

    On a terminal the line is cleared at the end. Elsewhere at most one line is written every five
    seconds, and a hint before the first line explains how to turn measuring off. Nothing is shown
    if the logger ``voxax.tuning`` writes a line for each problem (level ``INFO``), or is off.
    """
    global _told
    stream = sys.stderr
    log = logging.getLogger("voxax.tuning")
    if stream is None or log.level > logging.CRITICAL or log.isEnabledFor(logging.INFO):
        yield
        return
    end = f" ({spent():.0f} s so far)"
    line = f"voxax measures {candidates} ways to compute: {what}"[: _COLUMNS - len(end)] + end
    if stream.isatty():
        stream.write(f"{_CLEAR}{line}")
    elif time.monotonic() - _told >= _EVERY:
        stream.write(f"{_HINT}\n" * (_told == float("-inf")) + f"{line}\n")
        _told = time.monotonic()
    stream.flush()
    try:
        yield
    finally:
        stream.write(_CLEAR * stream.isatty())
        stream.flush()
