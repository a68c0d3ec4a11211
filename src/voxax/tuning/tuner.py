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
  A candidate that disagrees is rejected. A rejected pin is an error; rejected times count as
  nothing; after a rejected default come the other heuristics, the reference, and any candidate.
- *measure*: as many candidates as the time allows; all are remembered, also as skipped. If
  measuring fails, the default is used. Later runs never stop for what was skipped: reports name
  it, and ``vx.tune`` measures it.

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
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import jax

from voxax import _compat
from voxax.hardware import hardware_of
from voxax.kernels import Problem, names
from voxax.tuning.cache import TuningCache, cache_for, device_name, passed_file
from voxax.tuning.concrete_maps import concrete_map
from voxax.tuning.decide import Choice, Policy, decide, likely_first
from voxax.tuning.entry import (
    NO_TIME,
    Entry,
    Measured,
    candidates_of,
    family_of,
    key_of,
    summary_of,
    utc_now,
)
from voxax.tuning.measure import allowance, check, measure, progress, spend, undisturbed
from voxax.tuning.request import Resolved, autotune_mode, configure_log, epoch
from voxax.tuning.sample import CALLERS_MAP, sample_of
from voxax.tuning.share import agree
from voxax.tuning.space import Space, reference_of, space_of, views_read

_LOG = logging.getLogger("voxax.tuning")
_LOCK = threading.RLock()  # one thread measures at a time
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
    space, cache, policy, device = _situation(problem, admitted, stated, available_views)
    for name, reason in space.refused if admitted != names(problem.layer.kind) else ():
        if space.candidates:
            _warn_once(f"{name} is skipped: {reason}")
    made: list[Choice] = []

    def decide_for_all() -> str:
        # Another thread may be measuring the same problem.
        with _LOCK if policy.mode == "on" else contextlib.nullcontext():
            made.append(_settle(space, cache, policy, device))
        return json.dumps([made[0].algorithm, made[0].parameters, made[0].source, made[0].seconds])

    if _unmeasured.get() == "foreseen":
        made.append(foresee(problem, admitted, available_views, stated=stated))
    elif policy.mode == "off" or len(space.candidates) < 2:
        made.append(_settle(space, cache, policy, device))
    else:
        # Also what comes from caches alone: the processes of a job may have different ones.
        among = " ".join(map(str, space.candidates))
        topic = f"{epoch()} {policy.mode} {cache.device} {key_of(problem)} among {among}"
        text = agree(topic, decide_for_all)
        if not made:  # another process of the job decided
            name, parameters, source, seconds = json.loads(text)
            identity = name, tuple(map(tuple, parameters))
            kernel = next(c.kernel for c in space.candidates if c.identity[:2] == identity)
            known = source, seconds, cache.get(key_of(problem)), space.refused
            made.append(Choice(problem, kernel, identity[1], *known))
    for heard in _listeners.get():
        heard.append(made[0])
    return made[0]


def foresee(
    problem: Problem,
    admitted: Resolved,
    available_views: Iterable[str] | None = None,
    *,
    stated: bool = True,
) -> Choice:
    """Return the choice of :func:`choose` from what is known now; measure and check nothing.

    A choice that would be measured first is given as ``predicted``. One that is pinned comes with
    the time that the user's cache has of it. Arguments and errors are those of :func:`choose`.
    """
    space, cache, policy, _ = _situation(problem, admitted, stated, available_views)
    entry = None if policy.mode == "off" else cache.get(key_of(problem))
    choice = dataclasses.replace(decide(space, entry, policy), pending=None)
    if choice.source == "pinned" and entry is not None and entry.source == "measured":
        known = {m.candidate: m.seconds for m in entry.measured if m.seconds is not None}
        if seconds := known.get(choice.candidate.identity):
            return dataclasses.replace(choice, seconds=seconds, entry=entry)
    return choice


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
    space, cache, _, device = _situation(problem, admitted, True)
    if device is None or len(space.candidates) < 2:
        return
    with _LOCK:
        known = None if anew else cache.get(key_of(problem))
        views = concrete_map(problem) if views is None else views
        reached = {m.candidate for m in known.measured if m.reached} if known is not None else ()
        if (
            known is None
            or known.source != "measured"
            or any(candidate.identity not in reached for candidate in space.candidates)
            or (views is not None and known.sample != CALLERS_MAP)
        ):
            known = _measure(space, device, cache, views, budget)
    for other in also:
        cache.put(key_of(other), known)


def _situation(
    problem: Problem, admitted: Resolved, stated: bool, views: Iterable[str] | None = None
) -> tuple[Space, TuningCache, Policy, Any]:
    """The candidates, the cache, what may be done, and the device or None."""
    hardware, device = hardware_of(problem.platform)
    space = space_of(problem, admitted, hardware, views)
    ruled = not stated and any(c.kernel.decisive(problem, hardware) for c in space.heuristics[:1])
    off = _unmeasured.get() == "off"
    mode = "off" if off else autotune_mode(problem.platform, ruled)
    policy = Policy(mode, device is not None, ruled=ruled)
    return space, cache_for(device_name(hardware)), policy, device


def _settle(space: Space, cache: TuningCache, policy: Policy, device: Any) -> Choice:
    """Decide, and do what the decision asks for, until the choice stands."""
    key = key_of(space.problem)
    asks = policy.mode != "off" and len(space.candidates) > 1
    entry = cache.get(key) if asks else None
    while True:
        choice = decide(space, entry, policy)
        if choice.pending is None:
            return choice
        if choice.pending == "check":
            reason = _objection(choice, device)
            if reason is None:
                return dataclasses.replace(choice, pending=None)
            if choice.source != "pinned":  # of which an error with the reason follows
                known = (choice.source, choice, key, reason)
                _LOG.warning("the %s choice %s for %s is not used: it %s", *known)
            policy = policy.rejecting(choice.candidate, reason)
            continue
        budget = allowance()
        if budget <= 0:
            policy = dataclasses.replace(policy, mode="cached")
            continue
        try:
            entry = _measure(space, device, cache, concrete_map(space.problem), budget)
        except Exception as error:  # out of memory, say: no reason to stop the caller
            reason = f"{type(error).__name__}: {error}"[:500]
            _warn_once(f"{key} could not be measured, and its default is used: {reason}")
            return decide(space, None, Policy("off", policy.has_device))
        policy = dataclasses.replace(policy, measured=True)


def _measure(
    space: Space, device: Any, cache: TuningCache, views: _Views, budget: float | None
) -> Entry:
    """Measure the candidates and remember all of them; None is no limit of time."""
    begin = time.perf_counter()
    problem, key, reference = space.problem, key_of(space.problem), reference_of(space.problem)
    family, own = family_of(problem), cache.get(key)
    similar = [entry for other, entry in cache.items() if other.startswith(family)]
    tried = likely_first(space, similar if own is None else [*similar, own])
    seconds = float("inf") if budget is None else budget

    def work() -> tuple[str, tuple[Measured, ...]]:
        sample = sample_of(problem, views, views_read(problem, (reference, *tried)))
        found = measure(problem, tried, reference, sample, seconds)
        if all(m.seconds is None for m in found):  # none works: the others get their turn
            reached = {m.candidate for m in found}
            rest = [c for c in tried if c.identity not in reached]
            found += measure(problem, rest, reference, sample, float("inf")) if rest else ()
        return sample.name, found

    try:
        with progress(key, len(tried)):
            name, measured = in_worker(work, device)
    finally:
        spent = time.perf_counter() - begin
        spend(spent)
    reached = {m.candidate for m in measured}
    left = [c.identity for c in space.candidates if c.identity not in reached]
    skipped = (Measured(*identity, None, "skipped", NO_TIME) for identity in left)
    entry = Entry((*measured, *skipped), name, "measured", utc_now(), spent)
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
    p, candidate = choice.problem, choice.candidate
    name, parameters, revision = candidate.identity
    checked = (name, revision, p.product, p.layer.kind, p.dtype, p.layer.precision)
    kernel, key = (*checked, device), (*checked, device, parameters)
    if key in _objections:
        return _objections[key]
    hardware, _ = hardware_of(p.platform)
    trusted = choice.kernel.decisive(p, hardware)
    note = passed_file(checked, device_name(hardware))
    hurried = choice.source != "pinned" and (trusted or allowance() <= 0)
    if hurried and (kernel in _passed or (trusted and os.path.isfile(note))):
        _passed.add(kernel)
        return None
    reference = reference_of(p)

    def compare() -> str | None:
        sample = sample_of(p, None, views_read(p, (reference, candidate)))
        return check(p, candidate, reference, sample)

    begin = time.perf_counter()
    try:
        _objections[key] = in_worker(compare, device)
    except Exception as error:
        return f"could not be checked: {type(error).__name__}: {error}"[:500]
    finally:
        spend(time.perf_counter() - begin)
    if _objections[key] is None:
        _passed.add(kernel)
        if trusted:
            with contextlib.suppress(OSError):
                note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                note.touch(mode=0o600)
    return _objections[key]


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


@functools.lru_cache(maxsize=512)
def _warn_once(text: str) -> None:
    _LOG.warning("%s", text)
