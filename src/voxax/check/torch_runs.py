"""Runs of a PyTorch module for the check: recorded runs on copies of the module, and its export."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import io
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (an extra)
from torch._subclasses.fake_tensor import FakeTensorMode  # pyright: ignore[reportMissingImports]
from torch.nn.parameter import (  # pyright: ignore[reportMissingImports]
    UninitializedBuffer,
)
from torch.utils import _pytree  # pyright: ignore[reportMissingImports]

from voxax.check import recording as limits
from voxax.check import time_limit
from voxax.check.inputs import Inputs, position_names
from voxax.check.recording import Question, Recording
from voxax.check.source import Frame, Place, line_name, place, raised_frames
from voxax.check.subject import Arguments, Leaf, Subject
from voxax.check.time_limit import RanAway
from voxax.check.torch_sizes import symbolic
from voxax.check.torch_watch import Asked, Origin, Watch, origin_of, set_origin


@dataclasses.dataclass(frozen=True)
class TorchArguments(Arguments):
    """Example arguments of a PyTorch function, as a pytree; `leaves` leaves out each ``None``.

    `spec` is the structure in PyTorch, which counts ``None`` as a leaf. `present` has False for
    each leaf of `spec` that is ``None``, and True for all other leaves.
    """

    spec: Any = None
    present: tuple[bool, ...] = ()

    def unflatten(self, values: list[Any]) -> Any:
        """Return the pytree of the arguments, with these values as leaves."""
        given = iter(values)
        leaves = [next(given) if there else None for there in self.present]
        return _pytree.tree_unflatten(leaves, self.spec)


def take_apart(function: Callable[..., Any], given: Inputs) -> TorchArguments:
    """Flatten the arguments of ``function`` into leaves with names and kinds."""
    names = [*position_names(function, len(given.positional)), *given.named]
    parts = [*given.positional, *given.named.values()]
    values, spec = _pytree.tree_flatten(
        (given.positional, given.named) if given.named else given.positional
    )
    paths = [(name + p, name) for name, v in zip(names, parts, strict=True) for p in _paths(v)]
    leaves = tuple(
        Leaf(path, value, kind_of(value), argument=argument)
        for (path, argument), value in zip(paths, values, strict=True)
        if value is not None
    )
    present = tuple(value is not None for value in values)
    return TorchArguments(leaves, f"{spec}{present}", bool(given.named), spec=spec, present=present)


def _paths(value: Any) -> list[str]:
    """Return the paths of the leaves of one argument, such as ``['rows'][0]``."""
    try:
        leaves, _ = _pytree.tree_flatten_with_path(value)
    except ValueError:  # a class that tells PyTorch its leaves and not their names
        return [f"[{i}]" for i in range(len(_pytree.tree_leaves(value)))]
    return [_pytree.keystr(path) for path, _ in leaves]


def kind_of(value: Any) -> str:
    """Return a leaf's kind: ``tensor``, ``number`` (a Python number), else ``static``."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    return "number" if type(value) in (bool, int, float) else "static"


# The largest size of the parameters of a module that is copied for each pass. Passes of a larger
# module compute only shapes, as export does. If they need values after all, they share one copy.
MOST_COPIED = 1 << 28  # bytes


@dataclasses.dataclass
class Watched(Recording):
    """The recording of one run: the reads of values, and in `watch` the operators that ran."""

    watch: Watch | None = None


class TorchSubject(Subject):
    """The function or module of PyTorch that is checked; a module is copied for each run.

    `module` is the latest copy; if `reuse` is True, later runs use it again. `sizes` is whether
    reads of data-dependent sizes are recorded. `values` is whether runs compute the values of
    tensors: False computes only shapes, and None is undecided. `fakes` is the PyTorch mode for
    tensors without values.
    """

    reuse: bool = False
    # Whether sizes that depend on data are numbers whose reads are recorded.
    sizes: bool = True
    module: Any = None
    # Whether passes compute values; None until a large module has shown that it needs them.
    values: bool | None = None
    fakes: Any = None

    def fresh(self) -> Any:
        """Return a copy of the module for the next run, so the user's module does not change."""
        if not isinstance(self.target, torch.nn.Module):
            return self.target
        if self.module is None or not (self.reuse or (self.values and self._large())):
            self.module = copied(self.target, {} if self.values else self._fakes())
            self.paths = {id(part): path for path, part in self.module.named_modules()}
        # Also in a module that is reused, because a write changes the origin of a tensor.
        for name, value in (
            *self.module.named_parameters(),
            *self.module.named_buffers(),
        ):
            set_origin(value, Origin(label=name))
        return self.module

    def computes(self) -> bool:
        """Return whether runs compute values of tensors, and not only their shapes."""
        if self.values is None:
            self.values = not isinstance(self.target, torch.nn.Module) or not self._large()
        return self.values

    def compute(self) -> None:
        """Let all further runs compute values of tensors."""
        self.values, self.module = True, None

    def _fakes(self) -> dict[int, Any]:
        """Return a fake tensor (without values) for each tensor of the module, by tensor id."""
        self.fakes = FakeTensorMode(allow_non_fake_inputs=True)
        given = (*self.target.parameters(), *self.target.buffers())
        return {id(t): self.fakes.from_tensor(t, static_shapes=True) for t in given}

    def restore(self) -> None:
        """Reset the tensors of the module's present copy to those of the user's module.

        Python state, such as a counter, is not reset.
        """
        if not isinstance(self.module, torch.nn.Module) or self.module is self.target:
            return
        if not self.values:
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


def copied(module: Any, shared: Mapping[int, Any] = MappingProxyType({})) -> Any:
    """Return a copy of a module, or the module itself if it cannot be copied.

    `shared` maps ids of tensors in the module to the tensors that replace them in the copy.
    """
    # PyTorch can copy parameters without a shape, but not buffers without a shape.
    buffers = [b for b in module.buffers() if isinstance(b, UninitializedBuffer)]
    unshaped: Any = UninitializedBuffer
    new = {id(b): unshaped(device=b.device, dtype=b.dtype) for b in buffers}
    try:
        return copy.deepcopy(module, new | dict(shared))
    except Exception:  # the module may contain anything
        return module


def values_of(arguments: Arguments, held: frozenset[str], own: bool = True) -> list[Any]:
    """Return the leaves of the arguments for one run, with tensors copied.

    If `own` is True, the run can be recorded: Python numbers that are not named in `held` become
    symbolic numbers, and each copied tensor gets the name of its leaf as its origin.
    """
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


def _without_values(value: Any, mode: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    made = mode.from_tensor(value, static_shapes=True)
    set_origin(made, origin_of(value) or Origin())
    return made


@contextlib.contextmanager
def repeatable() -> Any:
    """Return a context with fixed PyTorch random numbers; the user's generator is unchanged."""
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
    earlier: Mapping[int, Callable[[], Any]] = MappingProxyType({}),
) -> Watched:
    """Run the module once and record it, for :func:`voxax.check.recording.record_all`.

    `held`, `own` and `module_of` are described there. `turned` has the branches that take the
    opposite side, and `end` is the ``time.monotonic()`` at which the run must have ended. A run
    that computes only shapes is repeated with values if the module reads values. `earlier` maps ids
    of tensors that an earlier call stored to functions that return the tensors.
    """
    computes, recording = subject.computes(), Watched(turned)

    def handler(about: Asked, value: Any) -> Any:
        where = place(about.frames, own)
        if where is None:
            return value
        where = dataclasses.replace(where, api=about.api)
        return recording.answer(
            about.kind, where, value, lambda: _question(about, where, module_of(about.frame))
        )

    def limit(operations: int) -> None:
        if operations > limits.MOST_OPERATIONS:
            raise RanAway(f"more than {limits.MOST_OPERATIONS} operations in one pass")
        if time.monotonic() > end:
            raise RanAway(time_limit.too_long())

    module = subject.fresh()
    values = values_of(arguments, held)
    shapes: Any = contextlib.nullcontext()
    if not subject.values:
        shapes = subject.fakes
        values = [_without_values(v, shapes) for v in values]
    watch = Watch(handler, module_of)
    watch.given, watch.earlier = {id(v) for v in values}, earlier
    watch.limit = limit
    watch.twins.enabled = subject.sizes
    recording.watch = watch
    with repeatable(), np.errstate(all="ignore"):
        try:
            with time_limit.ended_by(end), shapes, watch:
                arguments.fill(values).call(module)
        except (RanAway, Exception) as error:
            recording.error = (error, place(raised_frames(error), own))
    if recording.error is None:
        watch.forget_gradients()
    if computes or not (watch.valued or recording.error):
        return recording
    subject.compute()
    return one_pass(subject, arguments, held, turned, own, module_of, end, earlier)


def stored(subject: TorchSubject, watch: Watch) -> dict[int, tuple[Any, tuple[Frame, ...]]]:
    """Return the tensors that a recorded run made and something still refers to.

    The result is ``{id: (weak reference, frames)}``. The frames are those that made the tensor,
    innermost first. `watch` is the record of the run. Inputs, captured tensors, and parameters and
    buffers of the module are left out.
    """
    gc.collect()
    known = subject.own_tensors() | watch.given | set(map(id, watch.foreign))
    return {
        id(tensor): (reference, frames)
        for reference, frames in watch.born
        if (tensor := reference()) is not None and id(tensor) not in known
    }


def _question(about: Asked, where: Place, module: str) -> Question:
    names, chain = _ancestry(about.origins)
    names |= about.names
    known = frozenset(names) if about.origins or about.names else None
    chain += tuple(f"argument {name}" for name in sorted(names))
    return Question(about.kind, where, known, chain, module, about.shape, about.dtype)


def _ancestry(origins: tuple[Origin, ...]) -> tuple[set[str], tuple[str, ...]]:
    """Return ``(names, lines)`` for a value that depends on tensors with these origins.

    `names` has the arguments and parameters that the value depends on. `lines` has up to eight
    source lines that compute it, last line first.
    """
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
            lines.setdefault((where.site.file, where.site.line), line_name(where.site))
        queue.extend(current.inputs)
    return names, tuple(lines.values())


class _AsModule(torch.nn.Module):
    """A module that calls a function, because ``torch.export`` takes only modules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(*inputs, **named)


def exported(
    subject: TorchSubject, arguments: Arguments, values: list[Any] | None = None
) -> tuple[Any, Exception | None]:
    """Return ``(program, None)`` from ``torch.export`` of the module, or ``(None, error)``.

    `values` are the leaves of the arguments to export with; None takes copies of the examples.
    """
    target = subject.target
    is_module = isinstance(target, torch.nn.Module)
    # Export gives tensors without values to the program, so it cannot write to the parameters.
    shared = {id(p): p for p in target.parameters()} if is_module else {}
    module = copied(target, shared) if is_module else _AsModule(target)
    if values is None:
        values = values_of(arguments, arguments.numbers(), own=False)
    with repeatable(), _quiet():
        try:
            given = arguments.fill(values)
            made = torch.export.export(module, given.positional, given.named, strict=False)
            return made, None
        except Exception as error:
            return None, error


@contextlib.contextmanager
def _quiet() -> Any:
    """Return a context that silences logs and output: findings report failures of export."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
