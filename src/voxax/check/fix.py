"""Mend what can be mended mechanically, and keep only what computes the same."""

from __future__ import annotations

import ast
import copy
import dataclasses
import difflib
import functools
import importlib.util
import linecache
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from voxax.check.equal import TRIALS, compare, with_state
from voxax.check.findings import Finding, Rewrite
from voxax.check.rewrite import condition
from voxax.check.static_report import Report
from voxax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Fix:
    """What became of the rewrites of a report.

    Attributes:
      file: the source.
      text: the source with those that are kept.
      kept: findings whose rewrite computes the same.
      refused: findings whose rewrite does not, each with the reason.
      left: findings without a rewrite.
      report: of the mended target; None where nothing was kept.
      trials: the least number of inputs on which a rewrite that is kept was compared.
      notes: what to know about the gradients of rewrites that are kept.
    """

    file: str
    before: str
    text: str
    kept: tuple[Finding, ...]
    refused: tuple[tuple[Finding, str], ...]
    left: tuple[Finding, ...]
    report: Report | None
    trials: int
    notes: tuple[tuple[Finding, str], ...] = ()

    def diff(self) -> str:
        """The change as a unified diff."""
        lines = difflib.unified_diff(
            lines_in(self.before),
            lines_in(self.text),
            f"a/{os.path.basename(self.file)}",
            f"b/{os.path.basename(self.file)}",
        )
        return "".join(line.rstrip("\r\n") + "\n" for line in lines)

    def write(self) -> None:
        """Replace the source. The change is what :meth:`diff` shows."""
        with open(self.file, encoding="utf-8", newline="") as stream:
            if stream.read() != self.before:
                raise InputError(f"{self.file} has changed since it was checked; check it again")
        handle, path = tempfile.mkstemp(dir=os.path.dirname(self.file) or ".")
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(self.text)
        os.chmod(path, os.stat(self.file).st_mode)
        os.replace(path, self.file)


def mend(
    report: Report,
    file: str | os.PathLike[str],
    name: str,
    target: Any,
    inputs: Sequence[Any],
) -> Fix:
    """Try every rewrite of a report, and keep those after which outputs and gradients are the same.

    Each is tried by itself on random inputs, in the shapes and near the values of the example, on
    the target in a copy of the file; see :func:`voxax.check.equal.compare`. That of a branch is
    tried with its condition taken for true and for false as well. A slice that became a mask is the
    same where it was, and zero elsewhere. Nothing is written, and the target is not changed.

    Args:
      report: of ``check_static``.
      file: the target's source; findings in other files are left.
      name: what the target is called in it, such as ``model`` or ``Model.call``.
      target: the target.
      inputs: the example.
    """
    from voxax.check import check_static

    file = os.path.abspath(file)
    with open(file, encoding="utf-8", newline="") as stream:
        before = stream.read()
    lines, imports = lines_in(before), []
    kept: list[Finding] = []
    refused: list[tuple[Finding, str]] = []
    notes: list[tuple[Finding, str]] = []
    done: set[Rewrite] = set()
    trials = TRIALS
    mendable = [f for f in report.counted if f.rewrite is not None and f.file == file]
    with tempfile.TemporaryDirectory() as folder:
        load = functools.partial(_loaded, file=file, folder=folder, name=name, target=target)
        # From the last line up, so that the numbers of those above stay right.
        for finding in sorted(mendable, key=lambda f: -f.rewrite.first_line):  # pyright: ignore[reportOptionalMemberAccess]
            rewrite = finding.rewrite
            assert rewrite is not None
            if rewrite in done:
                kept.append(finding)
                continue
            if any(r.first_line <= rewrite.last_line for r in done):
                refused.append((finding, "it overlaps with another; check again after that"))
                continue
            tried = _replaced(lines, rewrite)
            needed = [*imports, *(i for i in rewrite.imports if i not in imports)]
            number, reason, note = _tried(lines, tried, needed, rewrite, load, file, target, inputs)
            if reason:
                refused.append((finding, reason))
                continue
            lines, imports, trials = tried, needed, min(trials, number)
            done.add(rewrite)
            kept.append(finding)
            notes += [(finding, note)] if note else []
        text = _with_imports(lines, imports) if kept else before
        again = None
        if kept:
            new, _ = load(text)
            again = check_static(new, *inputs)
    left = tuple(f for f in report.counted if f not in mendable)
    return Fix(file, before, text, tuple(kept), tuple(refused), left, again, trials, tuple(notes))


def lines_in(text: str) -> list[str]:
    """Lines with their ends, as Python counts them: ``splitlines`` also ends them at form feeds."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)


def _replaced(lines: Sequence[str], rewrite: Rewrite) -> list[str]:
    first = lines[rewrite.first_line - 1]
    end = first[len(first.rstrip("\r\n")) :] or "\n"
    new = [line + end for line in rewrite.text.rstrip("\n").split("\n")]
    return [*lines[: rewrite.first_line - 1], *new, *lines[rewrite.last_line :]]


def _tried(
    lines: Sequence[str],
    tried: Sequence[str],
    imports: Sequence[str],
    rewrite: Rewrite,
    load: Callable[[str], tuple[Any, str]],
    file: str,
    target: Any,
    inputs: Sequence[Any],
) -> tuple[int, str, str]:
    """On how many inputs a rewrite computes the same, why it does not, and what else to know."""
    try:
        changed = _with_imports(tried, imports)
    except SyntaxError as error:
        return 0, f"the new source raises SyntaxError: {error}", ""
    new, reason = load(changed)
    if reason:
        return 0, reason, ""
    number, reason, note = compare(_copied(target), new, inputs, file, rewrite.pads)
    # Inputs of ours may never be such that a branch is taken, or not.
    first, last = rewrite.first_line, rewrite.last_line
    last_new = last + len(tried) - len(lines)
    tests = _tests("".join(lines), first, last)
    for answer in (True, False) if tests and not reason else ():
        one = _answered("".join(lines), first, last, tests, answer)
        two = _answered("".join(tried), first, last_new, tests, answer)
        (old, reason), (new, other) = (
            load(_with_imports(lines_in(text), imports)) for text in (one, two)
        )
        reason = reason or other or compare(old, new, inputs, file, rewrite.pads, (1,))[1]
        if reason:
            return number, f"{reason}, if the condition is {answer}", ""
    return number, reason, note


def _conditions(test: ast.expr) -> set[str]:
    """A condition in the spellings that a rewrite may give it."""
    return {text for library in ("jnp", "torch") if (text := condition(test, library)) is not None}


def _tests(text: str, first: int, last: int) -> set[str]:
    """The conditions of branches that begin in some lines."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If | ast.IfExp) and first <= node.lineno <= last:
            found |= _conditions(node.test)
    return found


_CHOICES = ("jax.lax.cond", "torch.where")


def _answered(text: str, first: int, last: int, tests: set[str], answer: bool) -> str:
    """The source with those conditions taken for true, or for false, in some lines."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if not first <= getattr(node, "lineno", 0) <= last:
            continue
        if isinstance(node, ast.If | ast.IfExp) and _conditions(node.test) & tests:
            node.test = ast.Constant(answer)
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in _CHOICES:
            continue
        if node.args and ast.unparse(node.args[0]) in tests:
            plain = ast.Constant(answer)
            tensor = ast.parse(f"torch.tensor({answer})", mode="eval").body
            node.args[0] = tensor if ast.unparse(node.func) == "torch.where" else plain
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _copied(target: Any) -> Any:
    """The target for calls that may change it; itself where it cannot be copied."""
    try:
        return copy.deepcopy(target)
    except Exception:  # what its author stored in it decides
        return target


def _with_imports(lines: Sequence[str], imports: Sequence[str]) -> str:
    """The lines with missing imports before the first import, or else the first definition."""
    body = ast.parse("".join(lines)).body
    there: set[str] = set()
    usual: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.Import):
            there |= {ast.unparse(ast.Import([name])) for name in node.names}
        if isinstance(node, ast.Import | ast.ImportFrom):
            usual += [node] if getattr(node, "module", "") != "__future__" else []
    definitions = [n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    first = min((_first_line(n) for n in (usual or definitions)[:1]), default=1) - 1
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    missing = [line + end for line in imports if line not in there]
    return "".join([*lines[:first], *missing, *lines[first:]])


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])


def _loaded(text: str, file: str, folder: str, name: str, target: Any) -> tuple[Any, str]:
    """The target as a changed source makes it, with the state of the present one."""
    path = os.path.join(folder, os.path.basename(file))
    with open(path, "w", encoding="utf-8", newline="") as stream:
        stream.write(text)
    linecache.checkcache(path)
    spec = importlib.util.spec_from_file_location("voxax_mended", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = file  # what it reads beside itself is there
    try:
        exec(compile(text, path, "exec"), module.__dict__)
        found = module
        for part in name.split("."):
            found = getattr(found, part)
        return with_state(found, target), ""
    except Exception as error:
        return None, f"the new source raises {type(error).__name__}: {error}"
