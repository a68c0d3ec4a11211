"""Mend what can be mended mechanically, and keep only what computes the same."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import linecache
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from voxax.check.finding import Finding, Rewrite
from voxax.check.report import Report
from voxax.errors import InputError

TRIALS = 8
# As far as two orders of the same sum differ in single precision.
TOLERANCE = 1e-5


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
    """

    file: str
    before: str
    text: str
    kept: tuple[Finding, ...]
    refused: tuple[tuple[Finding, str], ...]
    left: tuple[Finding, ...]
    report: Report | None

    def diff(self) -> str:
        """The change as a unified diff."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.text.splitlines(keepends=True),
            f"a/{os.path.basename(self.file)}",
            f"b/{os.path.basename(self.file)}",
        )
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)

    def write(self) -> None:
        """Replace the source. The change is what :meth:`diff` shows."""
        with open(self.file, encoding="utf-8") as stream:
            if stream.read() != self.before:
                raise InputError(f"{self.file} has changed since it was checked; check it again")
        handle, path = tempfile.mkstemp(dir=os.path.dirname(self.file) or ".")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
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
    """Try every rewrite of a report, and keep those after which the outputs are the same.

    Each is tried by itself on random inputs, in the shapes and near the values of the example, on
    the target in a copy of the file. A slice that became a mask is the same where it was, and zero
    elsewhere. Nothing is written.

    Args:
      report: of ``check_static``.
      file: the target's source; findings in other files are left.
      name: what the target is called in it, such as ``model`` or ``Model.call``.
      target: the target.
      inputs: the example.
    """
    from voxax.check import check_static

    file = os.path.abspath(file)
    with open(file, encoding="utf-8") as stream:
        before = stream.read()
    lines, imports = before.splitlines(), []
    kept: list[Finding] = []
    refused: list[tuple[Finding, str]] = []
    done: set[Rewrite] = set()
    mendable = [f for f in report.counted if f.rewrite is not None and f.file == file]
    with tempfile.TemporaryDirectory() as folder:
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
            tried = list(lines)
            tried[rewrite.first_line - 1 : rewrite.last_line] = rewrite.text.splitlines()
            needed = [*imports, *(i for i in rewrite.imports if i not in imports)]
            new, reason = _loaded(_with_imports(tried, needed), file, folder, name, target)
            reason = reason or _differ(target, new, inputs)
            if reason:
                refused.append((finding, reason))
                continue
            lines, imports = tried, needed
            done.add(rewrite)
            kept.append(finding)
        text = _with_imports(lines, imports) if kept else before
        again = None
        if kept:
            new, _ = _loaded(text, file, folder, name, target)
            again = check_static(new, *inputs)
    left = tuple(f for f in report.counted if f not in mendable)
    return Fix(file, before, text, tuple(kept), tuple(refused), left, again)


def _with_imports(lines: Sequence[str], imports: Sequence[str]) -> str:
    """The lines with missing imports before the first import."""
    missing = [line for line in imports if line not in lines]
    starts = (i for i, line in enumerate(lines) if line.startswith(("import ", "from ")))
    usual = [i for i in starts if not lines[i].startswith("from __future__")]
    first = (
        usual[0]
        if usual
        else next(
            (i for i, line in enumerate(lines) if line.startswith(("def ", "class ", "@"))), 0
        )
    )
    return "\n".join([*lines[:first], *missing, *lines[first:]]) + "\n"


def _loaded(text: str, file: str, folder: str, name: str, target: Any) -> tuple[Any, str]:
    """The target as a changed source makes it, with the state of the present one."""
    path = os.path.join(folder, os.path.basename(file))
    with open(path, "w", encoding="utf-8") as stream:
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
        return _with_state(found, target), ""
    except Exception as error:
        return None, f"the new source raises {type(error).__name__}: {error}"


def _with_state(new: Any, old: Any) -> Any:
    """The same parameters: a module is made with random ones."""
    if isinstance(new, type) and not isinstance(old, type):
        new = new()
    if hasattr(old, "state_dict") and hasattr(new, "load_state_dict"):
        new.load_state_dict(old.state_dict())
        new.train(old.training)
    elif type(old).__module__ != "builtins" and hasattr(type(old), "__nnx_repr__"):
        from flax import nnx

        nnx.update(new, nnx.state(old))
    return new


def _differ(old: Callable[..., Any], new: Callable[..., Any], inputs: Sequence[Any]) -> str:
    """Why two functions are not the same; empty where they are."""
    compared = 0
    for trial in range(TRIALS):
        given = _varied(inputs, trial)
        try:
            expected = _called(old, given)
        except Exception:  # these inputs are not for it
            continue
        try:
            found = _called(new, given)
        except Exception as error:
            return f"it raises {type(error).__name__}: {error}"
        reason = _unequal(expected, found)
        if reason:
            return reason
        compared += 1
    return "" if compared else "the target accepts none of the random inputs"


def _called(function: Callable[..., Any], given: Sequence[Any]) -> Any:
    """What a function returns for copies of inputs, so that it may write into them."""
    import copy

    try:
        return function(*copy.deepcopy(given))
    except TypeError:
        # It assigns into arrays: those of JAX refuse.
        return function(
            *jax.tree.map(lambda v: np.array(v) if isinstance(v, jax.Array) else v, list(given))
        )


def _varied(inputs: Sequence[Any], trial: int) -> list[Any]:
    rng = np.random.default_rng(trial)
    return jax.tree.map(lambda value: _vary(value, trial, rng), list(inputs))


def _vary(value: Any, trial: int, rng: np.random.Generator) -> Any:
    """Near the example: other values in arrays; small and negative numbers too."""
    if trial == 0 or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) + (0, 1, 2, -1, -value, -value - 1, -2, 0)[trial % 8]
    if isinstance(value, float):
        return float(value) * (1.0, 0.5, 1.3, 0.1, 0.0, -0.5, -1.0, 1.0)[trial % 8]
    if hasattr(value, "detach"):  # a tensor of PyTorch
        other = _vary(value.detach().cpu().numpy(), trial, rng)
        return value.detach().new_tensor(other).requires_grad_(value.requires_grad)
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return value
    kind = np.dtype(value.dtype).kind if value.dtype != jax.dtypes.bfloat16 else "f"
    if value.shape == () and kind in "iuf":
        number = _vary(float(value) if kind == "f" else int(value), trial, rng)
        number = abs(number) if kind == "u" else number
        return (
            jax.numpy.asarray(number, value.dtype)
            if isinstance(value, jax.Array)
            else (np.asarray(number, value.dtype))
        )
    if kind != "f":
        return value
    scale = float(np.abs(np.asarray(value, np.float64)).max(initial=0)) or 1.0
    drawn = rng.normal(size=value.shape) * scale + (trial % 3 - 1) * scale
    return (
        jax.numpy.asarray(drawn, value.dtype)
        if isinstance(value, jax.Array)
        else (drawn.astype(value.dtype))
    )


def _unequal(expected: Any, found: Any) -> str:
    one, structure = jax.tree.flatten(expected)
    two, other = jax.tree.flatten(found)
    if structure != other:
        return "it returns something of another structure"
    for a, b in zip(one, two, strict=True):
        a, b = _as_numpy(a), _as_numpy(b)
        if a.dtype.kind != b.dtype.kind:
            return f"it returns {b.dtype} in place of {a.dtype}"
        if a.shape != b.shape:
            b = _cut(a, b)
            if b is None:
                return "it returns another shape, and not the same with zeros around it"
        scale = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0))) if a.size else 1.0
        if not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True):
            return "its outputs differ"
    return ""


def _cut(slice: np.ndarray, padded: np.ndarray) -> np.ndarray | None:
    """The part of an array of which the slice is one; None if the rest of it is not zero."""
    if slice.ndim != padded.ndim or slice.shape[1:] != padded.shape[1:]:
        return None
    for start in range(len(padded) - len(slice) + 1):
        part = padded[start : start + len(slice)]
        rest = np.delete(padded, np.s_[start : start + len(slice)], axis=0)
        if not rest.any() and np.allclose(part, slice, rtol=TOLERANCE, atol=TOLERANCE):
            return part
    return None


def _as_numpy(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu().float() if value.dtype.itemsize == 2 else value.detach().cpu()
        return value.numpy()
    array = np.asarray(value)
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)
