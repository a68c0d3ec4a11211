"""Tracing for ``voxax.check`` that goes on where Python code needs the value of a tracer.

JAX raises at the first request for a value. Here every request goes to a handler, which may return
the value that the tracer has for example inputs. This needs private parts of JAX. They are separate
from ``_compat``, so that a version of JAX that moves them only breaks ``voxax.check``.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import numpy as np
from jax._src import checkify, config, core, source_info_util
from jax._src.lax.control_flow import loops

from voxax._compat import fresh_trace, own_traces

Tracer = jax.core.Tracer
# The file with the tracer methods that Python calls to get a value.
CORE = core.__file__
_JAX = os.path.join(os.path.dirname(jax.__file__), "")
# The largest example value: this many bytes, or this many times the bytes of the arguments.
MOST_BYTES = 1 << 30
MOST_TIMES = 64

Handler = Callable[[str, Any, str], Any]

_handler: contextvars.ContextVar[Handler | None] = contextvars.ContextVar("handler", default=None)
_notice: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar(
    "notice", default=None
)
_patching = threading.RLock()


@dataclasses.dataclass(eq=False)
class Node:
    """One operation, recorded while tracing; ``values`` has its results once they are computed."""

    primitive: Any
    inputs: tuple[Any, ...]
    params: dict[str, Any]
    source: Any
    values: list[Any] | None = None


class ExampleTracer(core.Tracer):  # pyright: ignore[reportMissingTypeArgument]
    """An abstract array that knows how to compute its value for the example inputs."""

    __slots__ = ("index", "label", "node", "value")

    def __init__(self, trace: Any, aval: Any, node: Node | None, index: int, value: Any = None):
        super().__init__(trace, aval)
        self.node = node
        self.index = index
        self.value = value
        self.label: str | None = None

    def __setitem__(self, key: Any, value: Any) -> None:
        # JAX arrays are immutable. To go on, this tracer becomes the updated array.
        _ask("setitem", self)
        new: Any = jax.numpy.asarray(self.copy()).at[key].set(value)
        self.node, self.index, self.value = new.node, new.index, new.value

    def __format__(self, spec: str) -> str:
        if spec or not (self.shape or is_key(self)):
            return format(_ask("format" if spec else "text", self).item(), spec)
        return repr(self)

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(_ask("hash", self).tobytes())

    def copy(self) -> Any:
        """Return a second tracer of the same value, as ``jax.Array.copy`` does."""
        twin = ExampleTracer(self._trace, self.aval, self.node, self.index, self.value)
        twin.label = self.label
        return twin


class ExampleTrace(core.Trace):
    """A JAX trace that only records operations; a value is computed when it is requested."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.given = 0  # bytes of the arguments
        self.largest = 0  # bytes of a result
        self.limit: int | None = None
        self.end: float | None = None  # of time.monotonic()

    def argument(self, value: Any, label: str) -> ExampleTracer:
        """Return a tracer for the input named ``label``, whose example is ``value``."""
        value = jax.numpy.asarray(value) if not is_key(value) else value
        tracer = ExampleTracer(self, core.typeof(value), None, 0, value)
        self.given += getattr(value, "nbytes", 0)
        tracer.label = label
        return tracer

    def is_large(self, size: int) -> bool:
        """Return whether a value of ``size`` bytes is too large, such as one from an endless loop.

        The limit grows with the size of the arguments.
        """
        return _is_large(size, self.given)

    def stage_value(self, val: Any) -> Any:
        if isinstance(val, core.Tracer):
            return val
        if config.eager_constant_folding.value:
            return core.eval_trace.stage_value(val)
        return ExampleTracer(self, core.typeof(val), None, 0, val)

    def process_primitive(self, primitive: Any, tracers: Sequence[Any], params: Any, /) -> Any:
        if config.eager_constant_folding.value and not any(
            isinstance(t, core.Tracer) for t in tracers
        ):
            return primitive.bind_with_trace(
                core.eval_trace, tracers, tuple(map(core.typeof, tracers)), params
            )
        self.operations += 1
        if self.limit is not None and self.operations > self.limit:
            raise TraceLimit(f"more than {self.limit} operations in one pass")
        if self.end is not None and time.monotonic() > self.end:
            raise TraceLimit("it takes longer than the time that it is given")
        out, _ = primitive.abstract_eval(*(core.typeof(t) for t in tracers), **params)
        node = Node(primitive, tuple(tracers), params, source_info_util.current())
        made = out if primitive.multiple_results else [out]
        self.largest = max(self.largest, *map(_bytes, made), 0)
        if not primitive.multiple_results:
            return ExampleTracer(self, out, node, 0)
        return [ExampleTracer(self, aval, node, i) for i, aval in enumerate(out)]

    def process_call(self, _primitive: Any, f: Any, tracers: Any, _params: Any, /) -> Any:
        with core.set_current_trace(self):
            return f.call_wrapped(*tracers)

    def process_custom_jvp_call(self, _primitive: Any, fun: Any, _jvp: Any, tracers: Any, /, **_):
        with core.set_current_trace(self):
            return fun.call_wrapped(*tracers)

    def process_custom_vjp_call(
        self, _primitive: Any, fun: Any, _fwd: Any, _bwd: Any, tracers: Any, /, **_
    ):
        with core.set_current_trace(self):
            return fun.call_wrapped(*tracers)

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which operations are recorded in this trace."""
        return core.set_current_trace(self)


class _LimitedTrace(core.EvalTrace):
    """A trace that evaluates operations eagerly; raises ``TraceLimit`` if a result is too large.

    The limit grows with ``given``, the bytes of the arguments.
    """

    def __init__(self, given: int) -> None:
        super().__init__()
        self.given = given  # bytes of the arguments

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        results = core.eval_trace.process_primitive(primitive, args, params)
        for result in results if primitive.multiple_results else [results]:
            _refuse_large(result, self.given)
        return results


def eagerly(given: int) -> contextlib.AbstractContextManager[Any]:
    """Return a context of eager evaluation, which raises ``TraceLimit`` if a result is too large.

    Args:
      given: size of the arguments in bytes; the limit for results grows with this size.
    """
    return core.set_current_trace(_LimitedTrace(given))


def _is_large(size: int, given: int) -> bool:
    return size > max(MOST_BYTES, MOST_TIMES * given)


def _refuse_large(value: Any, given: int) -> None:
    if _is_large(size := _bytes(value), given):
        raise TraceLimit(f"a value of {size / 2**30:.1f} GiB, of {given} bytes given")


def _bytes(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ())) * getattr(
        getattr(aval, "dtype", None), "itemsize", 1
    )


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Return a context that evaluates operations eagerly, even inside a trace."""
    with core.eval_context(), jax.disable_jit(False), own_traces():
        yield


class TraceLimit(BaseException):
    """A trace exceeds the limit of its number of operations, its time or its memory."""


def is_key(value: Any) -> bool:
    """Return whether a value or abstract value is a typed random key, unknown to NumPy."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def example_of(tracer: Any) -> Any:
    """Return the value of a tracer for the example inputs, or an array of ones if it is unknown."""
    if not isinstance(tracer, core.Tracer):
        return tracer
    if isinstance(tracer, ExampleTracer):
        return _evaluate(tracer)
    inner = getattr(tracer, "primal", None)
    if inner is not None:  # a tracer of differentiation
        return example_of(inner)
    if hasattr(tracer, "batch_dim"):  # vmap: the first of the batch
        value = example_of(tracer.val)
        dim = tracer.batch_dim
        return np.take(np.asarray(value), 0, axis=dim) if isinstance(dim, int) else value
    return _made_up(tracer.aval)


def _made_up(aval: Any) -> Any:
    if is_key(aval):
        return jax.random.key(0)
    return np.ones(aval.shape, aval.dtype)


def _evaluate(tracer: ExampleTracer) -> Any:
    """Return the value that a tracer has for the example inputs.

    Only the operations that it depends on are evaluated, unless they have values already. The code
    does not recurse, because traces can be long.
    """
    with outside():
        stack = [tracer]
        while stack:
            current = stack[-1]
            node = current.node
            if node is None or node.values is not None:
                stack.pop()
                continue
            missing = [
                t
                for t in node.inputs
                if isinstance(t, ExampleTracer) and t.node is not None and t.node.values is None
            ]
            if missing:
                stack.extend(missing)
                continue
            trace: Any = current._trace
            _refuse_large(current.aval, trace.given)
            node.values = _apply(node)
            stack.pop()
    return tracer.value if tracer.node is None else tracer.node.values[tracer.index]  # pyright: ignore[reportOptionalSubscript]


def _apply(node: Node) -> list[Any]:
    def known(value: Any) -> Any:
        if not isinstance(value, ExampleTracer):
            return example_of(value)
        return value.value if value.node is None else value.node.values[value.index]  # pyright: ignore[reportOptionalSubscript]

    try:
        if "callback" in node.primitive.name:  # the user's host code is not run
            raise NotImplementedError
        out = node.primitive.bind(*map(known, node.inputs), **node.params)
    except Exception:  # any shape-correct value lets the analysis go on
        out, _ = node.primitive.abstract_eval(*(core.typeof(t) for t in node.inputs), **node.params)
        many = node.primitive.multiple_results
        return [_made_up(aval) for aval in (out if many else [out])]
    return list(out) if node.primitive.multiple_results else [out]


def base_tracer(tracer: Any) -> Any:
    """Return the :class:`ExampleTracer` that ``tracer`` is or wraps, or None if there is none.

    Tracers of grad and vmap wrap other tracers.
    """
    while isinstance(tracer, core.Tracer) and not isinstance(tracer, ExampleTracer):
        inner = getattr(tracer, "primal", None)
        tracer = inner if inner is not None else getattr(tracer, "val", None)
    return tracer if isinstance(tracer, ExampleTracer) else None


def _ask(kind: str, tracer: Any, context: str = "") -> Any:
    handler = _handler.get()
    if handler is None:
        raise jax.errors.ConcretizationTypeError(tracer, context)
    return handler(kind, tracer, context)


# Functions of JAX that only check whether a value is known, and raise if it is not.
_STOPS_UNLESS_KNOWN = (
    "expand_bool_indices",
    "is_constant_dim",
    "_is_slice_element_none_or_constant_or_symbolic",
)


def answering(handler: Handler) -> contextlib.AbstractContextManager[None]:
    """Return a context in which ``handler(kind, tracer, context)`` supplies values of tracers.

    The handler is called where Python code of this thread needs the value of a tracer, and returns
    it. ``kind`` says what the code asks for: ``bool``, ``int``, ``float``, ``complex``, ``index``,
    ``array``, ``tolist``, ``tobytes``, ``dlpack``, ``static`` (a static argument of a JAX
    function), ``setitem``, ``format``, ``text`` (a format without a specification, which every
    tracer allows) or ``hash``. ``context`` is JAX's explanation for ``static``, otherwise
    empty. JAX has no hook for this, so methods of tracers are replaced while any thread is inside
    the returned context.
    """
    return _patched(_handler, handler)


def noticing(notice: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    """Return a context that calls ``notice(kind)`` when Python requests the value of a tracer.

    This affects only the calling thread. The request then raises as usual. The kinds are those of
    :func:`answering` that request numbers or arrays.
    """
    return _patched(_notice, notice)


@contextlib.contextmanager
def _patched(variable: contextvars.ContextVar[Any], function: Any) -> Iterator[None]:
    token = variable.set(function)
    try:
        with _patching:
            _install()
        yield
    finally:
        with _patching:
            _uninstall()
        variable.reset(token)


def _notify(kind: str) -> None:
    notice = _notice.get()
    if notice is not None:
        notice(kind)


_installed = 0
_originals: list[tuple[Any, str, Any]] = []


def _install() -> None:
    global _installed
    _installed += 1
    if _installed > 1:
        return
    for kind in ("bool", "int", "float", "complex", "index", "hex", "oct"):
        _replace(core.ShapedArray, f"_{kind}", _conversion(kind))
    for name in ("__array__", "tolist", "tobytes", "__dlpack__"):
        _replace(core.Tracer, name, _method(name))
    _replace(core, "concrete_or_error", _concrete_or_error)
    _replace(core, "is_concrete", _is_concrete)


def _uninstall() -> None:
    global _installed
    _installed -= 1
    if not _installed:
        while _originals:
            owner, name, original = _originals.pop()
            setattr(owner, name, original)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = owner.__dict__[name]
    _originals.append((owner, name, original))
    setattr(owner, name, make(original))


def _conversion(kind: str) -> Callable[[Any], Any]:
    make = {"bool": bool, "int": int, "float": float, "complex": complex}.get(kind, int)
    after = {"hex": hex, "oct": oct}.get(kind, lambda value: value)

    def replace(original: Any) -> Any:
        def convert(aval: Any, tracer: Any) -> Any:
            name = "index" if kind in ("hex", "oct") else kind
            if _inside_while_loop():
                return original(aval, tracer)
            if _handler.get() is None:
                _notify(name)
                return original(aval, tracer)
            return after(make(np.asarray(_ask(name, tracer)).item()))

        return convert

    return replace


def _inside_while_loop() -> bool:
    """Return whether the current request for a tracer's value comes from ``lax.while_loop``.

    That function tries its condition in Python, and expects JAX's usual error.
    """
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == core.__file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == loops.__file__


def _method(name: str) -> Callable[[Any], Any]:
    kind = name.strip("_")

    def replace(original: Any) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _handler.get() is None:
                _notify(kind)
                return original(self, *args, **kwargs)
            value = np.asarray(_ask(kind, self))
            if kind == "array":
                return value.astype(args[0]) if args and args[0] is not None else value
            return getattr(value, name)(*args, **kwargs)

        return method

    return replace


def _concrete_or_error(original: Any) -> Any:
    def concrete_or_error(force: Any, val: Any, context: str = "") -> Any:
        if _handler.get() is None or not isinstance(val, core.Tracer):
            return original(force, val, context)
        value = _ask("static", val, context)
        return value if force is None else force(value)

    return concrete_or_error


def _is_concrete(original: Any) -> Any:
    def is_concrete(x: Any) -> bool:
        if _handler.get() is not None and isinstance(x, core.Tracer):
            return sys._getframe(1).f_code.co_name in _STOPS_UNLESS_KNOWN
        return original(x)

    return is_concrete


def frames_of(recorded: Any) -> list[tuple[types.CodeType, int]]:
    """Return the frames in which an equation, tracer or :class:`Node` was traced, innermost first.

    A frame is ``(code object, index of its instruction)``. JAX's own frames are included.
    """
    sources = (getattr(recorded, name, None) for name in ("source_info", "source", "_line_info"))
    tracebacks = (getattr(source, "traceback", None) for source in sources)
    traceback = next((found for found in tracebacks if found is not None), None)
    return [] if traceback is None else list(zip(*traceback.raw_frames(), strict=True))


def of_checkify(recorded: Any) -> bool:
    """Return whether ``jax.experimental.checkify`` added this equation to a program."""
    for code, _ in frames_of(recorded):
        if code.co_filename == checkify.__file__:
            return True
        if not code.co_filename.startswith(_JAX):
            return False
    return False


def leaked_tracers(function: Callable[..., Any], values: Sequence[Any]) -> list[tuple[Any, str]]:
    """Trace ``function(*values)``, and return the tracers that something refers to afterwards.

    The result is ``[(tracer, JAX's text about the object that refers to it)]``. Tracers that are
    operands of other leaked tracers are left out.
    """
    leaked, text = [], ""
    try:
        with jax.checking_leaks(), config.traceback_filtering("off"), fresh_trace():
            jax.make_jaxpr(function)(*values)
    except Exception as error:
        text, traceback = str(error), error.__traceback__
        while traceback is not None:  # JAX's function that raises knows the tracers
            leaked = traceback.tb_frame.f_locals.get("leaked_tracers", leaked)
            traceback = traceback.tb_next
    holders = [*text.split("\n\n")[1:], *[""] * len(leaked)]
    parents = [getattr(tracer, "parent", None) for tracer in leaked]
    used = {id(operand) for parent in parents for operand in getattr(parent, "in_tracers", ())}
    return [(t, h) for t, h in zip(leaked, holders, strict=False) if id(t) not in used]


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return ``(static_argnums, static_argnames)`` of a function under ``jax.jit``."""
    info = getattr(jitted, "_jit_info", None)
    numbers = getattr(info, "static_argnums", ()) or ()
    names = getattr(info, "static_argnames", ()) or ()
    return tuple(numbers), tuple(names)


def is_jitted(target: Any) -> bool:
    """Return whether ``target`` is a function under ``jax.jit``."""
    return hasattr(target, "_jit_info") and hasattr(target, "trace")


@dataclasses.dataclass(frozen=True)
class CompiledFunction:
    """Facts about a function under ``jax.jit``, read from an equation that calls the function.

    Attributes:
      name, file, line: name of the function, and file and line of its definition.
      arguments: names of the traced arguments; a name is None for a captured value.
    """

    name: str
    file: str
    line: str
    arguments: tuple[str | None, ...]


def compiled_function(equation: Any) -> CompiledFunction | None:
    """Return the jitted function that an equation calls, or None for other equations."""
    if equation.primitive.name not in ("jit", "pjit"):
        return None
    body = equation.params["jaxpr"]
    info = getattr(getattr(body, "jaxpr", body), "debug_info", None)
    source = getattr(info, "func_src_info", None) or ""
    name, _, place = source.rpartition(" at ")
    file, _, line = place.rpartition(":")
    names = tuple(getattr(info, "arg_names", None) or ())
    return CompiledFunction(name, file, line, names) if file else None
