"""Choose the algorithm and its parameters for one product (forward, dgrad or wgrad) of a layer.

A *candidate* is an algorithm with parameters. The user's request limits the candidates, so a single
requested algorithm is used whatever the cache contains. :func:`voxax.tuning.decide.decide` chooses
by the table below. :func:`choose` measures or checks as the table says, then decides again. The
last three columns are modes, see :func:`voxax.tuning.request.autotune_mode`. The mode ``on`` counts
as ``cached`` if this process has no device of the platform, or no time left for measuring.

==========  =========================  ===================  ======================  ============
candidates  the cache has              ``on``               ``cached``              ``off``
==========  =========================  ===================  ======================  ============
none        anything                   error                error                   error
one         anything                   it, checked          it, checked             it
several     nothing                    measure              default, checked        default
several     a complete measurement     its fastest          its fastest             default
several     an incomplete measurement  measure              its fastest             default
several     one without the default,   measure              default, checked        default
            known to be the fastest
several     an entry without a time    measure              default, checked        default
several     the times shipped with     the fastest,         the fastest, checked    default
            voxax                      checked
several     predicted times            measure              the fastest, checked    default
several     a measurement made just    its fastest, or an   (not measured)          (not measured)
            now                        error
==========  =========================  ===================  ======================  ============

- *error*: :class:`AlgorithmError` with the reason for each algorithm.
- *it*: the only candidate. *Its fastest*: the fastest candidate of that measurement.
- *default*: the default parameters (heuristic) of the first admitted algorithm. If results cannot
  be checked, those of the first algorithm whose kernel is not :attr:`Kernel.unproven`.
- *checked*: the result is compared with the reference algorithm's, once for each kind of problem,
  if there is a device. A candidate with a wrong result is rejected. If it is the only candidate,
  this is an error. If it came from shipped or predicted times, these are ignored. If it was the
  default, the other heuristics, the reference and the other candidates are tried in this order.
- *measure*: as many candidates are measured as the time allows, and the others are stored in the
  cache as skipped. Later runs do not measure skipped ones; reports name them, and ``vx.tune``
  measures them. If measuring fails, the default is used.

In a job of several processes, one decides, and the others use its decision.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Literal

import jax

from voxax.hardware import hardware_of
from voxax.kernels import Problem, names
from voxax.tuning.cache import TuningCache, cache_for, device_name, passed_file
from voxax.tuning.concrete_maps import concrete_map
from voxax.tuning.decide import Choice, Policy, decide
from voxax.tuning.entry import NO_TIME, Entry, Measured, family_of, key_of, utc_now
from voxax.tuning.measure import allowance, check, measure, on_sample, progress
from voxax.tuning.request import Resolved, autotune_mode, configure_log, epoch
from voxax.tuning.sample import CALLERS_MAP, Sample
from voxax.tuning.share import agree
from voxax.tuning.space import Candidate, Identity, Space, space_of

_LOG = logging.getLogger("voxax.tuning")
_LOCK = threading.RLock()  # one thread measures at a time
_Views = Mapping[str, jax.Array] | None


_unmeasured: contextvars.ContextVar[Literal["", "off", "foreseen"]]
_unmeasured = contextvars.ContextVar("voxax_unmeasured", default="")


@contextlib.contextmanager
def unmeasured(*, foreseen: bool = False) -> Iterator[None]:
    """Inside ``with``, make :func:`choose` measure nothing in this thread.

    Args:
      foreseen: False makes :func:`choose` behave as with ``VOXAX_AUTOTUNE=off``. True makes it
        return what :func:`foresee` returns.
    """
    token = _unmeasured.set("foreseen" if foreseen else "off")
    try:
        yield
    finally:
        _unmeasured.reset(token)


_listeners: contextvars.ContextVar[tuple[list[Choice], ...]]
_listeners = contextvars.ContextVar("voxax_choices", default=())


@contextlib.contextmanager
def record_choices() -> Iterator[list[Choice]]:
    """Inside ``with``, collect the results of :func:`choose` in this thread; yield their list.

    A choice is made when JAX lowers a product (forward, dgrad or wgrad of a layer), so a call of a
    function that is already compiled adds none.
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
    """Return the algorithm and parameters for a product; check or measure candidates if needed.

    Args:
      problem: the product (forward, dgrad or wgrad) of a layer.
      admitted: names of the algorithms that the request admits.
      available_views: names of the kernel map's arrays that are available; None means all.
      stated: whether the user made a request, including ``"auto"``.

    Raises:
      AlgorithmError: no admitted algorithm can run; the message lists all reasons.
    """
    configure_log()
    space, cache, policy, device = _situation(problem, admitted, stated, available_views)
    for name, reason in space.refused if admitted != names(problem.layer.kind) else ():
        if space.candidates:
            _warn_once(f"{name} is skipped: {reason}")
    if policy.foreseen or policy.mode == "off" or len(space.candidates) < 2:
        choice = _settle(space, cache, policy, device)
    else:
        choice = _agreed(space, cache, policy, device)
    for heard in _listeners.get():
        heard.append(choice)
    return choice


def foresee(problem: Problem, admitted: Resolved, *, stated: bool = True) -> Choice:
    """Return the choice that :func:`choose` is expected to make, without measuring or checking.

    If :func:`choose` would have to measure, the result's ``source`` is ``predicted``. If there is
    only one candidate, its time comes from the user's cache. Arguments and errors are those of
    :func:`choose`.
    """
    space, cache, policy, device = _situation(problem, admitted, stated)
    return _settle(space, cache, dataclasses.replace(policy, foreseen=True), device)


def tune(
    problem: Problem,
    admitted: Resolved,
    views: _Views = None,
    *,
    also: Iterable[Problem] = (),
    anew: bool = False,
    budget: float | None = None,
) -> None:
    """Measure the candidates for one product of a layer, and store the times in the cache.

    Without `anew`, nothing is measured if the cache has the user's measurements of all candidates.
    Without a device, or with fewer than two candidates, the function does nothing.

    Args:
      problem: the product (forward, dgrad or wgrad).
      admitted: names of the algorithms that the request admits.
      views: concrete arrays of a real kernel map, by name. A product that was measured on a
        recorded scene is then measured again. None takes the concrete map of an earlier call of an
        equal layer if there is one, or else a recorded scene.
      also: further problems, under whose keys the times are stored too.
      anew: whether to measure even if the cache contains all candidates.
      budget: limit in seconds, including compilation; None sets no limit.
    """
    space, cache, _, device = _situation(problem, admitted, True)
    if device is None or len(space.candidates) < 2:
        return
    with _LOCK:
        known = cache.get(space.key)
        views = concrete_map(problem) if views is None else views
        reached = {m.candidate for m in known.measured if m.reached} if known is not None else ()
        if (
            anew
            or known is None
            or known.source != "measured"
            or any(candidate.identity not in reached for candidate in space.candidates)
            or (views is not None and known.sample != CALLERS_MAP)
        ):
            seconds = float("inf") if budget is None else budget
            known = _measure(space, cache, device, known, views, seconds)
    for other in also:
        cache.put(key_of(other), known)


def _situation(
    problem: Problem, admitted: Resolved, stated: bool, views: Iterable[str] | None = None
) -> tuple[Space, TuningCache, Policy, Any]:
    """Return the candidates, the cache, the policy and the device (or None) for a product.

    `admitted` are the algorithms that may be used, and `stated` is whether the user requested them.
    `views` are the names of the kernel map's arrays that are available; None means all. Candidates
    are measured on the returned device; None means that this process cannot measure.
    """
    hardware, device = hardware_of(problem.platform)
    space = space_of(problem, admitted, hardware, views)
    ruled = not stated and any(c.kernel.decisive(problem, hardware) for c in space.heuristics[:1])
    inside = _unmeasured.get()
    mode = "off" if inside == "off" else autotune_mode(problem.platform, ruled)
    policy = Policy(mode, device is not None, ruled=ruled, foreseen=inside == "foreseen")
    return space, cache_for(device_name(hardware)), policy, device


def _agreed(space: Space, cache: TuningCache, policy: Policy, device: Any) -> Choice:
    """Call :func:`_settle` in one process of the JAX job, and return its choice in all processes.

    Choices from caches are shared too, because the processes may have different caches.
    """
    made: list[Choice] = []

    def settled() -> str:
        # Another thread may be measuring the same problem.
        with _LOCK if policy.mode == "on" else contextlib.nullcontext():
            made.append(_settle(space, cache, policy, device))
        return json.dumps([made[0].algorithm, made[0].parameters, made[0].source, made[0].seconds])

    among = " ".join(map(str, space.candidates))
    text = agree(f"{epoch()} {policy.mode} {cache.device} {space.key} among {among}", settled)
    if made:
        return made[0]
    name, parameters, source, seconds = json.loads(text)
    identity = name, tuple(map(tuple, parameters))
    kernel = next(c.kernel for c in space.candidates if c.identity[:2] == identity)
    known = cache.get(space.key), space.refused
    return Choice(space.problem, kernel, identity[1], source, seconds, *known)


def _settle(space: Space, cache: TuningCache, policy: Policy, device: Any) -> Choice:
    """Return the choice of a candidate for a product, after all checks and measurements it needs.

    :func:`decide` makes the choice. If its choice has to be checked or measured, this is done, and
    :func:`decide` is called again unless a check was successful.
    """
    asks = policy.mode != "off" and (policy.foreseen or len(space.candidates) > 1)
    entry = cache.get(space.key) if asks else None
    while True:
        choice = decide(space, entry, policy)
        if choice.pending is None:
            return choice
        if choice.pending == "check":
            reason = _objection(choice, space.reference, device)
            if reason is None:
                return dataclasses.replace(choice, pending=None)
            if choice.source != "pinned":  # a pinned choice leads to an error with the reason
                known = (choice.source, choice, space.key, reason)
                _LOG.warning("the %s choice %s for %s is not used: it %s", *known)
            rejected = {**policy.rejected, choice.candidate.identity: reason}
            policy = dataclasses.replace(policy, rejected=rejected)
        elif (budget := allowance()) <= 0:
            policy = dataclasses.replace(policy, mode="cached")
        else:
            try:
                views = concrete_map(space.problem)
                entry = _measure(space, cache, device, entry, views, budget)
                policy = dataclasses.replace(policy, measured=True)
            except Exception as error:  # for example out of memory: do not stop the caller
                reason = f"{type(error).__name__}: {error}"[:500]
                _warn_once(f"{space.key} could not be measured, and its default is used: {reason}")
                policy = dataclasses.replace(policy, mode="off")


def _measure(
    space: Space,
    cache: TuningCache,
    device: Any,
    known: Entry | None,
    views: _Views,
    budget: float,
) -> Entry:
    """Measure the candidates in `space`, store the results in the cache, and return the entry.

    The entry has the new results, merged with those in the cache. Measuring takes about `budget`
    seconds; if no candidate works by then, the others are measured without a limit. `views` are the
    arrays of a concrete kernel map by name; None takes the map of a recorded scene. Candidates that
    were fast in the entry `known`, or for similar problems, are measured first.
    """
    begin, problem = time.perf_counter(), space.problem
    reference, family = space.reference, family_of(problem)
    similar = [entry for other, entry in cache.items() if other.startswith(family)]
    tried = _likely_first(space, similar if known is None else [*similar, known])

    def run(sample: Sample) -> tuple[str, tuple[Measured, ...]]:
        found = measure(problem, tried, reference, sample, budget)
        if all(m.seconds is None for m in found):  # none of them works: measure the others too
            reached = {m.candidate for m in found}
            rest = [c for c in tried if c.identity not in reached]
            forever = float("inf")
            found += measure(problem, rest, reference, sample, forever) if rest else ()
        return sample.name, found

    with progress(space.key, len(tried)):
        name, measured = on_sample(problem, (reference, *tried), views, device, run)
    reached = {m.candidate for m in measured}
    left = [c.identity for c in space.candidates if c.identity not in reached]
    skipped = (Measured(*identity, None, "skipped", NO_TIME) for identity in left)
    spent = time.perf_counter() - begin
    entry = Entry((*measured, *skipped), name, "measured", utc_now(), spent)
    merged = cache.put(space.key, entry)
    _LOG.info("tuned %s: %s", space.key, entry.summary())
    for line in entry.lines():
        _LOG.debug("  %s", line)
    return merged


def _likely_first(space: Space, known: Iterable[Entry]) -> list[Candidate]:
    """Return the candidates in the order in which to measure them, the promising ones first.

    The order matters, because most of the time is spent on compiling. A candidate is ranked by the
    ratio of its time to the best time of any candidate in the same entry of `known`. If several
    entries have a time for the candidate, the last entry counts. Candidates without a time come
    last.
    """
    ratios: dict[Identity, float] = {}
    for entry in known:
        timed = {m.candidate: m.seconds for m in entry.measured if m.seconds is not None}
        ratios |= {name: seconds / min(timed.values()) for name, seconds in timed.items()}
    return sorted(space.candidates, key=lambda c: ratios.get(c.identity, float("inf")))


_objections: dict[Hashable, str | None] = {}
"""Results of checks (None or the objection) by kernel, kind of problem, device and parameters. A
key without parameters means that the kernel passed a check with some parameters."""


def _objection(choice: Choice, reference: Candidate, device: Any) -> str | None:
    """Check a chosen candidate that was not measured; return why it must not be used, or None.

    A check compiles and runs the candidate and `reference`, and compares their results. The
    process checks a candidate once for each product, kind of weight, dtype and precision. The time
    counts as spent on measuring. If a check cannot run, the candidate must not be used, but the
    next use checks it again.

    If there are several candidates, an earlier success of the kernel with other parameters replaces
    the check in two cases: the budget for measuring is used up, or the kernel is
    :attr:`Kernel.decisive` (known to be by far the fastest). The success of a decisive kernel is
    stored on disk for later processes.
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
    if hurried and (kernel in _objections or (trusted and os.path.isfile(note))):
        _objections[kernel] = None
        return None
    both = candidate, reference
    try:
        _objections[key] = on_sample(p, both, None, device, lambda sample: check(p, *both, sample))
    except Exception as error:
        return f"could not be checked: {type(error).__name__}: {error}"[:500]
    if _objections[key] is None:
        _objections[kernel] = None
        if trusted:
            with contextlib.suppress(OSError):
                note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                note.touch(mode=0o600)
    return _objections[key]


@functools.lru_cache(maxsize=512)
def _warn_once(text: str) -> None:
    _LOG.warning("%s", text)
