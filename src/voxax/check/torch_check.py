"""The checker of PyTorch modules and functions; see ``jax`` for the other one."""

from __future__ import annotations

import ast
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra; imported by nobody without it)

from voxax.check import programs, torch_where
from voxax.check import recording as limits
from voxax.check.classify import classify_torch
from voxax.check.findings import Finding, Verdict, worst
from voxax.check.jax_check import report_of
from voxax.check.recording import Question, record_all
from voxax.check.source import (
    Frame,
    Site,
    definition,
    library_of,
    place,
    raised_frames,
    site_at,
    tree_of,
)
from voxax.check.static_report import Report
from voxax.check.subject import Arguments, take_apart
from voxax.check.torch_watch import Operation, TorchSubject, Watched, exported, one_pass

LARGE_CONSTANT = 1 << 20  # bytes


def check(
    target: Callable[..., Any], inputs: Sequence[Any], also: Sequence[Sequence[Any]]
) -> Report:
    """See :func:`voxax.check.check_static`."""
    subject = subject_of(target)
    site = definition(forward_of(target))
    own = library_of(site.file)
    arguments = take_apart(forward_of(target), inputs, kind=kind_of)
    first, held, found, incomplete = _faults(subject, arguments, own, site)
    if first.error is None:
        found += _hazards(first, own)
        found += _unrepeatable(subject, arguments, held, own)
    verdict = worst([f.about.verdict for f in found])  # also of what the source ignores
    if verdict in (Verdict.STATIC, Verdict.PER_VALUE) or _constants_only(found):
        program, error = exported(subject, arguments)
        if error is not None:
            found += [] if found and _constants_only(found) else [_refused(error, own, site)]
        else:
            found = [f for f in found if not _of_constants(f)]
            ran = first.watch.operations if first.watch is not None else []
            found += torch_where.unsafe(program, ran, own, site)
    more = [take_apart(forward_of(target), other, kind=kind_of) for other in also]
    found += programs.differences(arguments, more, site, held)
    return report_of(subject, [arguments, *more], held, found, incomplete, "torch")


def subject_of(target: Any) -> TorchSubject:
    """Prepare what the user gave."""
    is_module = isinstance(target, torch.nn.Module)
    name = (
        type(target).__name__
        if is_module
        else getattr(target, "__qualname__", None) or type(target).__name__
    )
    names = tuple(path for path, _ in target.named_modules() if path) if is_module else ()
    return TorchSubject(target, name.replace("<locals>.", ""), target, (), names)


def forward_of(target: Any) -> Any:
    """What has the parameters and the source: a module's ``forward``."""
    return target.forward if isinstance(target, torch.nn.Module) else target


def kind_of(value: Any) -> str:
    """``tensor``; ``number``, which a tensor could replace; ``static``."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    return "number" if type(value) in (bool, int, float) else "static"


def _faults(
    subject: TorchSubject, arguments: Arguments, own: str | None, site: Site
) -> tuple[Watched, frozenset[str], list[Finding], str]:
    """All that keeps the module from being one program.

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
    by_number = [q for q in questions if q.arguments and q.arguments <= numbers]
    held = frozenset().union(*(q.arguments or () for q in by_number))
    found = [_per_value(classify_torch(q), q.arguments or frozenset()) for q in by_number]
    unseen = (hidden | frozenset(first.watch.escaped)) - held
    for name in sorted(unseen):
        different = _differs(subject, arguments, name, own)
        if different is not None:
            held |= {name}
            where = _use_of(name, site) or different
            found.append(_per_value(Finding("VX201", where, "", (), (name,)), frozenset({name})))
    if held or hidden:
        first, questions, incomplete = search(held | hidden)
    found += [classify_torch(q) for q in questions if not (q.arguments and q.arguments <= numbers)]
    if first.error is not None and isinstance(first.error[0], Exception):
        found += _own_mistake(first, site)
    return first, held, found, incomplete


def _run(subject: TorchSubject, function: Any, arguments: Arguments, *rest: Any) -> Watched:
    del function  # each run has a copy of its own
    return one_pass(subject, arguments, *rest)


def _own_mistake(first: Watched, site: Site) -> list[Finding]:
    assert first.error is not None
    error, where = first.error
    known = {(q.place.site.file, q.place.site.line) for q in first.questions.values()}
    if where is not None and (where.site.file, where.site.line) in known:
        return []
    text = (str(error).strip().splitlines() or [""])[0]
    return [
        Finding.at(
            where or site,
            "VX191",
            f"{type(error).__name__}: {text}",
            "give example inputs that the module accepts",
        )
    ]


def _per_value(finding: Finding, names: frozenset[str]) -> Finding:
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    advice = f" and {finding.fix}" if finding.fix else ""
    return dataclasses.replace(
        finding,
        code="VX201",
        message=f"the program depends on the Python value of {listed}: one program for each value",
        fix=f"fine for few values: each is exported and compiled. For many, pass a tensor{advice}",
    )


def _once(
    subject: TorchSubject, arguments: Arguments, held: frozenset[str], own: str | None
) -> Watched:
    end = time.monotonic() + limits.SECONDS
    return one_pass(subject, arguments, held, frozenset(), own, subject.module_of, end)


def _differs(
    subject: TorchSubject, arguments: Arguments, name: str, own: str | None
) -> Site | None:
    """Where the operators become others with another value of a number; None where they do not."""
    every = arguments.numbers()
    (value,) = (leaf.value for leaf in arguments.leaves if leaf.name == name)
    usual = _once(subject, arguments, every, own)
    others = [not value] if isinstance(value, bool) else [value + 1, value * 2, value / 2]
    for other in (v for v in others if v != value):
        leaves = tuple(
            dataclasses.replace(leaf, value=type(value)(other)) if leaf.name == name else leaf
            for leaf in arguments.leaves
        )
        changed = _once(subject, Arguments(leaves, arguments.structure), every, own)
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
    """The first line of the function that reads a name to decide something."""
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
    """Transfers, large constants, promotions, and tensors that outlive the call."""
    watch = first.watch
    assert watch is not None
    found: list[Finding] = []

    def add(code: str, frames: tuple[Frame, ...], text: str, fix: str, module: str = "") -> None:
        where = place(frames, own)
        if where is not None:
            found.append(Finding.at(where, code, text, fix, module))

    for name, frames, module in watch.moves:
        add(
            "VX303",
            frames,
            f"`{name}` moves a tensor between devices in every step",
            "place inputs and module before the step; for a new tensor, device=x.device",
            module,
        )
    for tensor, frames, module in watch.foreign:
        size = tensor.numel() * tensor.element_size()
        if size > LARGE_CONSTANT:
            add(
                "VX304",
                frames,
                f"a captured tensor of {size / 2**20:.1f} MiB is a constant of the program",
                "make it a buffer (register_buffer), or an argument",
                module,
            )
    for narrow, wide, shape, frames, module in watch.widened:
        add(
            "VX306",
            frames,
            f"{narrow}{list(shape)} becomes {wide} because the other operand is",
            f"convert the other operand: .to(torch.{narrow}), or this one where it is meant",
            module,
        )
    for frames in first.kept:
        add(
            "VX301",
            frames,
            "the tensor computed here is kept after the call has returned",
            "return it; or, where it is state, register_buffer and copy_ into it",
        )
    return found


def _unrepeatable(
    subject: TorchSubject, arguments: Arguments, held: frozenset[str], own: str | None
) -> list[Finding]:
    """Where two runs of the same module on the same inputs differ."""
    subject.reuse = True  # so that a counter in the module shows
    try:
        runs = []
        for _ in range(2):
            subject.restore()
            runs.append(_once(subject, arguments, held, own))
    finally:
        subject.reuse = False
    operations = [run.watch.operations if run.watch is not None else [] for run in runs]
    if any(run.error is not None for run in runs):
        return []
    frames = _first_difference(operations[0], operations[1], True)
    where = place(frames, own) if frames is not None else None
    if where is None:
        return []
    return [
        Finding.at(
            where,
            "VX205",
            "run twice, this line computes something else: a value of Python (a random number, "
            "the time, a counter, a list that grows) is frozen into the program",
            "pass the value as an argument, or draw it with torch",
        )
    ]


def _of_constants(finding: Finding) -> bool:
    return "it depends on no argument" in finding.message


def _constants_only(found: Sequence[Finding]) -> bool:
    """Whether all faults are values of tensors that depend on no input: torch.export may fold."""
    wrong = [f for f in found if f.verdict not in (Verdict.STATIC, Verdict.PER_VALUE)]
    return bool(wrong) and all(_of_constants(f) for f in wrong)


def _refused(error: Exception, own: str | None, site: Site) -> Finding:
    where = place(raised_frames(error), own) or site
    text = (str(error).strip().splitlines() or [""])[0]
    fix = "see the message; it is PyTorch's own"
    return Finding.at(where, "VX192", f"{type(error).__name__}: {text}", fix)
