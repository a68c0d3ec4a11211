"""Run a function on tracers that know example values, and record every read of a value."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from voxax import _compat, _compat_tracing
from voxax._compat_tracing import ExampleTrace, ExampleTracer
from voxax.check import time_limit
from voxax.check.source import Place, Site, line_name, live_frames, place, raised_frames
from voxax.check.subject import Arguments
from voxax.check.time_limit import RanAway

# A pass ends early after this many requests for values, or this many operations.
MOST_QUESTIONS = 20_000
MOST_OPERATIONS = 200_000
# The most turns of one Python loop whose condition is traced.
MOST_TURNS = 200
# The most passes, each of which takes another side of a branch.
MOST_PASSES = 24


@dataclasses.dataclass(frozen=True)
class Question:
    """A request of Python for the value of a tracer, for example by ``if x > 0``.

    `kind` is the kind of request, such as ``bool`` or ``tolist``. `arguments` has the names of the
    arguments that the value depends on, or None if they are unknown. `chain` has the steps from the
    arguments to the value, last step first. `module` is the path of the submodule that makes the
    request. `shape` and `dtype` are those of the tracer.
    """

    kind: str
    place: Place
    arguments: frozenset[str] | None
    chain: tuple[str, ...]
    module: str
    shape: tuple[int, ...]
    dtype: str


# The identity of a question: site, kind and the library's function that asked.
Key = tuple[Site, str, str | None]


@dataclasses.dataclass
class Recording:
    """The requests for values in one run of a function, and the answers that it got.

    `turned` has the branches that take the opposite side at their first request. `questions` has
    one request for each combination of site, kind and library function that asks. `answers` has all
    answers in order. `error` is ``(error, its place)`` if an error ended the run early, or None.
    `large` is True if some result is too large to compute. `texts` has the requests for the text of
    a value, which matter only if the function uses the text as a name or a key.
    """

    turned: frozenset[Key] = frozenset()
    questions: dict[Key, Question] = dataclasses.field(default_factory=dict)
    answers: list[Any] = dataclasses.field(default_factory=list)
    error: tuple[BaseException, Place | None] | None = None
    large: bool = False
    texts: list[Question] = dataclasses.field(default_factory=list)
    _asked: dict[Key, int] = dataclasses.field(default_factory=dict)

    def answer(self, kind: str, where: Place, value: Any, question: Callable[[], Question]) -> Any:
        """Record a request for a value, and return the value that the checked function gets.

        `kind` is the kind of request, `where` its place, and `value` the true answer. Branches in
        `turned` and endless loops get a different answer. `question` makes the record of the
        request; it is called once for each place and kind.
        """
        key = (where.site, kind, where.api)
        array = isinstance(value, np.ndarray)
        times = self._asked[key] = self._asked.get(key, 0) + 1
        if kind == "bool" and times == 1 and key in self.turned:
            value = ~value.astype(bool) if array else not value
        if key not in self.questions:
            self.questions[key] = self._known(question())
        if kind == "bool" and times > MOST_TURNS:  # a loop that the examples never leave
            value = np.zeros_like(value) if array else False
        self.answers.append(value)
        if len(self.answers) > MOST_QUESTIONS:
            raise RanAway(f"more than {MOST_QUESTIONS} questions for values in one pass")
        return value

    def _known(self, question: Question) -> Question:
        """Return the request `question`, with `arguments` None (unknown) if they may be incomplete.

        The program gets plain numbers as the answers to its requests. A value that it computes from
        such a number seems to depend on no argument, although the number may depend on some.
        """
        behind = any(q.arguments != frozenset() for q in self.questions.values())
        if behind and question.arguments == frozenset():
            return dataclasses.replace(question, arguments=None)
        return question


def record_all(
    function: Callable[..., Any],
    arguments: Arguments,
    held: frozenset[str] = frozenset(),
    own: str | None = None,
    module_of: Callable[[Any], str] = lambda frame: "",
    one_pass: Callable[..., Recording] | None = None,
) -> tuple[Recording, list[Question], str]:
    """Record every read of a traced value in ``function``, on both sides of every branch.

    The function runs once for the example values, then again with branches that take the opposite
    side. `held` has the names of the Python numbers that are static. `own` is the library that
    contains the function, or None. `module_of` returns the path of the submodule that runs in a
    Python frame. `one_pass` runs the function once and records it; None runs it on tracers of JAX.

    Returns:
      ``(the recording of the run with the example values, the requests for values of all runs, why
      runs are missing or cut short)``; the reason is empty if the search is complete.
    """
    end = time_limit.end(0.7)  # the rest is for compiling what was found
    record = one_pass or _record
    first = record(function, arguments, held, frozenset(), own, module_of, end)
    reasons = [cut_short(first)]
    found = dict(first.questions)
    waiting = [frozenset([key]) for key in _branches(first)]
    tried = set(waiting)
    passes = 1
    while waiting and passes < MOST_PASSES and time.monotonic() < end:
        turned = waiting.pop(0)
        passes += 1
        more = record(function, arguments, held, turned, own, module_of, end)
        reasons.append(cut_short(more))
        new = {key: q for key, q in more.questions.items() if key not in found}
        found |= new
        for key in _branches(more):
            if key in new and (both := turned | {key}) not in tried:
                tried.add(both)
                waiting.append(both)
    if waiting and passes >= MOST_PASSES:
        reasons.append(f"more combinations of branches than the {MOST_PASSES} that are tried")
    elif waiting:
        reasons.append(time_limit.too_long())
    return first, list(found.values()), "; ".join(dict.fromkeys(filter(None, reasons)))


def cut_short(recording: Recording) -> str:
    """Return the reason why a recorded run ended early, or an empty string if it did not."""
    error = recording.error[0] if recording.error is not None else None
    return str(error) if isinstance(error, RanAway | _compat_tracing.TraceLimit) else ""


def _branches(recording: Recording) -> list[Any]:
    return [key for key, q in recording.questions.items() if q.kind == "bool"]


def _record(
    function: Callable[..., Any],
    arguments: Arguments,
    held: frozenset[str],
    turned: frozenset[Any],
    own: str | None,
    module_of: Callable[[Any], str],
    end: float,
) -> Recording:
    recording = Recording(turned)
    trace = new_trace(end)

    def handler(kind: str, tracer: Any, context: str) -> Any:
        del context
        frame = sys._getframe(1)
        if kind in ("array", "bool") and _within(frame, "expand_bool_indices"):
            kind = "mask"
        where = place(live_frames(frame), own)
        value = np.asarray(_concrete(tracer))
        if where is None:
            return value
        if time.monotonic() > end:
            raise RanAway(time_limit.too_long())
        if kind == "text":
            recording.texts.append(_question("hash", where, tracer, module_of(frame)))
            return value
        return recording.answer(
            kind, where, value, lambda: _question(kind, where, tracer, module_of(frame))
        )

    values = followed(arguments, held, trace)
    with by_example(trace, handler):
        try:
            with time_limit.ended_by(end):
                arguments.fill(values).call(function)
        except (RanAway, _compat_tracing.TraceLimit) as error:
            recording.error = (error, None)
        except Exception as error:
            recording.error = (error, place(raised_frames(error), own))
    recording.large = trace.is_large(trace.largest)
    return recording


def dry_run(
    function: Callable[..., Any], arguments: Arguments, own: str | None
) -> tuple[tuple[BaseException, Place | None] | None] | None:
    """Run ``function`` without ``jit``, but with the bodies of JAX's loops and branches traced.

    Code of the library `own`, if any, counts as the user's.

    Returns:
      ``(None,)`` if the run succeeds, or ``((error, its place),)`` if it fails. The result is None
      if the run was cut short by the time limit or the limit of operations.
    """

    def handler(kind: str, tracer: Any, context: str) -> Any:
        if _compat_tracing.base_tracer(tracer) is None:  # in the body of a loop
            raise jax.errors.ConcretizationTypeError(tracer, context or kind)
        return np.asarray(_concrete(tracer))

    end = time_limit.end()
    trace = new_trace(end)
    values = followed(arguments, frozenset(), trace)
    try:
        with (
            _compat.fresh_trace(),
            _compat_tracing.answering(handler),
            trace.active(),
            time_limit.ended_by(end),
        ):
            arguments.fill(values).call(function)
    except (RanAway, _compat_tracing.TraceLimit):
        return None
    except Exception as error:
        return ((error, place(raised_frames(error), own)),)
    return (None,)


def new_trace(end: float) -> ExampleTrace:
    """Make a trace that raises ``TraceLimit`` after too many operations or at the time `end`."""
    trace = ExampleTrace()
    trace.limit, trace.end = MOST_OPERATIONS, end
    return trace


def followed(arguments: Arguments, held: frozenset[str], trace: ExampleTrace) -> list[Any]:
    """Return the leaves of the arguments, with a tracer of `trace` for each leaf that is traced.

    A static leaf, or one whose name is in `held`, keeps its value.
    """
    traced = set(arguments.traced(held))
    return [
        trace.argument(leaf.value, leaf.name) if i in traced else leaf.value
        for i, leaf in enumerate(arguments.leaves)
    ]


@contextlib.contextmanager
def by_example(trace: ExampleTrace, handler: _compat_tracing.Handler) -> Iterator[None]:
    """Return a context that records operations in ``trace``; `handler` answers reads of values."""
    with (
        jax.disable_jit(),
        _compat.fresh_trace(),
        _compat_tracing.answering(handler),
        trace.active(),
    ):
        yield


def _concrete(tracer: Any) -> Any:
    value = _compat_tracing.example_of(tracer)
    if _compat_tracing.is_key(value):
        with _compat_tracing.outside():
            return jax.random.key_data(value)
    return value


def _within(frame: Any, function: str, depth: int = 8) -> bool:
    while frame is not None and depth:
        if frame.f_code.co_name == function:
            return True
        frame, depth = frame.f_back, depth - 1
    return False


def _question(kind: str, where: Place, tracer: Any, module: str) -> Question:
    base = _compat_tracing.base_tracer(tracer)
    names, chain = (None, ()) if base is None else _ancestry(base)
    aval = tracer.aval
    return Question(kind, where, names, chain, module, tuple(aval.shape), str(aval.dtype))


def _ancestry(tracer: ExampleTracer) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    """Return ``(names of the arguments that a tracer depends on, the steps that compute it)``.

    The names are None if they are unknown. The steps are texts, last step first.
    """
    names: set[str] = set()
    lines: dict[tuple[str, int], str] = {}
    unknown = False
    seen: set[int] = set()
    queue = [tracer]
    while queue:
        current = queue.pop(0)
        if current.label is not None:
            names.add(current.label)
        node = current.node
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        where = place(_compat_tracing.frames_of(node))
        if where is not None:
            lines.setdefault((where.site.file, where.site.line), line_name(where.site))
        for value in node.inputs:
            base = _compat_tracing.base_tracer(value)
            if base is not None:
                queue.append(base)
            elif isinstance(value, _compat_tracing.Tracer):
                unknown = True
    chain = (*lines.values(), *(f"argument {name}" for name in sorted(names)))
    return (None if unknown and not names else frozenset(names)), chain
