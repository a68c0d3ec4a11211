"""The check of JAX functions and flax.nnx modules: it traces them and collects findings."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from voxax import _compat, _compat_tracing
from voxax.check import hazards, programs, time_limit, voxel_checks, where_gradient
from voxax.check.advice import ADVICE
from voxax.check.classify import classify
from voxax.check.findings import Finding, Verdict, with_ignores, worst
from voxax.check.inputs import Inputs, as_static, lacking
from voxax.check.recording import Question, Recording, cut_short, dry_run, record_all
from voxax.check.source import (
    Place,
    Site,
    definition,
    described,
    library_of,
    live_frames,
    place,
    raised_frames,
    swallowed,
)
from voxax.check.static_report import Report
from voxax.check.subject import Arguments, Subject, staged, subject_of, take_apart
from voxax.check.time_limit import RanAway
from voxax.errors import InputError

_Raised = tuple[BaseException, Place | None]


@dataclasses.dataclass(frozen=True)
class Traced:
    """The result of tracing a function: `program` is the closed jaxpr, or None after an error.

    `error` is ``(error, its place)`` or None. `truncations` are the places where 64-bit values were
    cut to 32 bits, with the message of JAX. `asked` has the kind and the place of each request of
    Python for the value of a traced array. `result` is the pytree of the types of the results.
    """

    program: Any
    error: _Raised | None
    truncations: tuple[tuple[Place, str], ...]
    asked: tuple[tuple[str, Place], ...] = ()
    result: Any = None


def check(target: Callable[..., Any], examples: Sequence[Inputs]) -> Report:
    """Check a JAX function or nnx module and return the report; see ``check_static``."""
    subject = subject_of(target)
    site = definition(target)
    own = library_of(site.file)
    arguments = take_apart(subject, examples[0])
    whole = trace(subject, arguments, own)
    first, held, found, incomplete = _faults(subject, arguments, whole, own)
    found += _unhashable(arguments, site)
    usable = whole if not held else trace(subject, arguments, own, held)
    closed = usable.program
    function, values = staged(subject, arguments, held)
    if closed is not None:
        found += programs.unrepeatable(closed, trace(subject, arguments, own, held).program, own)
        found += hazards.leaked(function, values, site, own)
    else:
        if not cut_short(first):
            with contextlib.suppress(Exception), _replaying(first):
                closed = jax.make_jaxpr(function)(*values)
        if first.error is None:
            with _replaying(first):
                found += hazards.leaked(function, values, site, own)
    if closed is not None:
        found += hazards.hazards(closed, site, own)
        found += programs.called_with_both(closed, own)
        found += programs.fed_back(subject, arguments, held, usable, site)
        found += where_gradient.unsafe(closed, own)
        found += voxel_checks.repeated(closed, site, own)
    fix = ADVICE["VX305"]
    found += [Finding.at(where, "VX305", text, fix) for where, text in usable.truncations]
    more = [take_apart(subject, other) for other in examples[1:]]
    found += programs.differences(arguments, more, site, held)
    if first.error is None:
        found += voxel_checks.wasted(subject, [arguments, *more], held, site, own)
    return report_of(subject, [arguments, *more], held, found, incomplete, "jax")


def report_of(
    subject: Subject,
    examples: Sequence[Arguments],
    held: frozenset[str],
    found: Sequence[Finding],
    incomplete: str,
    framework: str,
) -> Report:
    """Make the report of a check from `found`: at most one finding for each place and code.

    `held` has the names of the Python numbers that must be static. `incomplete` is the reason why
    the search for findings is incomplete, or an empty string.
    """
    seen: dict[tuple[Any, ...], Finding] = {}
    for finding in found:
        seen.setdefault((finding.code, finding.file, finding.line, finding.column), finding)
    findings = with_ignores(sorted(seen.values(), key=lambda f: (f.site, f.code)))
    verdict = worst([f.verdict for f in findings])
    static = {leaf.name for leaf in examples[0].leaves if leaf.kind == "static"}
    if verdict is Verdict.STATIC and (static or examples[0].declared):
        verdict = Verdict.PER_VALUE

    def of_module(path: str) -> Verdict:
        inside = (f for f in findings if (f.module + ".").startswith(path + "."))
        return worst([f.verdict for f in inside])

    return Report(
        name=subject.name,
        verdict=verdict,
        findings=tuple(findings),
        modules={path: of_module(path) for path in subject.module_names},
        static_arguments=tuple(sorted(held | static)),
        programs=programs.programs(examples, held),
        incomplete=incomplete,
        subject=subject,
        arguments=examples[0],
        framework=framework,
    )


# What JAX raises when Python asks for a value.
_QUESTIONS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_TRUNCATED = "will be truncated to dtype"


def trace(
    subject: Subject, arguments: Arguments, own: str | None, held: frozenset[str] = frozenset()
) -> Traced:
    """Trace the subject's function as ``jax.jit`` does, with the example arguments `arguments`.

    `held` has the names of the Python numbers that are static. The result contains places in the
    user's code. Code of the library `own`, if any, counts as the user's.
    """
    places: list[tuple[Place, str]] = []

    thread, usual = threading.get_ident(), warnings.showwarning

    def noticed(message: Any, *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() != thread or _TRUNCATED not in str(message):
            usual(message, *args, **kwargs)
            return
        where = place(live_frames(sys._getframe(1)), own)
        if where is not None:
            places.append((where, str(message).split(". ")[0]))

    asked: list[tuple[str, Place]] = []

    def notice(kind: str) -> None:
        where = place(live_frames(sys._getframe(1)), own)
        if where is not None and where.api is None:
            asked.append((kind, where))

    function, values = staged(subject, arguments, held)
    watched = _compat_tracing.noticing(notice)
    with programs.WARNINGS, warnings.catch_warnings(), _compat.fresh_trace(), watched:
        warnings.filterwarnings("always", message=f"(?s).*{_TRUNCATED}")
        warnings.showwarning = noticed
        try:
            with time_limit.ended_by(time_limit.end()):
                traced = jax.jit(function).trace(*values)
        except (Exception, RanAway) as error:
            # The frames of an error that an `except` did not catch point to the `except`.
            of_jax = isinstance(error, _QUESTIONS) and asked
            where = asked[-1][1] if of_jax else place(raised_frames(error), own)
            return Traced(None, (error, where), tuple(places), tuple(asked))
    closed = traced.jaxpr
    result = jax.tree.unflatten(traced.out_tree, closed.out_avals)
    return Traced(closed, None, tuple(places), tuple(asked), result)


@contextlib.contextmanager
def _replaying(recording: Recording) -> Iterator[None]:
    """Return a context in which requests for tracers' values get the recorded answers, in order."""
    answers = iter(recording.answers)

    def handler(kind: str, tracer: Any, context: str) -> Any:
        del kind, tracer, context
        return next(answers)

    with jax.disable_jit(), _compat.fresh_trace(), _compat_tracing.answering(handler):
        yield


def _faults(
    subject: Subject, arguments: Arguments, whole: Traced, own: str | None
) -> tuple[Recording, frozenset[str], list[Finding], str]:
    """Find everything that prevents tracing of the function, such as reads of traced values.

    `whole` is the result of tracing the function. Code of the library `own`, if any, counts as the
    user's.

    Returns:
      ``(recording of a run with the example values, names of Python numbers that must be static,
      findings, why the search is incomplete)``. The last is "" for a complete search.
    """
    unheard = [where for _, where in whole.asked if swallowed(where)]
    site = definition(subject.target)
    if whole.error is not None and isinstance(whole.error[0], RanAway):
        return Recording(error=whole.error), frozenset(), [endless(*whole.error, site)], ""
    if whole.error is None and not unheard:
        return Recording(), frozenset(), [], ""
    first, questions, incomplete = record_all(
        subject.function, arguments, frozenset(), own, subject.module_of
    )
    if whole.error is None:
        sites = {where.site for where in unheard}
        found = [_unheard(classify(q)) for q in questions if q.place.site in sites]
        return first, frozenset(), found, incomplete
    held: frozenset[str] = frozenset()
    decided: dict[Site, Question] = {}
    error, last = whole.error, whole.asked
    questions += _keys(first, whole.error)
    # A line that reads several numbers in turn reads only the first until that one is static.
    while by_number := of_numbers(questions, arguments.numbers() - held):
        held = joined(decided, by_number)
        again = trace(subject, arguments, own, held)
        error, last = again.error, again.asked
        if error is None:
            break
        others = [q for q in questions if q not in by_number]
        first, questions, incomplete = record_all(
            subject.function, arguments, held, own, subject.module_of
        )
        questions += _keys(first, error)
        if cut_short(first):
            questions = [*others, *questions]
            break
    found = [
        _per_value(classify(q), q.arguments or frozenset(), subject, arguments)
        for q in decided.values()
    ]
    if error is None:
        return first, held, found, incomplete
    found += [classify(q) for q in questions]
    if not isinstance(error[0], Exception):
        return first, held, [*found, endless(*error, site)], incomplete
    known = {(q.place.site.file, q.place.site.line) for q in questions}
    where = error[1]
    if not _is_known(where, known) and last and last[-1][1] is where:
        # Python has the value in a plain run: the index of a compiled loop.
        found.append(classify(Question(*last[-1], None, (), "", (), "loop")))
    elif not _is_known(where, known) and not _keys(first, error):
        ends = not cut_short(first) and not first.large
        found.append(_untraceable(subject, arguments, error[0], where, own, known, ends))
    elif first.error is not None and isinstance(first.error[0], Exception):
        # The pass ended early: report an error that no question explains.
        usual = dry_run(subject.function, arguments, own)
        raised = usual[0] if usual is not None else None
        if raised is not None and not isinstance(raised[0], _QUESTIONS):
            ended = _untraceable(subject, arguments, *raised, own, known)
            found += [] if _is_known(raised[1], known) else [ended]
    return first, held, found, incomplete


def _keys(recording: Recording, error: _Raised) -> list[Question]:
    """Return the recorded conversions of tracers to text, if ``error`` is due to such a text.

    Converting a tracer to text raises no error. An error comes when the program looks up the text
    as a key or an attribute and does not find it. For other errors the list is empty.
    """
    missing = isinstance(error[0], KeyError | AttributeError) and "Tracer" in str(error[0])
    return recording.texts if missing else []


def of_numbers(questions: Sequence[Question], numbers: frozenset[str]) -> list[Question]:
    """Return the requests for values that depend only on the Python numbers named in `numbers`."""
    return [q for q in questions if q.arguments and q.arguments <= numbers]


def joined(decided: dict[Site, Question], questions: Sequence[Question]) -> frozenset[str]:
    """Merge requests for values into `decided`, and return all argument names in `decided`.

    `decided` has one request for each site, and is changed. Requests at one site become one
    request, with the argument names of all.
    """
    for question in questions:
        site = question.place.site
        earlier = decided.setdefault(site, question)
        names = (earlier.arguments or frozenset()) | (question.arguments or frozenset())
        decided[site] = dataclasses.replace(earlier, arguments=names)
    return frozenset().union(*(q.arguments or () for q in decided.values()))


def endless(error: BaseException, where: Place | None, site: Site) -> Finding:
    """Return the finding for a run that took too long or read too many values.

    The finding is at `where`, or at `site` if `where` is None. Its message has the text of `error`.
    """
    return Finding.at(
        where or site,
        "VX191",
        f"the example inputs lead to no end: {error}",
        ADVICE["VX191 no end"],
    )


def _unheard(finding: Finding) -> Finding:
    text = f"{finding.message}; the error is caught here, and the program goes another way"
    return dataclasses.replace(finding, message=text)


def _is_known(where: Place | None, known: set[tuple[str, int]]) -> bool:
    return where is not None and (where.site.file, where.site.line) in known


def _unhashable(arguments: Arguments, site: Site) -> list[Finding]:
    """Return findings, at `site`, for arguments that ``jit`` can neither trace nor treat as static.

    These are arguments without a hash that are no arrays or numbers, or that are declared static.
    """
    found = []
    traced = [(e.name, e.value) for e in arguments.leaves if e.kind == "static" and not e.declared]
    for name, value in (*traced, *arguments.declared):
        try:
            hash(value)
        except TypeError:
            kind = type(value).__name__
            fix = ADVICE["VX190 hash"]
            what = f"argument `{name}` is a {kind}: jit cannot trace it, and it has no hash, so it "
            what += "cannot be static"
            if any(name == other for other, _ in arguments.declared):
                what = f"argument `{name}` is static, and a {kind} has no hash: jit refuses it"
                fix = ADVICE["VX190 declared"]
            found.append(Finding("VX190", site, what, arguments=(name,), fix=fix))
    return found


def per_value(finding: Finding, names: frozenset[str], fix: str) -> Finding:
    """Return `finding` as VX201: each value of the Python numbers `names` needs its own program.

    The given finding is about reads of these numbers. `fix` is the advice of the result.
    """
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    text = f"the program depends on the Python value of {listed}: one program for each value"
    return dataclasses.replace(finding, code="VX201", message=text, fix=fix)


def _per_value(
    finding: Finding, names: frozenset[str], subject: Subject, arguments: Arguments
) -> Finding:
    leaves = ((leaf.name, leaf.argument) for leaf in arguments.leaves if leaf.name in names)
    ways = as_static(subject.called, leaves)
    return per_value(finding, names, ADVICE["VX201"].format(ways=ways, fix=finding.fix))


def _untraceable(
    subject: Subject,
    arguments: Arguments,
    error: BaseException,
    where: Place | None,
    own: str | None,
    known: set[tuple[str, int]],
    ends: bool = True,
) -> Finding:
    """Return the finding for `error`, which tracing raised at `where`.

    The code is VX191, an error of the function itself, if a run without compilation raises the
    error too. Otherwise it is VX190, an error of JAX. Another error of that run is not reported,
    because the user sees only the tracing error. `known` has ``(file, line)`` of the recorded
    requests for values, where errors do not count. With `ends` False, a run may need too much time
    or memory: the function does not run again, and the code is VX190.
    """
    plain = _without_jit(subject, arguments, own) if ends else None
    usual = dry_run(subject.function, arguments, own) if ends else None
    raised = usual[0] if usual is not None else None
    if plain is not None and not _is_known(plain[1], known):
        of_own = _same_error(plain, (error, where)) or (
            raised is not None and _same_error(plain, raised)
        )
        if of_own:
            fix = ADVICE["VX191"]
            if "keyword-only" in str(plain[0]):
                fix = lacking(subject.called, arguments.names()) or fix
            return _raised(subject, "VX191", plain, fix)
    runs = ends and plain is None and usual is not None and raised is None
    fix = ADVICE["VX190 runs" if runs else "VX190"]
    return _raised(subject, "VX190", (error, where), fix)


def _raised(subject: Subject, code: str, raised: _Raised, fix: str) -> Finding:
    error, where = raised
    return Finding.at(where or definition(subject.target), code, described(error), fix)


def _same_error(one: _Raised, two: _Raised) -> bool:
    """Return True if two errors, given as ``(error, place)``, have one class and the same text.

    Names of arrays and tracers in the texts are ignored.
    """
    texts = (_ARRAY.sub("array", str(error)) for error, _ in (one, two))
    return type(one[0]) is type(two[0]) and next(texts) == next(texts)


# The names of arrays in messages: a class, and for a tracer also its type.
_ARRAY = re.compile(r"\w*Tracer(<[^>]*>|\(~?\w*\[[^\]]*\]\))?|[\w.]*ArrayImpl")


def _without_jit(subject: Subject, arguments: Arguments, own: str | None) -> _Raised | None:
    """Run the function without tracing, even of loop bodies, and return ``(error, place)``.

    The result is None if there is no error, if the run needs too much time or memory, or if a loop
    of JAX needs ``jit``.
    """
    # Copy the arrays because the function may write into NumPy arrays.
    values = [
        jax.numpy.asarray(leaf.value) if leaf.kind == "array" else leaf.value
        for leaf in arguments.leaves
    ]
    given = sum(getattr(value, "nbytes", 0) for value in values)
    try:
        with (
            time_limit.ended_by(time_limit.end()),
            jax.disable_jit(),
            _compat_tracing.eagerly(given),
        ):
            arguments.fill(values).call(subject.function)
    except (RanAway, _compat_tracing.TraceLimit):
        pass  # nothing is known
    except Exception as error:
        if "disable_jit" not in str(error):  # some loops of JAX need jit
            return error, place(raised_frames(error), own)
    return None


def refuse(inputs: Inputs) -> None:
    """Raise InputError if an example input is a ``jax.ShapeDtypeStruct``, which has no values."""
    for leaf in jax.tree.leaves((inputs.positional, inputs.named)):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise InputError(
                f"example inputs are values, got {leaf}; give e.g. "
                f"jnp.ones({leaf.shape}, {leaf.dtype.name!r})"
            )
