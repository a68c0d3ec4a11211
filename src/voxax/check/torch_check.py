"""Check modules and functions of PyTorch, and verify a report by exporting for several inputs.

A verification exports the module for inputs of equal shape and counts the programs. It runs the one
program on all of them, compares with the module, and lowers the program to XLA through torchax
where that imports.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import functools
import gc
import importlib
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (an extra)
from torch._subclasses.fake_tensor import FakeTensor  # pyright: ignore[reportMissingImports]
from torch.utils._pytree import tree_leaves  # pyright: ignore[reportMissingImports]

from voxax.check import programs, time_limit, torch_where
from voxax.check.advice import ADVICE
from voxax.check.classify import classify_torch
from voxax.check.findings import Finding, Verdict
from voxax.check.inputs import Inputs, forward_of, lacking
from voxax.check.jax_check import endless, joined, of_numbers, report_of
from voxax.check.programs import INPUTS, Verification
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
from voxax.check.torch_arguments import take_apart
from voxax.check.torch_watch import (
    Operation,
    TorchSubject,
    Watched,
    copied,
    exported,
    one_pass,
    repeatable,
    stored,
)
from voxax.errors import InputError


def check(target: Callable[..., Any], examples: Sequence[Inputs]) -> Report:
    """See :func:`voxax.check.check_static`."""
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
        found += torch_where.unsafe(program, ran, own, site)
    more = [take_apart(forward_of(target), other) for other in examples[1:]]
    found += programs.differences(arguments, more, site, held)
    return report_of(subject, [arguments, *more], held, found, incomplete, "torch")


def subject_of(target: Any) -> TorchSubject:
    """Prepare a function or a module for the check."""
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
    """Return a copy of a lazy module that knows the shapes of its parameters; or the target."""
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
    # Where this fails, so does the check's own run, which says why.
    with repeatable(), torch.no_grad(), contextlib.suppress(Exception):
        copy.deepcopy(inputs).call(module)
    return module


def _faults(
    subject: TorchSubject, arguments: Arguments, own: str | None, site: Site
) -> tuple[Watched, frozenset[str], list[Finding], str]:
    """Find all that keeps the module from being one program.

    Returns:
      ``(a pass with the example values, Python numbers that decide the program, findings, why the
      search is incomplete)``.
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
        # A line that reads several numbers in turn asked for the first alone.
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
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    advice = ADVICE["torch VX201 and"].format(fix=finding.fix)
    return dataclasses.replace(
        finding,
        code="VX201",
        message=f"the program depends on the Python value of {listed}: one program for each value",
        fix=advice if finding.fix else ADVICE["torch VX201"],
    )


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
    """Return the site at which another value of a number changes the operators, or None."""
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
    """Return the first site of the function that reads a name to decide something."""
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
    """Find transfers, large constants and promotions."""
    assert first.watch is not None
    return [
        Finding.at(where, code, text, fix, module)
        for frames, code, text, fix, module in first.watch.hazards
        if (where := place(frames, own)) is not None
    ]


def _twice(
    subject: TorchSubject, arguments: Arguments, held: frozenset[str], own: str | None
) -> list[Finding]:
    """Run one module twice on the same inputs; report differences, and tensors that are kept.

    What the second call neither reads nor leaves there is only stored, and does no harm; what only
    a graph of gradients holds is told at the write that brought the graph.
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
        found.append(
            Finding.at(
                where,
                "VX205",
                "run twice, this line computes something else: a value of Python (a random number, "
                "the time, a counter, a list that grows) is frozen into the program",
                ADVICE["torch VX205"],
            )
        )
    return found


@contextlib.contextmanager
def _collecting_new_objects() -> Iterator[None]:
    """Exclude existing objects from garbage collection: there may be millions."""
    if gc.get_freeze_count():  # somebody else's, which could not be told from ours
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
    """Return the program that ``torch.export`` makes, or the error.

    Only where the pass with the example values did not end may this not end either.
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
    """Return the findings that ``torch.export`` confirms, and one for what only it knows.

    The watch finds the lines; whether there is one program, export decides.
    """
    wrong = [f for f in found if f.about.verdict not in _ONE_PROGRAM]
    if isinstance(error, RanAway):
        assert first.error is not None
        return [*found, endless(*first.error, site)]
    if error is not None:
        return found if wrong else [*found, _refused(error, first, own, site)]
    sized = next(filter(_is_sized, _nodes(program)), None)
    if sized is None:
        return [f for f in found if f not in wrong or _hides(f)]
    return found if wrong else [*found, _sized(sized, own, site)]


def _hides(finding: Finding) -> bool:
    """Return True for a read of a value that export passes over: as text, or as a caught error."""
    where = Place(finding.site, None, (), finding.callers)
    return finding.code == "VX114" or swallowed(where, "RuntimeError")


def _sized(node: Any, own: str | None, site: Site) -> Finding:
    """Report a node of the program that reads a value, or makes a size of one."""
    name = str(getattr(getattr(node.target, "overloadpacket", node.target), "__name__", node.name))
    where = torch_where.noted(node, own, name) or site
    if torch.Tag.data_dependent_output in getattr(node.target, "tags", ()):
        text = "a traced value is turned into a Python number"
        return Finding.at(where, "VX108", text, ADVICE["torch VX108"])
    text = f"how many results `{name}` has depends on the values of its arguments"
    return Finding.at(where, "VX106", text, ADVICE["torch VX106"])


# PyTorch's messages about what it cannot take apart; the first group is the class.
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
        where = None  # in a program that PyTorch wrote
    if where is None and first.watch is not None:
        # The error has no line of the user; an autograd in the forward pass is never exported.
        where = next(filter(None, (place(f, own) for f in first.watch.differentiated)), None)
    return Finding.at(where or site, "VX192", described(error), ADVICE["torch VX192"])


def _last_return(site: Site) -> Site:
    """Return the line of the last ``return`` of a function, from that of its definition."""
    function = next((n for n in enclosing(site) if isinstance(n, ast.FunctionDef)), None)
    lines = [
        n.lineno for n in ast.walk(function or ast.Module([], [])) if isinstance(n, ast.Return)
    ]
    return site_of_line(site.file, max(lines)) if lines else site


@dataclasses.dataclass(frozen=True)
class TorchVerification(Verification):
    """The result of exporting for several inputs.

    Attributes:
      lowering: what lowering to XLA showed, or why there is no such confirmation.
      lowered: how many programs XLA compiled; None where it was not asked.
      served: whether the program computes what the module does, for every input; None where that
        cannot be compared, as the two may draw other random numbers.
    """

    lowering: str = ""
    lowered: int | None = None
    served: bool | None = None

    def __str__(self) -> str:
        if self.error is not None:
            state = "verified" if self.holds else "NOT verified"
            return f"{state}: torch.export: {self.error}"
        served = {True: "; it computes what the module does", None: ""}
        other = "; it computes something else than the module"
        return f"{super().__str__()}{served.get(self.served, other)}; {self.lowering}"


def verify(report: Report) -> TorchVerification:
    """Export the module for five inputs; a static one has the same program for each."""
    arguments: Arguments = report.arguments
    held = frozenset(report.static_arguments) & arguments.numbers()
    may = report.verdict in (Verdict.STATIC, Verdict.PER_VALUE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Numbers that only are computed with are inputs of the program; where PyTorch has no
        # operator for that, they are constants, and stay the same.
        found = _exports(report, held)
        if (found.error or found.sized) and held != arguments.numbers():
            found = _exports(report, arguments.numbers())
            if may and found.error is None and not _same_for_others(report, held):
                text = "another value of a Python number gives another program"
                return TorchVerification(INPUTS, len(found.graphs), text, False)
        if found.error is not None:
            return TorchVerification(INPUTS, len(found.graphs), found.error, not may)
        if found.sized:
            text = "a value of a tensor is read"
            return TorchVerification(INPUTS, len(found.graphs), text, not may)
        frozen = any(f.code == "VX205" for f in report.findings)
        served = None if frozen else _serves(report, found)
        lowering, lowered, wrong = _lower(found.program, found.inputs)
    holds = may and len(found.graphs) == 1 and not wrong and lowered in (1, None)
    holds = holds and served is not False
    return TorchVerification(
        INPUTS, len(found.graphs), None, holds, lowering=lowering, lowered=lowered, served=served
    )


@dataclasses.dataclass
class _Exports:
    """The results of exporting for each of the inputs."""

    inputs: list[list[Any]]
    graphs: set[str]
    program: Any = None
    error: str | None = None
    sized: bool = False


def _exports(report: Report, held: frozenset[str]) -> _Exports:
    inputs = [inputs_of(report.arguments, held, seed) for seed in range(INPUTS)]
    found = _Exports(inputs, set())
    frozen = any(f.code == "VX205" for f in report.findings)
    for values in inputs:
        with _seeded():
            found.program, error = exported(report.subject, report.arguments, values)
        if error is not None:
            found.error = described(error)
            return found
        found.graphs.add(_text(found.program, frozen))
    found.sized = any(map(_is_sized, _nodes(found.program)))
    return found


def _same_for_others(report: Report, held: frozenset[str]) -> bool:
    """Return True if other values of the numbers that are not held change only constants."""
    arguments: Arguments = report.arguments
    texts = set()
    for seed in range(INPUTS):
        values = [
            _other_number(leaf.value, seed)
            if leaf.kind == "number" and leaf.name not in held
            else leaf.value
            for leaf in arguments.leaves
        ]
        with _seeded():
            program, error = exported(report.subject, arguments, values)
        if error is not None:
            return False
        texts.add(_text(program, True))
    return len(texts) == 1


def _other_number(value: Any, seed: int) -> Any:
    if isinstance(value, bool):
        return bool(seed % 2)
    return value + seed


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Draw equal random numbers of Python and NumPy in every export; frozen ones are VX205."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the generator that models use)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _serves(report: Report, found: _Exports) -> bool | None:
    """Compare the one program with the module on all inputs; None where that cannot be."""
    targets = [node.target for node in found.program.graph.nodes]
    if any(torch.Tag.nondeterministic_seeded in getattr(t, "tags", ()) for t in targets):
        return None
    program = found.program.module()
    plain = report.subject.target
    for values in found.inputs:
        module = copied(plain) if isinstance(plain, torch.nn.Module) else plain
        one, two = (
            [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            for result in (
                copy.deepcopy(report.arguments.fill(values)).call(module),
                copy.deepcopy(report.arguments.fill(values)).call(copied(program)),
            )
        )
        if any(isinstance(tensor, FakeTensor) for tensor in two):
            return None  # a constant of the program lost its values in export
        if len(one) != len(two) or not all(map(_equal, one, two)):
            return False
    return True


def _equal(one: Any, two: Any) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, two))
    scale = float(one.detach().double().abs().nan_to_num(0, 0, 0).max()) if one.numel() else 1.0
    return bool(torch.allclose(one, two, 1e-3, 1e-4 * max(1.0, scale), equal_nan=True))


def _nodes(program: Any) -> Iterator[Any]:
    """Yield the nodes of a program, also those in the branches and bodies of its operators."""
    for module in program.graph_module.modules():
        yield from getattr(getattr(module, "graph", None), "nodes", ())


def _is_sized(node: Any) -> bool:
    """Return True for a node of the program that reads a value, or makes a size of one."""
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


def _text(program: Any, frozen: bool) -> str:
    """Return the identity of a program: its operators with all their constants.

    Where values of Python are frozen into it (VX205) these are others in each export, and the
    constants are left out.
    """
    nodes = program.graph.nodes
    if frozen:
        made = [n for n in nodes if n.op == "call_function"]
        return str([(str(n.target), n.meta.get("val")) for n in made])
    values = [str(n.meta.get("val")) for n in nodes]
    constants = {k: _listed(v) for k, v in program.constants.items() if hasattr(v, "tolist")}
    return f"{program.graph}{values}{constants}"


def _listed(constant: Any) -> Any:
    try:
        return constant.tolist()
    except RuntimeError:  # it has no values: made under a transformation, such as vmap
        return list(constant.shape)


def inputs_of(arguments: Arguments, held: frozenset[str], seed: int) -> list[Any]:
    """Return leaves for one of several runs; numbers that are not held are tensors."""
    return [_vary(leaf, held, seed) for leaf in arguments.leaves]


def _vary(leaf: Any, held: frozenset[str], seed: int) -> Any:
    """Return the example's values in another order, scaled; integers stay, as indices must."""
    value = leaf.value
    if leaf.kind == "number" and leaf.name not in held:
        return torch.tensor(value if isinstance(value, bool) else value + seed)
    if leaf.kind != "tensor":
        return value
    plain = value.detach().clone()
    if seed and plain.is_floating_point():
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(plain.numel(), generator=generator)
        plain = plain.reshape(-1)[order].reshape(plain.shape) * (1 + seed / 16)
    return plain.requires_grad_(value.requires_grad)


def _lower(program: Any, inputs: list[list[Any]]) -> tuple[str, Any, bool]:
    """Compile the exported program with XLA.

    Returns:
      ``(in words, programs or None, whether it contradicts)``.
    """
    try:
        bridge = importlib.import_module("torchax.export")
        interop = importlib.import_module("torchax.ops.mappings")
    except Exception as error:  # it has to fit the version of PyTorch
        return (
            f"lowering to XLA unconfirmed: torchax does not import ({described(error)})",
            None,
            False,
        )
    compiled = 0
    try:
        weights, function = bridge.exported_program_to_jax(program)

        def counted(weights: Any, given: Any) -> Any:
            nonlocal compiled
            compiled += 1  # Python runs only when a program is made
            return function(weights, given)

        jitted = jax.jit(counted)
        for values in inputs:
            tensors = [v for v in values if isinstance(v, torch.Tensor)]
            given = tuple(interop.t2j(v.detach()) for v in tensors)
            jax.block_until_ready(jitted(weights, given))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        return f"lowering to XLA raises {described(error)}", compiled, True
    except Exception as error:  # of the bridge, which lacks an operator or a form of one
        return f"lowering to XLA unconfirmed: torchax raises {described(error)}", None, False
    plural = "s" if compiled != 1 else ""
    return f"lowered to XLA: {compiled} program{plural}", compiled, compiled != 1
