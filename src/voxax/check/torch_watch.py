"""Run a PyTorch module, and record its operators and each request for the value of a tensor.

The module runs as ``torch.export`` runs it: ``torch.compiler.is_compiling()`` returns True.

Two modes of PyTorch record. The outer mode sees the functions that the program calls. The inner
mode sees every operator that these functions run, also in code that is not the user's. No list of
operators with data-dependent result sizes is needed: PyTorch tags its own operators, and those of
other libraries show such sizes when applied to tensors without values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra)
from torch._subclasses.fake_tensor import (  # pyright: ignore[reportMissingImports]
    FakeTensor,
)
from torch.overrides import TorchFunctionMode  # pyright: ignore[reportMissingImports]
from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
    TorchDispatchMode,
    _disable_current_modes,
)
from torch.utils._pytree import tree_leaves, tree_map  # pyright: ignore[reportMissingImports]

from voxax.check import torch_compiling, torch_sizes
from voxax.check.advice import ADVICE
from voxax.check.hazards import LARGE_CONSTANT
from voxax.check.source import Frame, live_frames

_HOST = ("tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "__cuda_array_interface__")
_CONDITIONS = ("__bool__", "is_nonzero", "equal", "allclose", "__contains__", "is_same_size")
_NUMBERS = ("__int__", "__index__", "__float__", "__complex__", "item", "__hash__", "__round__")
_TEXT = ("__format__", "__repr__", "__str__")
# Functions that turn Python numbers into values of tensors, on which the program does not depend.
_VALUES = ("tensor", "as_tensor", "scalar_tensor", "asarray", "sym_float", "sym_int")
# Functions whose number arguments are lengths, though PyTorch declares them as values.
_LENGTHS = ("arange", "linspace", "logspace", "range")
# Descriptions in place of the dtype, for a request about a size and one about a number.
SIZE = "size"
FLOAT = "Python float"
# Operators for which values determine the size of the result, and no shape bounds it.
_COUNTING = (torch.ops.aten.repeat_interleave, torch.ops.aten.bincount)
# Functions that differentiate in the forward pass.
_AUTOGRAD = ("grad", "backward")
# Namespaces of PyTorch, whose operators have a tag if sizes of results depend on data.
_OF_PYTORCH = ("aten", "prim", "prims")
_MOVES = ("cpu", "cuda", "xpu", "pin_memory")


@dataclasses.dataclass(eq=False)
class Origin:
    """The origin of a tensor: where and from what it was computed, or which argument it is.

    Attributes:
      inputs: the origins of the tensors that this tensor was computed from.
      frames: the Python frames that computed this tensor, innermost first.
      label: the name of the argument or parameter that this tensor is; None if it was computed.
      names: the Python number arguments that this tensor was computed from.
    """

    inputs: tuple[Origin, ...] = ()
    frames: tuple[Frame, ...] = ()
    label: str | None = None
    names: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a PyTorch function by the program, while it runs.

    Attributes:
      function: the function.
      name: name of the function.
      args: positional arguments of the call.
      kwargs: named arguments of the call.
      frames: the Python frames that call the function, innermost first.
      frame: the innermost frame, as a frame object.
      mixed: whether autocast is on for some device. Within an operator, this cannot be queried.
    """

    function: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    frames: tuple[Frame, ...]
    frame: Any
    mixed: bool


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operator that ran.

    `structure` has the operator's name and the shapes and dtypes of its tensors, `constants` has
    its Python values, and `frames` has the Python frames that called it, innermost first.
    """

    structure: tuple[Any, ...]
    constants: tuple[Any, ...]
    frames: tuple[Frame, ...]


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request of the program for the value of a tensor or number.

    Attributes:
      kind: ``bool``, ``index`` (a number), ``array``, ``tolist``, ``mask``, ``size`` (the size of a
        result, bounded by the size of an input), ``count`` (the size of a result, without a
        bound), ``format`` (text), ``slice`` or ``row`` (a single index).
      api: the function of PyTorch that needs the value; None if Python itself does.
      frames: the Python frames of the request, innermost first.
      frame: the innermost frame, as a frame object.
      origins: the origins of the tensors that the value depends on.
      names: the Python number arguments that the value depends on.
      shape: the shape of the tensor; empty for a number.
      dtype: the dtype of the tensor; a description for a size or a number.
    """

    kind: str
    api: str | None
    frames: tuple[Frame, ...]
    frame: Any
    origins: tuple[Origin, ...]
    names: frozenset[str]
    shape: tuple[int, ...]
    dtype: str


Handler = Callable[[Asked, Any], Any]


class Watch:
    """A context that records what a PyTorch program runs, and reports the values that it reads.

    Two PyTorch modes, :class:`_Functions` and :class:`_Operators`, record into this object.

    Args:
      handler: a function ``(request, true value)`` that returns the value that the program gets.
        The true value is None if there is none, as for the size of a result.
      module_of: a function that returns the path of the submodule that runs in a frame.
    """

    def __init__(self, handler: Handler, module_of: Callable[[Any], str]) -> None:
        self.handler = handler
        self.module_of = module_of
        self.call: Call | None = None
        self.busy = False  # whether the checker itself computes
        self.operations: list[Operation] = []
        self.born: list[tuple[weakref.ref[Any], tuple[Frame, ...]]] = []
        # Frames, code, message, fix and module of each, for `Finding.at`.
        self.hazards: list[tuple[tuple[Frame, ...], str, str, str, str]] = []
        self.foreign: list[Any] = []  # captured tensors
        # Python numbers that were passed to code which is not watched.
        self.escaped: dict[str, tuple[Frame, ...]] = {}
        self.read: set[str] = set()  # numbers that the present call took as values
        self.differentiated: list[tuple[Frame, ...]] = []  # calls of autograd
        self.given: set[int] = set()  # ids of the arguments
        # References to tensors that an earlier call stored, by id. The reference is needed because
        # another tensor may have the id of a freed one.
        self.earlier: Mapping[int, Callable[[], Any]] = {}
        self.read_again: set[int] = set()  # ids of the tensors in `earlier` that were read
        # By id: tensors that a write first gave a graph of gradients, and the places of the writes.
        self.histories: dict[int, tuple[weakref.ref[Any], list[tuple[Frame, ...]]]] = {}
        self.limit: Callable[[int], None] = lambda operations: None
        self.valued = False  # whether the program needs a value of a tensor
        self.twins = torch_sizes.Twins()
        self.functions = _Functions(self)
        self.operators = _Operators(self)

    def __enter__(self) -> None:
        self.entered = contextlib.ExitStack()
        self.entered.enter_context(torch_compiling.compiling())
        for context in (torch_sizes.asking(self.of_number), self.functions, self.operators):
            self.entered.enter_context(context)

    def __exit__(self, *error: Any) -> None:
        self.entered.__exit__(*error)

    def where(self, depth: int) -> tuple[Any, tuple[Frame, ...]]:
        """Return the frame that called PyTorch, and a tuple of this frame and its callers.

        Between two calls of PyTorch functions, it is the frame `depth` frames above the caller of
        this method. The tuple has ``(code, bytecode offset)`` for each frame.
        """
        if self.call is not None:
            return self.call.frame, self.call.frames
        frame = sys._getframe(depth + 1)
        return frame, tuple(live_frames(frame))

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Return a context in which nothing is recorded, for computations of the checker itself."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def forget_gradients(self) -> None:
        """Remove the graphs of gradients that the run added, also from the user's tensors.

        This frees the tensors to which only such a graph refers.
        """
        made = (reference for reference, _ in self.born)
        for reference in (*made, *(reference for reference, _ in self.histories.values())):
            tensor = reference()
            if tensor is not None and tensor.grad_fn is not None and tensor._base is None:
                tensor.detach_()

    def ask(self, kind: str, api: str | None, tensor: Any, value: Any = None) -> Any:
        """Report a read of a tensor's value to the handler, and return the handler's answer.

        `kind` and `api` are attributes of :class:`Asked`. `value` is the true value, or None if
        there is none.
        """
        call = self.call
        frame, frames = self.where(2)
        of = [tensor, *(tree_leaves((call.args, call.kwargs)) if call is not None else ())]
        origins = tuple(o for o in map(origin_of, of) if o is not None)
        dtype = str(tensor.dtype).removeprefix("torch.")
        asked = Asked(kind, api, frames, frame, origins, frozenset(), tuple(tensor.shape), dtype)
        return self.handler(asked, value)

    def of_number(self, kind: str, node: torch_sizes.Node) -> Any:
        """Report a read of a symbolic number to the handler, and return the handler's answer.

        Some reads are only noted and get the true value: reads as a float, and reads by functions
        that turn the number into a tensor or another symbolic number, such as ``torch.tensor``.
        `kind` is as in :class:`voxax.check.torch_sizes.asking`.
        """
        call, value, names = self.call, node.value, node.names
        api = call.name if call is not None else None
        if node.origins:
            return self._of_size(kind, node)
        if kind == "float" or api in _VALUES:
            self.read |= names
            if call is None:
                _, frames = self.where(2)
                for name in names:
                    self.escaped.setdefault(name, frames)
            return value
        frame, frames = self.where(2)
        if api in _NUMBERS or api in _CONDITIONS:
            api = None
        if kind != "bool":
            kind = "row" if api in ("__getitem__", "__setitem__") else "index"
        dtype = f"Python {type(value).__name__}"
        return self.handler(Asked(kind, api, frames, frame, (), names, (), dtype), value)

    def _of_size(self, kind: str, node: torch_sizes.Node) -> Any:
        """Return the value that the program gets when it reads a data-dependent size.

        `node` is the size. If the program itself reads it as a condition or an integer (the `kind`
        is ``bool`` or ``index``), the handler gets a report and decides the value. For other reads,
        such as those by a function of PyTorch, the result is the true value.
        """
        if self.call is not None or kind not in ("bool", "index"):
            return node.value
        frame, frames = self.where(3)
        asked = Asked(kind, None, frames, frame, node.origins, node.names, (), SIZE)
        return self.handler(asked, node.value)


def origin_of(tensor: Any) -> Origin | None:
    """Return the recorded origin of a tensor, or None."""
    return getattr(tensor, "_voxax_origin", None) if isinstance(tensor, torch.Tensor) else None


def set_origin(tensor: Any, origin: Origin) -> None:
    """Record the origin of a tensor."""
    tensor._voxax_origin = origin


class _Functions(TorchFunctionMode):
    """PyTorch mode that records in `watch` the functions of PyTorch that the program calls."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        watch, outer = self.watch, self.watch.call
        name = getattr(func, "__name__", "") or ""
        if outer is not None or watch.busy or name == "__set__":
            return func(*args, **kwargs)
        if torch_sizes.is_size(name):
            value = func(*args, **kwargs)
            if isinstance(value, torch.Tensor):  # x.T, x.data
                self._remember(value, args, kwargs, tuple(live_frames(sys._getframe(1))))
                with watch.own():
                    watch.twins.follow(func, args, kwargs, value)
                return value
            known = origin_of(args[0]) if args else None
            with watch.own():
                return watch.twins.sizes(func, args, kwargs, value, (known,) if known else ())
        frame = sys._getframe(1)
        frames = tuple(live_frames(frame))
        watch.call = Call(func, name, args, kwargs, frames, frame, _autocast())
        watch.read.clear()
        watch.valued |= name in _HOST or name in _TEXT
        if name in _AUTOGRAD:
            watch.differentiated.append(frames)
        try:
            if name in _HOST and isinstance(args[0], torch.Tensor):
                watch.ask("tolist" if name == "tolist" else "array", name, args[0])
            if name in _MOVES or (name == "to" and _names_device(args, kwargs)):
                text = f"`{name}` moves a tensor between devices in every step"
                fix = ADVICE["torch VX303"]
                watch.hazards.append((frames, "VX303", text, fix, watch.module_of(frame)))
            if watch.twins.counts(name, args):
                watch.ask("index", None, args[0])
            before = _versions(args, kwargs)
            if torch_compiling.takes_functions(func):
                modes = (self, watch.operators)
                watch.call = None  # what its functions call is watched
                result = torch_compiling.apply(func, args, kwargs, modes)
            else:
                result = func(*args, **kwargs)
            if watch.read:
                self._ask_lengths(func, args, kwargs)
            self._note_histories(before, frames)
        finally:
            watch.call = None
        self._remember(result, args, kwargs, frames)
        with watch.own():
            watch.twins.follow(func, args, kwargs, result)
        return result

    def _note_histories(self, before: list[Any], frames: tuple[Frame, ...]) -> None:
        """Record the tensors that got an autograd graph because a function wrote to them.

        `before` is the result of :func:`_versions` before the call of the function. `frames` has
        the frames of the call.
        """
        known = self.watch.histories
        for tensor, version, had in before:
            if tensor.grad_fn is None or tensor._version == version:
                continue
            if not had or id(tensor) in known:
                entry = known.setdefault(id(tensor), (weakref.ref(tensor), []))
                entry[1].append(frames)

    def _ask_lengths(self, func: Any, args: Any, kwargs: Any) -> None:
        """Report Python floats that decide the result shapes of the PyTorch function `func`.

        PyTorch takes them as values, not as sizes: the end of ``arange``, for example.
        """
        watch = self.watch
        with watch.own():
            for name in sorted(watch.read):
                decides = torch_sizes.decides_shapes(func, args, kwargs, name)
                if decides is None:
                    watch.escaped.setdefault(name, watch.call.frames if watch.call else ())
                elif decides and watch.call is not None:
                    call, names = watch.call, frozenset({name})
                    asked = Asked("index", call.name, call.frames, call.frame, (), names, (), FLOAT)
                    watch.handler(asked, None)

    def _remember(self, result: Any, args: Any, kwargs: Any, frames: tuple[Frame, ...]) -> None:
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not made:
            return
        given = tree_leaves((args, kwargs))
        inputs = tuple(o for o in map(origin_of, given) if o is not None)
        names = frozenset().union(*(torch_sizes.names_of(v) or () for v in given))
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        read = bool(tensors) and all(map(_is_read, tensors))
        for tensor in made:
            if read:
                _set_read(tensor)
            known = origin_of(tensor)
            if known is not None and known.label is not None and not isinstance(result, list):
                # Written in place, or returned unchanged: keep its origin as one more input.
                known = Origin((known, *inputs), frames, None, names)
                set_origin(tensor, known)
            else:
                set_origin(tensor, Origin(inputs, frames, None, names))
                if not any(tensor is value for value in tensors):  # handed on, such as by `x.to`
                    self.watch.born.append((weakref.ref(tensor), frames))


def _versions(args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors that a function may write to, as ``(tensor, version, requires_grad)``.

    `args` and `kwargs` are the function's arguments. PyTorch increases a tensor's version at each
    write. The list is empty if gradients are disabled.
    """
    if not torch.is_grad_enabled():
        return []
    given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    given += [v._base for v in given if v._base is not None]
    return [(v, v._version, v.requires_grad) for v in given if not v.is_inference()]


def _autocast() -> bool:
    return any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda", "xpu"))


def _set_read(tensor: Any) -> None:
    tensor._voxax_read = True


def _is_read(tensor: Any) -> bool:
    """Return True for a tensor that depends only on values whose read is recorded already."""
    return getattr(tensor, "_voxax_read", False)


def _names_device(args: Any, kwargs: Any) -> bool:
    """Return True if arguments of ``to`` name a device as text, unlike ``x.to(y.device)``."""
    given = kwargs.get("device", args[1] if len(args) > 1 else None)
    return isinstance(given, str)


class _Operators(TorchDispatchMode):
    """PyTorch mode that records in `watch` all operators that the functions of PyTorch run."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        watch = self.watch
        if watch.busy:
            return func(*args, **kwargs)
        args, kwargs = self._numbers(func, args, kwargs)
        _, frames = watch.where(1)
        self._note(func, args, kwargs, frames)
        if torch.Tag.data_dependent_output in func.tags:
            watch.valued = True
            return self._read(func, args, kwargs)
        sized = torch.Tag.dynamic_output_shape in func.tags
        watch.valued |= sized
        if sized:
            self._sized(func, args, kwargs)
        result = func(*args, **kwargs)
        if not sized and func.namespace not in _OF_PYTORCH:
            with watch.own():
                sized = torch_compiling.has_unknown_size(func, args, kwargs)
            if sized:
                self._sized_elsewhere(func, args, kwargs, result)
        if sized:
            with watch.own():
                watch.twins.made(func, args, result)
        if func.overloadpacket is torch.ops.aten._pack_padded_sequence:
            watch.ask("tolist", None, args[1])
            _set_read(result[1])  # the sizes of batches, whose values are known now
        self._lengthened(result)
        self._promoted(func, args, result, frames)
        return result

    def _lengthened(self, result: Any) -> None:
        """Add the shapes of the tensors in `result` to the record of the last operation."""
        operations = self.watch.operations
        shapes = tuple(tuple(t.shape) for t in tree_leaves(result) if isinstance(t, torch.Tensor))
        if operations:
            last = operations[-1]
            operations[-1] = dataclasses.replace(last, structure=(*last.structure, shapes))

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that returns a value to Python, report the read, and return the value."""
        watch, value = self.watch, func(*args, **kwargs)
        if args and _is_read(args[0]):
            return value
        name = watch.call.name if watch.call is not None else None
        if name in _CONDITIONS:
            return watch.ask("bool", None, args[0], value)
        if name in _TEXT:
            watch.ask("format", None, args[0], value)
        elif name in _NUMBERS or name is None:
            watch.ask("index", None, args[0], value)
        elif name in ("__getitem__", "__setitem__"):
            cuts = watch.call is not None and _cuts(watch.call.args[1])
            watch.ask("slice" if cuts else "row", name, args[0], value)
        elif name not in _HOST and name not in _VALUES:
            if self._needed():
                watch.ask("index", name, args[0], value)
        elif name in _VALUES:
            watch.ask("index", None, args[0], value)
        return value

    def _needed(self) -> bool:
        """Return True if the running PyTorch function reads values also in a compiled program."""
        watch = self.watch
        if watch.call is None:
            return True
        with watch.own():
            return torch_compiling.needs_values(
                watch.call.function, watch.call.args, watch.call.kwargs
            )

    def _sized_elsewhere(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Report an operator whose result has a data-dependent size to the handler.

        The operator `func` belongs to a library other than PyTorch.
        """
        watch = self.watch
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        most = max((size for t in given for size in t.shape), default=0)
        bounded = all(size <= most for t in made for size in t.shape)
        if given:
            name = func.name().split("::")[-1]
            watch.ask("size" if bounded else "count", name, given[0])

    def _sized(self, func: Any, args: Any, kwargs: Any) -> None:
        """Report the PyTorch operator `func`, whose result has a data-dependent size."""
        watch = self.watch
        name = watch.call.name if watch.call is not None else func.name().split("::")[-1]
        if func.overloadpacket is torch.ops.aten.index:
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            if masks:
                watch.ask("mask", name, masks[0])
        elif func.overloadpacket is torch.ops.aten.masked_select:
            watch.ask("mask", name, args[1])
        elif kwargs.get("output_size") is None:
            counts = func.overloadpacket in _COUNTING
            watch.ask("count" if counts else "size", name, args[0])

    def _numbers(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return ``(args, kwargs)`` with plain numbers in place of symbolic numbers.

        Symbolic numbers that serve as sizes, axes or counts are reported to the handler.
        """
        given = tree_leaves((args, kwargs))
        if not any(torch_sizes.names_of(v) is not None for v in given):
            return args, kwargs
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._number(func, argument, value)
        by_name = {a.name: a for a in func._schema.arguments}
        for name, value in kwargs.items():
            self._number(func, by_name[name], value)
        return tree_map(torch_sizes.plain, (args, kwargs))

    def _number(self, func: Any, argument: Any, value: Any) -> None:
        # `Scalar` and `float` are values, `SymInt` and `int` are sizes, axes and counts.
        structural = "int" in str(argument.type).lower() or any(
            str(argument.type) == "number" and func.name().startswith(f"aten::{name}")
            for name in _LENGTHS
        )
        for leaf in tree_leaves(value):
            names = torch_sizes.names_of(leaf)
            if names and structural:
                watch = self.watch
                frame, frames = watch.where(3)
                api = watch.call.name if watch.call is not None else None
                number = torch_sizes.plain(leaf)
                kind = "index"
                if api in ("__getitem__", "__setitem__"):
                    kind = "row" if func.overloadpacket is torch.ops.aten.select else "slice"
                watch.handler(Asked(kind, api, frames, frame, (), names, (), "Python int"), number)

    def _note(self, func: Any, args: Any, kwargs: Any, frames: tuple[Frame, ...]) -> None:
        watch = self.watch
        leaves = tree_leaves((args, kwargs))
        tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
        constants = tuple(repr(v) for v in leaves if isinstance(v, bool | int | float | str))
        if func.overloadpacket is torch.ops.aten.lift_fresh:
            value = tensors[0]
            small = value.numel() <= 64 and value.dtype is not torch.bfloat16
            small = small and not isinstance(value, FakeTensor)
            with watch.own(), _disable_current_modes():
                constants += (repr(value.detach().cpu().numpy().tolist()),) if small else ()
        shapes = tuple((tuple(t.shape), t.dtype) for t in tensors)
        # The name of a parameter distinguishes one of several equal layers from the others.
        origins = [origin_of(t) for t in tensors]
        constants += tuple(o.label for o in origins if o is not None and o.label is not None)
        watch.operations.append(Operation((func.name(), shapes), constants, frames))
        watch.limit(len(watch.operations))
        for tensor in tensors:
            for part in (tensor, tensor._base):
                stored = self.watch.earlier.get(id(part))
                if stored is not None and stored() is part:
                    self.watch.read_again.add(id(part))
            # Views of known tensors have no origin here, but have a base or come from a call.
            if (
                tensor._base is None
                and origin_of(tensor) is None
                and watch.call is not None
                and any(v is tensor for v in tree_leaves((watch.call.args, watch.call.kwargs)))
            ):
                watch.foreign.append(tensor)
                self._captured(tensor, frames)

    def _promoted(self, func: Any, args: Any, result: Any, frames: tuple[Frame, ...]) -> None:
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return
        if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            return
        if self.watch.call is not None and self.watch.call.mixed:  # autocast decides the dtypes
            return
        given = [
            a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point() and a.dim()
        ]
        wide = result.dtype
        for tensor in given:
            if tensor.dtype.itemsize < wide.itemsize and any(o.dtype is wide for o in given):
                call = self.watch.call
                module = self.watch.module_of(call.frame) if call is not None else ""
                narrow = str(tensor.dtype).removeprefix("torch.")
                text = f"{narrow}{list(tensor.shape)} becomes {str(wide).removeprefix('torch.')}"
                told = f"{text} because the other operand is"
                fix = ADVICE["torch VX306"].format(narrow=narrow)
                self.watch.hazards.append((frames, "VX306", told, fix, module))
                return

    def _captured(self, tensor: Any, frames: tuple[Frame, ...]) -> None:
        size = tensor.numel() * tensor.element_size()
        if size > LARGE_CONSTANT and self.watch.call is not None:
            text = f"a captured tensor of {size / 2**20:.1f} MiB is a constant of the program"
            fix = ADVICE["torch VX304"]
            module = self.watch.module_of(self.watch.call.frame)
            self.watch.hazards.append((frames, "VX304", text, fix, module))


def _cuts(index: Any) -> bool:
    """Return True for an index that contains a slice with a tensor as a bound."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(
        isinstance(bound, torch.Tensor)
        for part in parts
        if isinstance(part, slice)
        for bound in (part.start, part.stop, part.step)
    )
