"""The check of PyTorch modules and functions: it runs and exports them, and collects findings.

Every ``where`` of an exported program is tested for NaN gradients: the elementwise operators before
it are evaluated and differentiated at a few values of their inputs. The result is evidence, not a
proof; see :mod:`voxax.check.where_gradient`.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import functools
import gc
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra)

from voxax.check import programs, time_limit
from voxax.check.advice import ADVICE
from voxax.check.classify import classify_torch
from voxax.check.findings import Finding, Verdict
from voxax.check.inputs import Inputs, forward_of, lacking
from voxax.check.jax_check import endless, joined, of_numbers, per_value, report_of
from voxax.check.recording import Question, cut_short, record_all
from voxax.check.source import (
    Frame,
    Place,
    Site,
    definition,
    described,
    enclosing,
    is_file,
    library_of,
    place,
    raised_frames,
    site_at,
    site_of_line,
    swallowed,
    tree_of,
)
from voxax.check.static_report import Report
from voxax.check.subject import Arguments
from voxax.check.time_limit import RanAway
from voxax.check.torch_runs import (
    TorchSubject,
    Watched,
    copied,
    exported,
    one_pass,
    repeatable,
    stored,
    take_apart,
)
from voxax.check.torch_watch import Operation
from voxax.check.where_gradient import (
    ELEMENTWISE,
    MOST_INPUTS,
    NAN,
    SINGULAR,
    Sign,
    expression,
    sign_of,
)
from voxax.errors import InputError


def check(target: Callable[..., Any], examples: Sequence[Inputs]) -> Report:
    """Check a PyTorch module or function and return the report; see ``check_static``."""
    subject = subject_of(initialized(target, examples[0]))
    site = definition(forward_of(target))
    own = library_of(site.file)
    arguments = take_apart(forward_of(target), examples[0])
    first, held, found, incomplete = _faults(subject, arguments, own, site)
    if first.error is None:
        found += _hazards(first, own)
        found += _twice(subject, arguments, held, own)
    program, error = _compiled(subject, arguments, first)
    if first.watch is not None:
        first.watch.forget_gradients()  # export writes to captured tensors too
    found = _judged(found, program, error, first, own, site)
    if program is not None:
        ran = first.watch.operations if first.watch is not None else []
        found += _unsafe(program, ran, own, site)
    more = [take_apart(forward_of(target), other) for other in examples[1:]]
    found += programs.differences(arguments, more, site, held)
    return report_of(subject, [arguments, *more], held, found, incomplete, "torch")


def subject_of(target: Any) -> TorchSubject:
    """Return the :class:`TorchSubject` of a PyTorch function or module."""
    is_module = isinstance(target, torch.nn.Module)
    name = (
        type(target).__name__
        if is_module
        else getattr(target, "__qualname__", None) or type(target).__name__
    )
    names = tuple(path for path, _ in target.named_modules() if path) if is_module else ()
    called = forward_of(target)
    return TorchSubject(target, name.replace("<locals>.", ""), target, (), called, names)


def initialized(target: Any, inputs: Inputs) -> Any:
    """Return a copy of a module with lazy parameters, initialized by a call with the inputs.

    Any other target is returned unchanged.

    Raises:
      InputError: a module with lazy parameters cannot be copied.
    """
    if not isinstance(target, torch.nn.Module):
        return target
    lazy = torch.nn.parameter.is_lazy
    if not any(map(lazy, (*target.parameters(), *target.buffers()))):
        return target
    module = copied(target)
    if module is target:
        raise InputError(
            f"{type(target).__name__} has parameters without a shape and cannot be copied: call it "
            "once before the check"
        )
    # If this fails, the check's own run fails too and reports the reason.
    with repeatable(), torch.no_grad(), contextlib.suppress(Exception):
        copy.deepcopy(inputs).call(module)
    return module


def _faults(
    subject: TorchSubject, arguments: Arguments, own: str | None, site: Site
) -> tuple[Watched, frozenset[str], list[Finding], str]:
    """Find everything that prevents one compiled program from serving all inputs of the module.

    `site` is the definition of the module. Code of the library `own`, if any, counts as the user's.

    Returns:
      ``(recording of a run with the example values, names of Python numbers that decide the
      program, findings, why the search is incomplete)``. The last is "" for a complete search.
    """

    def search(held: frozenset[str]) -> tuple[Any, list[Question], str]:
        run = functools.partial(_run, subject)
        return record_all(subject.function, arguments, held, own, subject.module_of, one_pass=run)

    numbers = arguments.numbers()
    hidden: frozenset[str] = frozenset()  # numbers that must be plain for the module to run
    first, questions, incomplete = search(hidden)
    if first.error is not None and subject.sizes:
        subject.sizes = False  # the module may want plain sizes
        plain = search(hidden)
        subject.sizes = plain[0].error is not None
        if not subject.sizes:
            first, questions, incomplete = plain
    if first.error is not None and numbers:
        bools = frozenset(
            leaf.name for leaf in arguments.leaves if leaf.name in numbers and leaf.value in (0, 1)
        )
        for hidden in (bools, numbers):
            first, questions, incomplete = search(hidden)
            if first.error is None:
                break
    decided: dict[Site, Question] = {}
    held = joined(decided, of_numbers(questions, numbers))
    found: list[Finding] = []
    unseen = (hidden | frozenset(first.watch.escaped)) - held
    for name in sorted(unseen):
        different = _differs(subject, arguments, name, own)
        if different is not None:
            held |= {name}
            where = _use_of(name, site) or different
            found.append(_per_value(Finding("VX201", where, "", (), (name,)), frozenset({name})))
    while held or hidden:
        earlier = questions
        first, questions, incomplete = search(held | hidden)
        if cut_short(first):
            questions = [*earlier, *questions]
            break
        # A line that reads several numbers in turn has read only the first of them.
        by_number = of_numbers(questions, numbers - held - hidden)
        if not by_number:
            break
        held |= joined(decided, by_number)
    found += [_per_value(classify_torch(q), q.arguments or frozenset()) for q in decided.values()]
    found += [classify_torch(q) for q in questions if not (q.arguments and q.arguments <= numbers)]
    if first.error is not None and isinstance(first.error[0], Exception):
        found += _own_mistake(first, site, lacking(subject.called, arguments.names()))
    return first, held, found, incomplete


def _run(subject: TorchSubject, function: Any, arguments: Arguments, *rest: Any) -> Watched:
    del function  # each run has a copy of its own
    return one_pass(subject, arguments, *rest)


def _own_mistake(first: Watched, site: Site, lacks: str) -> list[Finding]:
    assert first.error is not None
    error, where = first.error
    known = {(q.place.site.file, q.place.site.line) for q in first.questions.values()}
    if where is not None and (where.site.file, where.site.line) in known:
        return []
    by_name = "keyword-only" in str(error) and lacks
    fix = by_name or ADVICE["torch VX191"]
    return [Finding.at(where or site, "VX191", described(error), fix)]


def _per_value(finding: Finding, names: frozenset[str]) -> Finding:
    advice = ADVICE["torch VX201 and"].format(fix=finding.fix)
    return per_value(finding, names, advice if finding.fix else ADVICE["torch VX201"])


def _once(
    subject: TorchSubject,
    arguments: Arguments,
    held: frozenset[str],
    own: str | None,
    earlier: Mapping[int, Callable[[], Any]] = MappingProxyType({}),
) -> Watched:
    end = time_limit.end(0.7)
    module_of = subject.module_of
    return one_pass(subject, arguments, held, frozenset(), own, module_of, end, earlier)


def _differs(
    subject: TorchSubject, arguments: Arguments, name: str, own: str | None
) -> Site | None:
    """Return the place of the first operator that depends on the Python number `name`.

    The subject runs with several values of this number and the example values of the other
    arguments. The result is None if no difference is found.
    """
    every = arguments.numbers()
    (value,) = (leaf.value for leaf in arguments.leaves if leaf.name == name)
    usual = _once(subject, arguments, every, own)
    others = [not value] if isinstance(value, bool) else [value + 1, value * 2, value / 2]
    for other in (v for v in others if v != value):
        leaves = tuple(
            dataclasses.replace(leaf, value=type(value)(other)) if leaf.name == name else leaf
            for leaf in arguments.leaves
        )
        changed = _once(subject, dataclasses.replace(arguments, leaves=leaves), every, own)
        if changed.error is not None or usual.watch is None or changed.watch is None:
            continue
        frames = _first_difference(usual.watch.operations, changed.watch.operations, False)
        if frames is not None:
            where = place(frames, own)
            return where.site if where is not None else site_at(*frames[0])
    return None


def _first_difference(
    one: Sequence[Operation], two: Sequence[Operation], constants: bool
) -> tuple[Frame, ...] | None:
    for a, b in zip(one, two, strict=False):
        if a.structure != b.structure or (constants and a.constants != b.constants):
            return a.frames
    shorter, longer = sorted((one, two), key=len)
    return longer[len(shorter)].frames if len(shorter) != len(longer) else None


def _use_of(name: str, site: Site) -> Site | None:
    """Return the site of the first condition, loop, call or index that uses the argument `name`.

    Only the function that is defined at `site` is searched. The result is None if there is no such
    use.
    """
    tree = tree_of(site.file)
    plain = name.split("[")[0].split(".")[0]
    for function in ast.walk(tree) if tree is not None else ():
        if not isinstance(function, ast.FunctionDef) or function.lineno != site.line:
            continue
        for node in ast.walk(function):
            parts = {
                ast.If: "test", ast.IfExp: "test", ast.While: "test", ast.For: "iter",
                ast.Slice: "upper", ast.Call: "args", ast.Subscript: "slice",
            }  # fmt: skip
            part = getattr(node, parts.get(type(node), "-"), None)
            for tested in part if isinstance(part, list) else [part]:
                inner = ast.walk(tested) if isinstance(tested, ast.AST) else ()
                if any(isinstance(n, ast.Name) and n.id == plain for n in inner):
                    assert isinstance(tested, ast.expr)
                    end = tested.end_lineno or tested.lineno
                    columns = tested.col_offset + 1, (tested.end_col_offset or 0) + 1
                    return Site(
                        site.file, tested.lineno, columns[0], end, columns[1], site.function
                    )
    return None


def _hazards(first: Watched, own: str | None) -> list[Finding]:
    """Return findings for the device transfers, large constants and dtype promotions of a run.

    `first` is the recording of the run.
    """
    assert first.watch is not None
    return [
        Finding.at(where, code, text, fix, module)
        for frames, code, text, fix, module in first.watch.hazards
        if (where := place(frames, own)) is not None
    ]


def _twice(
    subject: TorchSubject, arguments: Arguments, held: frozenset[str], own: str | None
) -> list[Finding]:
    """Return findings for calls of one module that differ, and for tensors that outlive a call.

    The module runs twice on the same inputs. A tensor that the first call stores is harmless if the
    second call replaces it without reading it. A tensor that only a graph of gradients keeps is
    reported at the write that added the graph. Numbers named in `held` are plain numbers in both
    runs.
    """
    subject.reuse = True  # so that a counter in the module shows
    try:
        with _collecting_new_objects():
            subject.restore()
            one = _once(subject, arguments, held, own)
            if one.error is not None or one.watch is None:
                return []
            kept = stored(subject, one.watch)
            subject.restore()
            two = _once(subject, arguments, held, own, {n: ref for n, (ref, _) in kept.items()})
            if two.error is not None or two.watch is None:
                return []
            gc.collect()
            harmful = [
                frames
                for number, (reference, frames) in kept.items()
                if reference() is not None or number in two.watch.read_again
            ]
    finally:
        subject.reuse = False
    found = [
        Finding.at(
            where,
            "VX301",
            "the tensor computed here is kept after the call has returned",
            ADVICE["torch VX301"],
            reason="the exported program returns values and keeps none outside of its buffers",
        )
        for frames in harmful
        if (where := place(frames, own)) is not None
    ]
    new = {id(tensor) for reference, _ in two.watch.born if (tensor := reference()) is not None}
    found += [
        Finding.at(
            where,
            "VX311",
            "what is written has gradients, and the tensor outlives the call: each call adds to "
            "its graph of gradients",
            ADVICE["torch VX311"],
        )
        for number, (reference, writes) in two.watch.histories.items()
        if reference() is not None and number not in new | two.watch.given
        for frames in writes
        if (where := place(frames, own)) is not None
    ]
    frames = _first_difference(one.watch.operations, two.watch.operations, True)
    where = place(frames, own) if frames is not None else None
    if where is not None:
        text = (
            "run twice, this line computes something else: a value of Python (a random number, "
            "the time, a counter, a list that grows) is frozen into the program"
        )
        found.append(Finding.at(where, "VX205", text, ADVICE["torch VX205"]))
    return found


@contextlib.contextmanager
def _collecting_new_objects() -> Iterator[None]:
    """Return a context in which garbage collection skips older objects, which may be millions."""
    if gc.get_freeze_count():  # frozen by others: unfreezing would include their objects
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _compiled(
    subject: TorchSubject, arguments: Arguments, first: Watched
) -> tuple[Any, BaseException | None]:
    """Return ``(program, None)`` from ``torch.export``, or ``(None, error)``.

    The time is limited only if the run with the example values, `first`, took too long.
    """
    if first.error is None or not isinstance(first.error[0], RanAway):
        return exported(subject, arguments)
    try:
        with time_limit.ended_by(time_limit.end()):
            return exported(subject, arguments)
    except RanAway as error:
        return None, error


_ONE_PROGRAM = (Verdict.STATIC, Verdict.PER_VALUE)


def _judged(
    found: list[Finding],
    program: Any,
    error: BaseException | None,
    first: Watched,
    own: str | None,
    site: Site,
) -> list[Finding]:
    """Return the findings `found` of the recorded runs, corrected by ``torch.export``.

    ``torch.export`` decides whether one program serves all inputs. It returned `program`, or it
    raised `error`. Findings that it refutes are dropped, and a finding is added if only
    ``torch.export`` shows a problem. `first` is the recorded run with the example values.
    """
    wrong = [f for f in found if f.about.verdict not in _ONE_PROGRAM]
    if isinstance(error, RanAway):
        assert first.error is not None
        return [*found, endless(*first.error, site)]
    if error is not None:
        return found if wrong else [*found, _refused(error, first, own, site)]
    sized = next(filter(is_sized, nodes_of(program)), None)
    if sized is None:
        return [f for f in found if f not in wrong or _hides(f)]
    return found if wrong else [*found, _sized(sized, own, site)]


def _hides(finding: Finding) -> bool:
    """Return True if ``torch.export`` misses the read of a value that `finding` is about.

    It misses the read of a value as text, and a read whose error the program catches.
    """
    where = Place(finding.site, None, (), finding.callers)
    return finding.code == "VX114" or swallowed(where, "RuntimeError")


def _sized(node: Any, own: str | None, site: Site) -> Finding:
    """Return the finding for a node of an exported program that depends on values of tensors.

    The node reads a value, or the size of its result depends on values. The finding is at `site` if
    the node's place is unknown.
    """
    name = str(getattr(getattr(node.target, "overloadpacket", node.target), "__name__", node.name))
    where = _noted(node, own, name) or site
    if torch.Tag.data_dependent_output in getattr(node.target, "tags", ()):
        text = "a traced value is turned into a Python number"
        return Finding.at(where, "VX108", text, ADVICE["torch VX108"])
    text = f"how many results `{name}` has depends on the values of its arguments"
    return Finding.at(where, "VX106", text, ADVICE["torch VX106"])


# PyTorch's messages about classes that it cannot flatten; the first group is the class.
_UNKNOWN = {
    "output": re.compile(r"Found <class '([^']+)'> in output"),
    "input": re.compile(r"Unsupported input type <class '([^']+)'>"),
}


def _refused(error: BaseException, first: Watched, own: str | None, site: Site) -> Finding:
    for what, pattern in _UNKNOWN.items():
        if found := pattern.search(str(error)):
            where = _last_return(site) if what == "output" else site
            text = f"the {what} has a `{found[1]}`, a class that torch.export does not know"
            return Finding.at(where, "VX192", text, ADVICE[f"torch VX192 {what}"])
    where = place(raised_frames(error), own)
    if where is not None and not is_file(where.site.file) and is_file(site.file):
        where = None  # the file is code that PyTorch generated
    if where is None and first.watch is not None:
        # The error has no line of the user. Autograd in the forward pass is never exported.
        where = next(filter(None, (place(f, own) for f in first.watch.differentiated)), None)
    return Finding.at(where or site, "VX192", described(error), ADVICE["torch VX192"])


def _last_return(site: Site) -> Site:
    """Return the site of the last ``return`` of the function defined at `site`; `site` if none."""
    function = next((n for n in enclosing(site) if isinstance(n, ast.FunctionDef)), None)
    lines = [
        n.lineno for n in ast.walk(function or ast.Module([], [])) if isinstance(n, ast.Return)
    ]
    return site_of_line(site.file, max(lines)) if lines else site


def nodes_of(program: Any) -> Iterator[Any]:
    """Yield the nodes of an exported program, also in branches and loop bodies of its operators."""
    for module in program.graph_module.modules():
        yield from getattr(getattr(module, "graph", None), "nodes", ())


def is_sized(node: Any) -> bool:
    """Return True for a node of an exported program whose result has a data-dependent size.

    Also return True for a node that reads the value of a tensor into Python.
    """
    target = node.target
    tags = getattr(target, "tags", ())
    if torch.Tag.data_dependent_output in tags:
        return True
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return any(
        isinstance(size, torch.SymInt)
        for v in values
        if isinstance(v, torch.Tensor)
        for size in v.shape
    )


_CHOICES = {"where", "masked_fill"}
_ELEMENTWISE = ELEMENTWISE | _CHOICES | {
    "rsub", "maximum", "minimum", "sigmoid", "clamp_min", "clamp_max", "logical_and", "logical_or",
    "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "isnan", "isfinite", "isinf",
    "relu", "detach", "clone", "to", "_to_copy", "nan_to_num",
}  # fmt: skip
# These operators change only shapes, so they do nothing to single values.
_RESHAPES = {"expand", "unsqueeze", "squeeze", "view", "reshape", "alias", "contiguous", "detach_"}


def _unsafe(
    program: Any, operations: Sequence[Operation], own: str | None, site: Site
) -> list[Finding]:
    """Report every ``where`` of an exported program with a gradient that can be NaN.

    `operations` are the operators of a recorded run, with their places. `site` is the definition of
    the module, which is reported if no place is known.
    """
    found = []
    choices = [node for node in program.graph.nodes if _operator_of(node) in _CHOICES]
    ran = [o.frames for o in operations if _operator(o.structure[0]) in _CHOICES]
    known = ran if len(ran) == len(choices) else [()] * len(choices)
    for node, frames in zip(choices, known, strict=True):
        if not _is_float(node):
            continue
        inputs, steps = expression(node, _is_followed, _operands)
        if not 0 < len(inputs) <= MOST_INPUTS or not {_operator_of(s) for s in steps} & SINGULAR:
            continue
        bad = _counterexample(inputs, steps)
        if bad is None:
            continue
        where = place(frames, own) or _noted(node, own) or site
        found.append(Finding.at(where, "VX307", NAN.format(bad), ADVICE["torch VX307"]))
    return found


def _operator(name: str) -> str:
    """Return the plain name of an operator: ``where`` for ``aten::where.self``."""
    return name.split("::")[-1].split(".")[0].rstrip("_")


def _operator_of(node: Any) -> str:
    """Return the name of a node's operator: ``sqrt`` for ``aten.sqrt.default`` and ``sqrt_``."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "") or getattr(node.target, "__name__", "")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _is_float(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_followed(node: Any) -> bool:
    return node.op == "call_function" and _operator_of(node) in _ELEMENTWISE | _RESHAPES


def _operands(node: Any) -> list[Any]:
    return [a for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]


def _counterexample(inputs: Sequence[Any], steps: Sequence[Any]) -> float | None:
    """Return a value of one input at which a result is finite and its gradient is NaN, or None.

    `steps` are the program's nodes that compute the result from the nodes `inputs`.
    """
    floats = [i for i, node in enumerate(inputs) if _is_float(node)]
    for probe in itertools.product(*map(_probes, inputs)):
        given = [torch.tensor(v, requires_grad=i in floats) for i, v in enumerate(probe)]
        try:
            with torch.enable_grad():
                result = _evaluate(inputs, steps, given)
            if not math.isfinite(float(result.detach())) or not result.requires_grad:
                continue
            roots = [given[i] for i in floats]
            for i, slope in zip(
                floats, torch.autograd.grad(result, roots, allow_unused=True), strict=True
            ):
                if slope is not None and math.isnan(float(slope)):
                    return float(probe[i])
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError):
            return None  # an operator that cannot be applied to single values
    return None


def _evaluate(inputs: Sequence[Any], steps: Sequence[Any], given: Sequence[Any]) -> Any:
    known = dict(zip(inputs, given, strict=True))
    for node in steps:
        if _operator_of(node) in _RESHAPES:
            known[node] = known[node.args[0]]
            continue
        args = torch.fx.map_arg(node.args, lambda n: known[n])
        kwargs = torch.fx.map_arg(node.kwargs, lambda n: known[n])
        if _operator_of(node) in ("to", "_to_copy"):
            wide = _is_float(node)
            known[node] = args[0].float() if wide else args[0].to(node.meta["val"].dtype)
            continue
        target = node.target
        if str(target).split(".")[-2].endswith("_"):
            args = (args[0].clone(), *args[1:])
        known[node] = target(*args, **kwargs)
    return known[steps[-1]]


def _probes(node: Any) -> Sequence[Any]:
    if node.meta["val"].dtype is torch.bool:
        return (False, True)
    return sign_of(node, _made_by).probes


def _made_by(node: Any) -> Sign | tuple[str, Sequence[Any]]:
    if isinstance(node, int | float):
        return Sign.POSITIVE if node > 0 else Sign.NOT_NEGATIVE if node == 0 else Sign.ANY
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return Sign.ANY
    name, args = _operator_of(node), node.args
    if name == "mul" and len(args) == 2 and args[0] is args[1]:
        return "even power", args
    if name == "pow" and isinstance(args[1], int | float) and args[1] % 2 == 0:
        return "even power", args
    if name in ("max", "min"):  # of one operand, along an axis
        return "first", args
    if name == "clamp":
        value, low, high = (*args, *(node.kwargs.get(k) for k in ("min", "max")[len(args) - 1 :]))
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        return "clamp", (low, value, high)
    given = [*args, *(v for k, v in node.kwargs.items() if k in ("min", "other"))]
    parts = itertools.chain.from_iterable(a if isinstance(a, list | tuple) else (a,) for a in given)
    return name, [part for part in parts if part is not None]


def _noted(node: Any, own: str | None, called: str = "where") -> Site | None:
    """Return the user's innermost site in the stack that PyTorch recorded for a node, or None.

    The user's lines are those outside of installed libraries. Lines in the library `own`, which
    holds the checked model, count too; None if the model is in no library. The site is the call of
    the method `called` in that line, or else the whole line.
    """
    places = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    for file, line in reversed(places):
        owner = library_of(file)
        if owner is None or owner == own:
            return site_of_line(file, int(line), called)
    return None
