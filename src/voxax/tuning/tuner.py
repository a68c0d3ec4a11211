"""Choosing an algorithm and its parameters for a problem.

:func:`voxax.tuning.decide.decide` follows this table; :func:`choose` measures and checks what the
table asks for, and decides again. A request is a filter on the candidates, so a pinned algorithm is
kept whatever the cache says. The column ``cached`` also holds with ``on`` where this process has no
device of the platform, or has no time left for measuring.

==========  =========================  ===================  ======================  ============
candidates  the cache has              ``on``               ``cached``              ``off``
==========  =========================  ===================  ======================  ============
none        anything                   error                error                   error
one         anything                   it, checked          it, checked             it
several     nothing                    measure              default, checked        default
several     a complete measurement     its fastest          its fastest             default
several     one without a candidate    measure              its fastest             default
several     one without the default,   (not measured)       default, checked        default
            known to be the fastest
several     one in which none ran      measure              default, checked        default
several     the times shipped with     the fastest,         the fastest, checked    default
            voxax                      checked
several     predicted times            measure              the fastest, checked    default
several     a measurement made just    its fastest, or an   (not measured)          (not measured)
            now                        error
==========  =========================  ===================  ======================  ============

- *error*: :class:`AlgorithmError` with every reason.
- *default*: the heuristic of the first algorithm of the space; where nothing is checked, of the
  first whose kernel is not :attr:`Kernel.unproven`.
- *checked*: compared with the reference, once for each kind of problem, where there is a device.
  This takes of the time for measuring; when that is used up, a kernel whose check another set of
  parameters passed is taken unchecked. A candidate that disagrees is rejected. A rejected pin is an
  error; rejected times count as nothing; after a rejected default come the other heuristics, the
  reference, and any candidate.
- *measure*: as many candidates as the time allows; all are remembered, also as skipped. If
  measuring fails, the default is used. Those that time was too short for count as measured in
  later runs, which never stop for them: reports name them, and ``vx.tune`` measures them.

``VOXAX_AUTOTUNE`` chooses the column. Unset it is ``cached`` on TPUs, and where nothing is
requested and the default is known to be the fastest by a wide margin (:attr:`Kernel.decisive`: the
native kernels on CPUs), so that such runs measure nothing and have the same bits; elsewhere it is
``on``. In a job of several processes one decides, and the others take its decision.
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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import jax

from voxax import _compat
from voxax.hardware import HardwareInfo, hardware_of
from voxax.kernels import Parameters, Problem, lookup, names
from voxax.tuning.cache import TuningCache, cache_for, device_name
from voxax.tuning.decide import (
    Choice,
    Policy,
    decide,
    fastest,
    hopeless,
    is_complete,
    likely_first,
)
from voxax.tuning.entry import (
    NO_TIME,
    Entry,
    Measured,
    candidates_of,
    key_of,
    summary_of,
    utc_now,
)
from voxax.tuning.measure import allowance, check, measure, progress, spend, undisturbed
from voxax.tuning.passed import has_passed, note_passed
from voxax.tuning.request import Resolved, autotune_mode, configure_log, epoch
from voxax.tuning.sample import CALLERS_MAP, Sample, concrete_map, sample_of
from voxax.tuning.share import agree
from voxax.tuning.space import Candidate, Space, reference_of, space_of, views_read

_LOG = logging.getLogger("voxax.tuning")
_LOCK = threading.RLock()
_Result = TypeVar("_Result")
_Views = Mapping[str, jax.Array] | None


_unmeasured: contextvars.ContextVar[Literal["", "off", "foreseen"]]
_unmeasured = contextvars.ContextVar("voxax_unmeasured", default="")


@contextlib.contextmanager
def unmeasured(*, foreseen: bool = False) -> Iterator[None]:
    """Inside, this thread chooses as with ``VOXAX_AUTOTUNE=off``, or as :func:`foresee` does."""
    token = _unmeasured.set("foreseen" if foreseen else "off")
    try:
        yield
    finally:
        _unmeasured.reset(token)


_listeners: contextvars.ContextVar[tuple[list[Choice], ...]]
_listeners = contextvars.ContextVar("voxax_choices", default=())


@contextlib.contextmanager
def record_choices() -> Iterator[list[Choice]]:
    """Collect every choice of this thread inside ``with`` in a list.

    A choice is made when a product is lowered: a function that is already compiled makes none.
    """
    heard: list[Choice] = []
    token = _listeners.set((*_listeners.get(), heard))
    try:
        yield heard
    finally:
        _listeners.reset(token)


def choose(
    problem: Problem,
    admitted: Resolved,
    available_views: Iterable[str] | None = None,
    *,
    stated: bool = True,
) -> Choice:
    """The algorithm and parameters to execute ``problem`` with; see the table above.

    Args:
      problem: a product of one layer.
      admitted: names that the request admits.
      available_views: names of the map's arrays that came along; None means all.
      stated: the user asked, also by ``"auto"``.

    Raises:
      AlgorithmError: no admitted algorithm can run; all reasons are given at once.
    """
    configure_log()
    hardware, device = hardware_of(problem.platform)
    space = space_of(problem, admitted, hardware, available_views)
    ruled = not stated and _is_ruled(space, hardware)
    mode = "off" if _unmeasured.get() == "off" else autotune_mode(problem.platform, ruled)
    policy = Policy(mode, device is not None, ruled=ruled)
    if space.candidates and admitted != names(problem.layer.kind):
        for name, reason in space.refused:
            _log_refusal(name, reason)
    if _unmeasured.get() == "foreseen":
        choice = _foreseen(space, device_name(hardware), policy)
    elif mode == "off" or len(space.candidates) < 2:
        choice = _settled(space, None, policy, device)
    else:
        # Also what comes from caches alone: the processes of a job may have different ones.
        among = " ".join(map(str, space.candidates))
        cache = cache_for(device_name(hardware))
        topic = f"{epoch()} {mode} {cache.device} {key_of(problem)} among {among}"

        def settle() -> str:
            # Another thread may be measuring the same problem.
            with _LOCK if mode == "on" else contextlib.nullcontext():
                made = _settled(space, cache, policy, device)
            return json.dumps([made.algorithm, made.parameters, made.source, made.seconds])

        choice = _from_text(space, agree(topic, settle), cache)
    for heard in _listeners.get():
        heard.append(choice)
    return choice


def _is_ruled(space: Space, hardware: HardwareInfo) -> bool:
    """Return whether the default is known to be the fastest by a wide margin."""
    return bool(space.candidates) and space.heuristics[0].kernel.decisive(space.problem, hardware)


def foresee(problem: Problem, admitted: Resolved, *, stated: bool = True) -> Choice:
    """Return the choice of :func:`choose` from what is known now; measure and check nothing.

    A choice that would be measured first is given as ``predicted``.

    Raises:
      AlgorithmError: as :func:`choose`.
    """
    hardware, device = hardware_of(problem.platform)
    space = space_of(problem, admitted, hardware)
    ruled = not stated and _is_ruled(space, hardware)
    mode = autotune_mode(problem.platform, ruled)
    policy = Policy(mode, device is not None, ruled=ruled)
    return _foreseen(space, device_name(hardware), policy)


def _foreseen(space: Space, device: str, policy: Policy) -> Choice:
    entry = None
    if policy.mode != "off" and len(space.candidates) > 1:
        entry = cache_for(device).get(key_of(space.problem))
    return dataclasses.replace(decide(space, entry, policy), pending=None)


def with_known_time(choice: Choice) -> Choice:
    """A pinned choice, which asks no cache, with the time that the user's cache has of it."""
    if choice.source != "pinned" or autotune_mode() == "off":
        return choice
    hardware, _ = hardware_of(choice.problem.platform)
    entry = cache_for(device_name(hardware)).get(key_of(choice.problem))
    if entry is None or entry.source != "measured":
        return choice
    identity = choice.candidate.identity
    known = [m.seconds for m in entry.measured if m.candidate == identity and m.seconds is not None]
    return dataclasses.replace(choice, seconds=known[0], entry=entry) if known else choice


def tune(
    problem: Problem,
    admitted: Resolved,
    views: _Views = None,
    *,
    also: Iterable[Problem] = (),
    anew: bool = False,
    budget: float | None = None,
) -> None:
    """Measure a problem before it is met. See :func:`voxax.tune`.

    Args:
      problem: the problem to measure.
      admitted: the filter.
      views: concrete arrays of a real map, by name; a problem that was measured on another map is
        then measured again. None: on a concrete map like it, else on a recorded occupancy.
      also: the same product under other keys, for which the times hold too.
      anew: measure also what the cache knows.
      budget: seconds, compiling included; None is no limit.
    """
    hardware, device = hardware_of(problem.platform)
    space = space_of(problem, admitted, hardware)
    if device is None or len(space.candidates) < 2:
        return
    cache = cache_for(device_name(hardware))
    with _LOCK:
        known = None if anew else cache.get(key_of(problem))
        views = concrete_map(problem) if views is None else views
        if (
            known is None
            or known.source != "measured"
            or not is_complete(space, known)
            or (views is not None and known.sample != CALLERS_MAP)
        ):
            known = _measure(space, device, cache, views, budget)
    for other in also:
        cache.put(key_of(other), known)


def _settled(space: Space, cache: TuningCache | None, policy: Policy, device: Any) -> Choice:
    """Decide, and do what the decision asks for, until the choice stands."""
    key = key_of(space.problem)
    entry = None if cache is None else cache.get(key)
    while True:
        choice = decide(space, entry, policy)
        if choice.pending == "check":
            reason = _objection(choice, device)
            if reason is None:
                return dataclasses.replace(choice, pending=None)
            _log_rejection(space, choice, reason)
            policy = policy.rejecting(choice.candidate, reason)
        elif choice.pending == "measure" and cache is not None:
            budget, begin = allowance(), time.perf_counter()
            if budget <= 0:
                policy = dataclasses.replace(policy, has_time=False)
                continue
            try:
                entry = _measure(space, device, cache, concrete_map(space.problem), budget)
            except Exception as error:  # out of memory, say: no reason to stop the caller
                spend(time.perf_counter() - begin)
                _log_failure(key, f"{type(error).__name__}: {error}"[:500])
                return decide(space, None, Policy("off", policy.has_device))
            policy = dataclasses.replace(policy, measured=True)
        else:
            return choice


def _measure(
    space: Space, device: Any, cache: TuningCache, views: _Views, budget: float | None
) -> Entry:
    """Measure the candidates and remember all of them; None is no limit of time."""
    begin = time.perf_counter()
    problem, key = space.problem, key_of(space.problem)
    reference = reference_of(problem)
    # vx.tune, without a budget, tries everything.
    known = {} if budget is None else hopeless(space, cache.items())
    tried = [c for c in likely_first(space, cache.get(key)) if c.identity not in known]
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

    with progress(key, len(tried)):
        name, measured = in_worker(work, device)
    reached = {(m.algorithm, m.parameters) for m in measured}
    left = [
        Measured(*c.identity, None, "skipped", known.get(c.identity, NO_TIME))
        for c in space.candidates
        if c.identity[:2] not in reached
    ]
    spent = time.perf_counter() - begin
    spend(spent)
    entry = Entry((*measured, *left), name, "measured", utc_now(), spent)
    cache.put(key, entry)
    _LOG.info("tuned %s", summary_of(problem, entry))
    for line in candidates_of(entry):
        _LOG.debug("  %s", line)
    return cache.get(key) or entry


_objections: dict[Hashable, str | None] = {}
_passed: set[Hashable] = set()


def _objection(choice: Choice, device: Any) -> str | None:
    """The reason why an unmeasured candidate must not be used on this device, or None.

    Checked at the first use for each product, kind of weight, dtype and precision. A check that
    could not be made counts against the candidate, but is not remembered. It takes of the time that
    measuring may take, since two programs are compiled for it. When that is used up, and always for
    :attr:`Kernel.decisive` ones, kernels are taken that passed with other parameters, but for
    pinned ones. That one of the decisive passed is remembered on disk.
    """
    p = choice.problem
    name, parameters, revision = choice.candidate.identity
    checked = (name, revision, p.product, p.layer.kind, p.dtype, p.layer.precision)
    kernel, key = (*checked, device), (*checked, device, parameters)
    if key not in _objections:
        hardware = hardware_of(p.platform)[0]
        trusted, kind = choice.kernel.decisive(p, hardware), device_name(hardware)
        hurried = trusted or allowance() <= 0
        if choice.source != "pinned" and hurried:
            if trusted and kernel not in _passed and has_passed(checked, kind):
                _passed.add(kernel)
            if kernel in _passed:
                return None
        begin = time.perf_counter()
        try:
            _objections[key] = _compared(p, choice.candidate, device)
        except Exception as error:
            return f"could not be checked: {type(error).__name__}: {error}"[:500]
        finally:
            spend(time.perf_counter() - begin)
        if _objections[key] is None:
            _passed.add(kernel)
            if trusted:
                note_passed(checked, kind)
    return _objections[key]


def _compared(problem: Problem, candidate: Candidate, device: Any) -> str | None:
    reference = reference_of(problem)

    def work() -> str | None:
        sample = _sample(problem, (reference, candidate), None)
        return check(problem, candidate, reference, sample)

    return in_worker(work, device)


def _sample(problem: Problem, candidates: Iterable[Candidate], views: _Views) -> Sample:
    return sample_of(problem, views, views_read(problem, candidates))


def in_worker(work: Callable[[], _Result], device: Any) -> _Result:
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


def _from_text(space: Space, text: str, cache: TuningCache) -> Choice:
    algorithm, parameters, source, seconds = json.loads(text)
    made: Parameters = tuple((name, value) for name, value in parameters)
    own = {(c.kernel.name, c.parameters): c.kernel for c in space.candidates}
    kernel = own.get((algorithm, made))
    if kernel is None:  # the portable kernel takes parameters that would not be measured here
        kernels = lookup(algorithm, space.problem.layer.kind)
        kernel = next((k for k in kernels if k.platform == "any"), kernels[-1])
    entry = cache.get(key_of(space.problem))
    return Choice(space.problem, kernel, made, source, seconds, entry, space.refused)


def _log_rejection(space: Space, choice: Choice, reason: str) -> None:
    if choice.source == "pinned":
        return  # an error with the reason follows
    key = key_of(space.problem)
    if fastest(space, choice.entry) is None:
        _LOG.warning("%s is not used for %s: it %s", choice, key, reason)
    else:
        _LOG.warning("%s choice %s for %s is not used: it %s", choice.source, choice, key, reason)


@functools.lru_cache(maxsize=256)
def _log_refusal(name: str, reason: str) -> None:
    """Once per reason."""
    _LOG.warning("%s is skipped: %s", name, reason)


@functools.lru_cache(maxsize=256)
def _log_failure(key: str, error: str) -> None:
    """Once for each problem and error."""
    _LOG.warning("%s could not be measured, and its default is used: %s", key, error)
