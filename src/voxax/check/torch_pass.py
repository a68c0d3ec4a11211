"""Run a PyTorch module once, watched, some of its branches turned."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import io
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (an extra; imported by nobody without it)

from voxax.check import recording as limits
from voxax.check.arguments import Arguments, Leaf
from voxax.check.modules import Subject
from voxax.check.recording import Question, RanAway, Recording
from voxax.check.source import Frame, Place, assigned_name, place, raised_frames
from voxax.check.torch_modes import Asked, Origin, Watch, set_origin
from voxax.check.torch_numbers import symbolic

# Of the parameters of a module that is copied for each pass; above, all passes share one copy.
MOST_COPIED = 1 << 28  # bytes


@dataclasses.dataclass
class Watched(Recording):
    """What one pass found, and what it computed.

    Attributes:
      watch: the operators that ran.
      kept: places whose results outlive the pass.
    """

    watch: Watch | None = None
    kept: tuple[tuple[Frame, ...], ...] = ()


class TorchSubject(Subject):
    """A module, of which every run gets a copy, or a function of tensors."""

    reuse: bool = False
    # Whether sizes that depend on data are numbers that can be asked.
    sizes: bool = True
    module: Any = None

    def fresh(self) -> Any:
        """The module for the next run: a copy, so that the user's is not changed."""
        if not isinstance(self.target, torch.nn.Module):
            return self.target
        if self.module is None or not (self.reuse or self._large()):
            self.module = copied(self.target)
            self.paths = {id(part): path for path, part in self.module.named_modules()}
        # In a module that is reused, too: what was written to has another origin since.
        for name, value in (
            *self.module.named_parameters(),
            *self.module.named_buffers(),
        ):
            set_origin(value, Origin(label=name))
        return self.module

    def restore(self) -> None:
        """The present copy gets its tensors back, which the program may change; no Python state."""
        if not isinstance(self.module, torch.nn.Module) or self.module is self.target:
            return
        given = {**dict(self.target.named_parameters()), **dict(self.target.named_buffers())}
        with torch.no_grad():
            for name, value in (*self.module.named_parameters(), *self.module.named_buffers()):
                if name in given and value.shape == given[name].shape:
                    value.copy_(given[name])

    def _large(self) -> bool:
        size = sum(p.numel() * p.element_size() for p in self.target.parameters())
        return size > MOST_COPIED

    def own_tensors(self) -> set[int]:
        if not isinstance(self.module, torch.nn.Module):
            return set()
        return {id(t) for t in (*self.module.parameters(), *self.module.buffers())}


def copied(module: Any) -> Any:
    """A copy of a module; the module itself where it cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception:  # what its author stored in it decides
        return module


def values_of(arguments: Arguments, held: frozenset[str], own: bool = True) -> list[Any]:
    """Leaves for one run: tensors of our own, and numbers that can be asked."""
    return [_value(leaf, held, own) for leaf in arguments.leaves]


def _value(leaf: Leaf, held: frozenset[str], own: bool) -> Any:
    if leaf.kind == "tensor":
        tensor = leaf.value.detach().clone().requires_grad_(leaf.value.requires_grad)
        if own:
            set_origin(tensor, Origin(label=leaf.name))
        return tensor
    if leaf.kind == "number" and leaf.name not in held and own:
        return symbolic(leaf.value, leaf.name)
    return copy.copy(leaf.value)


@contextlib.contextmanager
def repeatable() -> Any:
    """The same random numbers of PyTorch in every run, and the user's not used up."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        yield


def one_pass(
    subject: TorchSubject,
    arguments: Arguments,
    held: frozenset[str],
    turned: frozenset[Any],
    own: str | None,
    module_of: Callable[[Any], str],
    end: float,
) -> Watched:
    """One run; see :func:`voxax.check.recording.record_all`."""
    recording = Watched({}, [])
    pending = set(turned)
    asked: dict[Any, int] = {}

    def handler(about: Asked, value: Any) -> Any:
        where = place(about.frames, own)
        if where is None:
            return value
        where = dataclasses.replace(where, api=about.api)
        key = (where.site, about.kind, where.api)
        if about.kind == "bool" and key in pending:
            pending.discard(key)
            value = not value
        if key not in recording.questions:
            recording.questions[key] = _question(about, where, value, module_of(about.frame))
        asked[key] = asked.get(key, 0) + 1
        if about.kind == "bool" and asked[key] > limits.MOST_TURNS:
            value = False  # a loop that the examples never leave
        recording.answers.append(value)
        if len(recording.answers) > limits.MOST_QUESTIONS:
            raise RanAway(f"more than {limits.MOST_QUESTIONS} questions for values in one pass")
        return value

    def limit(operations: int) -> None:
        if operations > limits.MOST_OPERATIONS:
            raise RanAway(f"more than {limits.MOST_OPERATIONS} operations in one pass")
        if time.monotonic() > end:
            raise RanAway(limits.TOO_LONG)

    module = subject.fresh()
    values = values_of(arguments, held)
    inputs = {id(v) for v in values}
    watch = Watch(handler, module_of)
    watch.limit = limit
    watch.twins.enabled = subject.sizes
    recording.watch = watch
    result = None
    with repeatable(), np.errstate(all="ignore"):
        try:
            with watch:
                result = module(*arguments.fill(values))
        except RanAway as error:
            recording.error = (error, None)
        except Exception as error:
            recording.error = (error, place(raised_frames(error), own))
    del result
    if recording.error is None:
        recording.kept = _kept(subject, watch, inputs)
    return recording


def _kept(subject: TorchSubject, watch: Watch, inputs: set[int]) -> tuple[tuple[Frame, ...], ...]:
    """Places of tensors that something still holds."""
    gc.collect()
    known = subject.own_tensors() | inputs | {id(t) for t, *_ in watch.foreign}
    found = {}
    for reference, frames in watch.born:
        tensor = reference()
        if tensor is not None and id(tensor) not in known:
            found[id(tensor)] = frames
    return tuple(dict.fromkeys(found.values()))


def _question(about: Asked, where: Place, value: Any, module: str) -> Question:
    names, chain = _ancestry(about.origins)
    names |= about.names
    known = frozenset(names) if about.origins or about.names else None
    chain += tuple(f"argument {name}" for name in sorted(names))
    number = value if isinstance(value, int | float) else None
    return Question(about.kind, where, "", known, chain, module, about.shape, about.dtype, number)


def _ancestry(origins: tuple[Origin, ...]) -> tuple[set[str], tuple[str, ...]]:
    """The arguments and parameters that a value depends on, and the user's lines on the way."""
    names: set[str] = set()
    lines: dict[tuple[str, int], str] = {}
    seen: set[int] = set()
    queue = list(origins)
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        names |= current.names
        if current.label is not None:
            names.add(current.label)
        where = place(current.frames) if current.frames and len(lines) < 8 else None
        if where is not None:
            name = assigned_name(where.site)
            lines.setdefault(
                (where.site.file, where.site.line),
                f"{name} (line {where.site.line})" if name else f"line {where.site.line}",
            )
        queue.extend(current.inputs)
    return names, tuple(lines.values())


class _AsModule(torch.nn.Module):
    """A function as ``torch.export`` takes it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def exported(
    subject: TorchSubject, arguments: Arguments, values: list[Any] | None = None
) -> tuple[Any, Exception | None]:
    """What ``torch.export`` makes of the module: its program, or the error."""
    target = subject.target
    module = copied(target) if isinstance(target, torch.nn.Module) else _AsModule(target)
    if values is None:
        values = values_of(arguments, arguments.numbers(), own=False)
    with repeatable(), _quiet():
        try:
            return torch.export.export(module, arguments.fill(values), strict=False), None
        except Exception as error:
            return None, error


@contextlib.contextmanager
def _quiet() -> Any:
    """Without what ``torch.export`` logs about a failure: the finding says it."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    children = {
        name: child.level
        for name, child in logging.root.manager.loggerDict.items()
        if name.startswith("torch.") and isinstance(child, logging.Logger)
    }
    for name in children:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)
        for name, level in children.items():
            logging.getLogger(name).setLevel(level)
