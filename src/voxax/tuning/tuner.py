"""Choosing an algorithm and its parameters for a problem.

======================================  ===================================================
the admitted candidates                 choice
======================================  ===================================================
none can run                            :class:`AlgorithmError` with every reason
one                                     that one
several, ``VOXAX_AUTOTUNE=off``, or     the heuristic of the first algorithm of the space
measuring failed
several, the cache knows them           the fastest it knows
several, this platform is at hand       the fastest now; as many are measured as the time
                                        allows, and all are remembered, also as skipped
several, another platform, no time      the fastest by what was predicted for the device, else
left, ``VOXAX_AUTOTUNE=cached``         the same heuristic; compared with explicit_gemm if it can
======================================  ===================================================

Every request is a filter on the candidates, so a pin is honoured whatever the cache says. In a
job of several processes one decides, and the others take its decision.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import jax

from voxax import _compat
from voxax.algorithms import Parameters, Problem, lookup, names
from voxax.errors import AlgorithmError
from voxax.hardware import HardwareInfo, describe
from voxax.tuning import sample as tuning_sample
from voxax.tuning.cache import TuningCache, cache_for, device_name
from voxax.tuning.decide import (
    Choice,
    Source,
    announce,
    fastest,
    hopeless,
    is_complete,
    leaves_unknown,
    likely_first,
    log_failure,
    log_refusal,
    log_result,
    nothing_left,
)
from voxax.tuning.entry import Entry, Measured, key_of, utc_now
from voxax.tuning.measure import allowance, check, measure, progress, spend, undisturbed
from voxax.tuning.request import Resolved, autotune_mode, configure_log, epoch
from voxax.tuning.sample import CALLERS_MAP, Sample, sample_of
from voxax.tuning.share import agree
from voxax.tuning.space import Candidate, Space, space_of
from voxax.tuning.target import targeted

_LOG = logging.getLogger("voxax.tuning")
_LOCK = threading.RLock()
_Result = TypeVar("_Result")


_unmeasured = contextvars.ContextVar("voxax_unmeasured", default=False)


@contextlib.contextmanager
def unmeasured() -> Iterator[None]:
    """Inside, this thread chooses as with ``VOXAX_AUTOTUNE=off``."""
    token = _unmeasured.set(True)
    try:
        yield
    finally:
        _unmeasured.reset(token)


def choose(
    problem: Problem, admitted: Resolved, available_views: Iterable[str] | None = None
) -> Choice:
    """The algorithm and parameters to execute ``problem`` with; see the table above.

    Args:
      problem: a product of one layer.
      admitted: names that the request admits.
      available_views: names of the map's arrays that came along; None means all.

    Raises:
      AlgorithmError: no admitted algorithm can run; all reasons are given at once.
    """
    configure_log()
    hardware, device = hardware_of(problem.platform)
    space = space_of(problem, admitted, hardware, available_views)
    if not space.candidates:
        raise AlgorithmError(nothing_left(problem, space, None))
    if admitted != names(problem.kind):
        for name, reason in space.refused:
            log_refusal(name, reason)
    mode = "off" if _unmeasured.get() else autotune_mode()
    if len(space.candidates) == 1:
        reason = None if mode == "off" else _objection(problem, space.candidates[0], device)
        if reason is not None:
            raise AlgorithmError(nothing_left(problem, _without(space, reason), None))
        return announce(_choice(problem, space, space.candidates[0], "pinned"))
    if mode == "off":
        return announce(_choice(problem, space, space.heuristics[0], "predicted"))
    make = _tuned if mode == "on" and device is not None else _untuned

    def decide() -> str:
        return _to_text(make(problem, space, hardware, device))

    # Also what comes from caches alone: processes may have different ones.
    among = " ".join(map(str, space.candidates))
    topic = f"{epoch()} {mode} {device_name(hardware)} {key_of(problem)} among {among}"
    return announce(_from_text(problem, space, agree(topic, decide), hardware))


def foresee(problem: Problem, admitted: Resolved) -> Choice:
    """What :func:`choose` would answer from what is known now; measures and checks nothing.

    A choice that would be measured first is given as ``predicted``.

    Raises:
      AlgorithmError: as :func:`choose`.
    """
    hardware, device = hardware_of(problem.platform)
    space = space_of(problem, admitted, hardware)
    if not space.candidates:
        raise AlgorithmError(nothing_left(problem, space, None))
    if len(space.candidates) == 1:
        return _choice(problem, space, space.candidates[0], "pinned")
    mode, entry = autotune_mode(), None
    if mode != "off":
        entry = cache_for(device_name(hardware)).get(key_of(problem))
    best = None if entry is None else fastest(space, entry)
    measures = mode == "on" and device is not None
    if best is None or entry is None or (measures and leaves_unknown(space, entry)):
        return _choice(problem, space, space.heuristics[0], "predicted", None, entry)
    return _known_choice(problem, space, best, entry)


def with_known_time(choice: Choice) -> Choice:
    """A pinned choice, which asks no cache, with the time that the user's cache has of it."""
    if choice.source != "pinned" or autotune_mode() == "off":
        return choice
    hardware, _ = hardware_of(choice.problem.platform)
    entry = cache_for(device_name(hardware)).get(key_of(choice.problem))
    if entry is None or entry.source != "measured":
        return choice
    identity = choice.algorithm, choice.parameters, choice.implementation.revision
    known = [m.seconds for m in entry.measured if m.candidate == identity and m.seconds is not None]
    return dataclasses.replace(choice, seconds=known[0], entry=entry) if known else choice


def hardware_of(platform: str) -> tuple[HardwareInfo, Any | None]:
    """Facts about the device that runs ``platform`` here, and the device; None if none does."""
    target = targeted(platform)
    return _here(platform) if target is None else (target, None)


@functools.lru_cache(maxsize=64)
def _here(platform: str) -> tuple[HardwareInfo, Any | None]:
    """:func:`hardware_of` in this process, whatever :func:`voxax.tuning.targeting` says."""
    for name in (platform, *(("cuda", "rocm") if platform == "gpu" else ())):
        try:
            device = jax.local_devices(backend=name)[0]
        except (RuntimeError, IndexError):
            continue
        return describe(device), device
    return HardwareInfo(platform=platform, device_kind="unknown"), None


def tune(
    problem: Problem,
    admitted: Resolved,
    views: object = None,
    *,
    also: Iterable[Problem] = (),
    anew: bool = False,
) -> None:
    """Measure a problem before it is met. See :func:`voxax.tune`.

    Args:
      problem: what to measure.
      admitted: the filter.
      views: concrete arrays of a real map, by name; what was measured on another is then measured
        again. None: on a map that is at hand, else on a recorded occupancy.
      also: the same product under other keys, for which the figures hold too.
      anew: measure also what the cache knows.
    """
    hardware, device = hardware_of(problem.platform)
    space = space_of(problem, admitted, hardware)
    if device is None or len(space.candidates) < 2:
        return
    cache = cache_for(device_name(hardware))
    with _LOCK:
        known = None if anew else cache.get(key_of(problem))
        views = tuning_sample.concrete_map(problem) if views is None else views
        if (
            known is None
            or known.source != "measured"
            or not is_complete(space, known)
            or (views is not None and known.sample != CALLERS_MAP)
        ):
            known = _measure(problem, space, hardware, device, cache, views, budget=None)
    for other in also:
        cache.put(key_of(other), known)


def _tuned(problem: Problem, space: Space, hardware: HardwareInfo, device: Any) -> Choice:
    """The fastest candidate, measured now where the cache does not know."""
    cache = cache_for(device_name(hardware))
    with _LOCK:  # another thread may be measuring the same
        entry = cache.get(key_of(problem))
        source: Source = "cached"
        if entry is not None and entry.predicted:
            entry = None
        if entry is not None and entry.source == "shipped":
            source = "shipped"
            entry = _checked(problem, space, entry, device)
        if entry is None or leaves_unknown(space, entry):
            budget = allowance()
            if budget <= 0 and (entry is None or fastest(space, entry) is None):
                return _untuned(problem, space, hardware, device)
            if budget > 0:
                begin = time.perf_counter()
                try:
                    views = tuning_sample.concrete_map(problem)
                    entry = _measure(problem, space, hardware, device, cache, views, budget)
                except Exception as error:  # out of memory, say: no reason to stop the caller
                    spend(time.perf_counter() - begin)
                    log_failure(key_of(problem), f"{type(error).__name__}: {error}"[:500])
                    return _choice(problem, space, space.heuristics[0], "predicted")
                source = "measured"
    best = None if entry is None else fastest(space, entry)
    if best is None:
        raise AlgorithmError(nothing_left(problem, space, entry))
    candidate, seconds = best
    return _choice(problem, space, candidate, source, seconds, entry)


def _untuned(problem: Problem, space: Space, hardware: HardwareInfo, device: Any | None) -> Choice:
    """From caches alone, else the heuristic, else whatever agrees with explicit_gemm."""
    cache = cache_for(device_name(hardware))
    entry = cache.get(key_of(problem))
    if entry is not None and entry.source != "measured" and device is not None:
        entry = _checked(problem, space, entry, device)
    best = None if entry is None else fastest(space, entry)
    if best is not None and entry is not None:
        return _known_choice(problem, space, best, entry)
    reference = reference_of(problem)
    rest = sorted(space.candidates, key=lambda c: c != reference)
    for candidate in dict.fromkeys((*space.heuristics, *rest)):
        reason = _objection(problem, candidate, device)
        if reason is None:
            return _choice(problem, space, candidate, "predicted", None, entry)
        _LOG.warning("%s is not used for %s: it %s", candidate, key_of(problem), reason)
        space = _without(space, reason, candidate)
    raise AlgorithmError(nothing_left(problem, space, entry))


def _without(space: Space, reason: str, candidate: Candidate | None = None) -> Space:
    """The space with a note on why a candidate (its only one) is not used."""
    name = str(candidate or space.candidates[0])
    return dataclasses.replace(space, refused=(*space.refused, (name, reason)))


def _measure(
    problem: Problem,
    space: Space,
    hardware: HardwareInfo,
    device: Any,
    cache: TuningCache,
    views: object,
    budget: float | None,
) -> Entry:
    begin = time.perf_counter()
    reference = reference_of(problem)
    # vx.tune, without a budget, tries everything.
    known = {} if budget is None else hopeless(problem, space, cache)
    tried = [c for c in likely_first(space, cache.get(key_of(problem))) if c.identity not in known]
    seconds = float("inf") if budget is None else budget

    def work() -> tuple[str, tuple[Measured, ...]]:
        sample = _sample(problem, (reference, *tried), views)
        measured = measure(problem, tried, reference, sample, seconds)
        if all(m.seconds is None for m in measured):  # none works: the others get their turn
            reached = {m.candidate for m in measured}
            rest = [c for c in space.candidates if c.identity not in reached]
            if rest:
                sample = _sample(problem, (reference, *rest), views)
                measured += measure(problem, rest, reference, sample, float("inf"))
        return sample.name, measured

    with progress(key_of(problem), len(tried)):
        name, measured = _in_worker(work, device)
    reached = {(m.algorithm, m.parameters) for m in measured}
    left = [
        Measured(*c.identity, None, "skipped", known.get(c.identity, "no time was left for it"))
        for c in space.candidates
        if c.identity[:2] not in reached
    ]
    spent = time.perf_counter() - begin
    spend(spent)
    entry = Entry((*measured, *left), name, "measured", utc_now(), spent)
    cache.put(key_of(problem), entry)
    log_result(problem, entry)
    return cache.get(key_of(problem)) or entry


def reference_of(problem: Problem) -> Candidate:
    """What every candidate must agree with: explicit_gemm as im2col, or the masked maximum."""
    name = {"depthwise": "explicit", "dynamic": "masked"}.get(problem.kind, "explicit_gemm")
    algorithm = lookup(name, problem.kind)
    return Candidate(algorithm, algorithm.forms[0])


def _checked(problem: Problem, space: Space, entry: Entry, device: Any) -> Entry | None:
    """A shipped or predicted entry, if its winner agrees with explicit_gemm here."""
    best = fastest(space, entry)
    if best is None:
        return entry
    reason = _objection(problem, best[0], device)
    if reason is None:
        return entry
    _LOG.warning(
        "%s choice %s for %s is not used: it %s", entry.source, best[0], key_of(problem), reason
    )
    return None


_objections: dict[Hashable, str | None] = {}


def _objection(problem: Problem, candidate: Candidate, device: Any | None) -> str | None:
    """Why an unmeasured candidate must not be used on this device, or None.

    Checked at the first use for each product, kind of weight, dtype and precision; not at all
    where there is no device. A check that could not be made counts against the candidate, but is
    not remembered.
    """
    p = problem
    key = (candidate.identity, p.product, p.kind, p.dtype, p.precision, device)
    if device is None or candidate.identity == reference_of(problem).identity:
        return None
    if key not in _objections:
        try:
            _objections[key] = _compared(problem, candidate, device)
        except Exception as error:
            return f"could not be checked: {type(error).__name__}: {error}"[:500]
    return _objections[key]


def _compared(problem: Problem, candidate: Candidate, device: Any) -> str | None:
    reference = reference_of(problem)

    def work() -> str | None:
        sample = _sample(problem, (reference, candidate), None)
        return check(problem, candidate, reference, sample)

    return _in_worker(work, device)


def _sample(problem: Problem, candidates: Iterable[Candidate], views: object) -> Sample:
    needed = {
        view
        for c in candidates
        for view in c.algorithm.views(c.parameters, problem.product, problem.symmetric)
    }
    return sample_of(problem, views, sorted(needed))  # type: ignore[arg-type]


def _in_worker(work: Callable[[], _Result], device: Any) -> _Result:
    """Run ``work()`` in a thread of its own, on ``device``.

    Inside a trace, JAX would record what ``work`` computes; a new thread has no trace. It does
    not inherit settings either, so 64-bit types are passed on.
    """
    settings = _compat.thread_settings(device)

    def run() -> _Result:
        with settings(), undisturbed():
            return work()

    with concurrent.futures.ThreadPoolExecutor(1, "voxax-tuner") as pool:
        return pool.submit(run).result()


def _known_choice(
    problem: Problem, space: Space, best: tuple[Candidate, float], entry: Entry
) -> Choice:
    """What a cache or voxax itself knows to be fastest; predicted times are none of the choice."""
    if entry.predicted:
        return _choice(problem, space, best[0], "predicted", None, entry)
    source: Source = "shipped" if entry.source == "shipped" else "cached"
    return _choice(problem, space, best[0], source, best[1], entry)


def _choice(
    problem: Problem,
    space: Space,
    candidate: Candidate,
    source: Source,
    seconds: float | None = None,
    entry: Entry | None = None,
) -> Choice:
    name, parameters, _ = candidate.identity
    return Choice(problem, name, parameters, source, seconds, entry, space.refused)


def _to_text(choice: Choice) -> str:
    return json.dumps([choice.algorithm, choice.parameters, choice.source, choice.seconds])


def _from_text(problem: Problem, space: Space, text: str, hardware: HardwareInfo) -> Choice:
    algorithm, parameters, source, seconds = json.loads(text)
    made: Parameters = tuple((name, value) for name, value in parameters)
    entry = cache_for(device_name(hardware)).get(key_of(problem))
    return Choice(problem, algorithm, made, source, seconds, entry, space.refused)
