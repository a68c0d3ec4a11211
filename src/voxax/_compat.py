"""The only module that uses semi-public JAX names, or code for different JAX versions.

``jax.extend``, ``jax.interpreters``, ``jax.core`` and ``jax._src`` may change between releases;
no other module of voxax imports them (a test checks this). The one exception is
``_compat_tracing``, with private parts of JAX that only ``voxax.check`` needs, so that importing
voxax does not load them.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib.metadata
import importlib.util
import itertools
import tempfile
import types
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.core
import jax.numpy
import numpy as np
from jax.extend import core as _extend_core
from jax.interpreters import ad, batching, mlir, partial_eval
from jaxlib import gpu_triton

Primitive = _extend_core.Primitive
Zero = ad.Zero
is_undefined_primal = ad.is_undefined_primal

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}


def _private(value: Any, name: str, default: Any = None) -> Any:
    """Return the private attribute ``name`` of a JAX object, or ``default`` if it is missing.

    Without the attribute voxax is slower but still correct; a test hides every such attribute once.
    """
    return getattr(value, name, default)


_UNKNOWN = object()


def _trace_of(value: Any) -> Any:
    """Return the trace of a tracer, ``_UNKNOWN`` if JAX hides it, or None for a concrete value."""
    return _private(value, "_trace", _UNKNOWN) if isinstance(value, jax.core.Tracer) else None


def is_hidden(*values: Any) -> bool:
    """Return whether all arrays in ``values`` are tracers whose trace is unknown.

    A trace is unknown if this version of JAX has no attribute for it. Without arrays, the result is
    False.
    """
    leaves = [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array)]
    return bool(leaves) and all(_trace_of(leaf) is _UNKNOWN for leaf in leaves)


def current_trace() -> Any:
    """Return an object that identifies the current trace: equal within the trace, else unequal."""
    return _extend_core.get_opaque_trace_state()


def may_live_with(value: Any, mark: Any) -> bool:
    """Return whether ``value`` and ``mark`` may belong to the same trace; False if they do not.

    A concrete value belongs to no trace. The result is True for two concrete values, and if the
    trace of a tracer is unknown.
    """
    traces = _trace_of(value), _trace_of(mark)
    return traces[0] is traces[1] or any(trace is _UNKNOWN for trace in traces)


def context_of(*values: Any) -> contextlib.AbstractContextManager | None:
    """Return a context for computing arrays that depend only on ``values``, or None.

    In the context, operations are recorded at the trace level of ``values``, even if the current
    level is nested deeper. They run eagerly if all values are concrete. The result is None if
    the trace levels of the values differ or are unknown.
    """
    traces = {id(trace): trace for trace in map(_trace_of, jax.tree.leaves(values))}
    if len(traces) != 1 or id(_UNKNOWN) in traces:
        return None
    (trace,) = traces.values()
    if trace is not None:
        return _extend_core.set_current_trace(trace)
    return _eagerly(values)


@contextlib.contextmanager
def _eagerly(values: Any) -> Iterator[None]:
    """Return a context that evaluates eagerly and leaves a surrounding ``shard_map``.

    In the context, the mesh is the explicit mesh of the arrays in ``values``, or none. Arrays that
    are created under the mesh of a ``shard_map`` belong to this mesh, and could not be used with
    other arrays afterwards. ``jax.ensure_compile_time_eval`` is not enough, because it does not
    leave a ``shard_map`` that runs without ``jit``.
    """
    no_mesh = jax.sharding.AbstractMesh((), ())
    with (
        jax.core.eval_context(),
        jax.sharding.use_abstract_mesh(no_mesh),
        _inside_mesh_of(values),
    ):
        yield


def is_traced(*values: Any) -> bool:
    """Return whether any array in ``values`` (pytrees allowed) is a tracer."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def is_evaluated(*values: Any) -> bool:
    """Return whether all arrays have values, including under ``jax.grad``, ``jvp`` or ``vmap``.

    JAX evaluates primitives of such arrays immediately, and does not record them for later.
    """
    for leaf in jax.tree.leaves(values):
        while isinstance(leaf, jax.core.Tracer):
            leaf = _value_in(leaf, ("primal", "val"))
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
            return False
    return True


def is_mapped(*values: Any) -> bool:
    """Return whether ``jax.vmap`` maps any array in ``values``, also inside ``jax.grad`` or jvp."""
    for leaf in jax.tree.leaves(values):
        while isinstance(leaf, jax.core.Tracer):
            if _value_in(leaf, ("val",)) is not None:
                return True
            leaf = _value_in(leaf, ("primal",))
    return False


def _value_in(tracer: Any, names: Sequence[str]) -> Any:
    """Return the value of the first attribute in ``names`` that the tracer's class has, or None."""
    # This checks the class, because JAX takes long to find that a tracer lacks an attribute.
    name = next((name for name in names if _private(type(tracer), name) is not None), None)
    return None if name is None else _private(tracer, name)


def without_derivative(array: Any) -> Any:
    """Return ``jax.lax.stop_gradient(array)``, without compiling it in eager ``jax.grad`` calls."""
    while isinstance(array, jax.core.Tracer):
        primal = _value_in(array, ("primal",))
        if primal is None:
            break
        array = primal
    return jax.lax.stop_gradient(array) if is_traced(array) else array


def is_symbolic(*sizes: Any) -> bool:
    """Return whether any of the array sizes is a symbolic dimension of ``jax.export``."""
    return not all(isinstance(size, int) for size in sizes)


def is_begun() -> bool:
    """Return whether JAX has started a backend, in this process or before it was forked."""
    from jax._src import xla_bridge

    return _private(xla_bridge, "backends_are_initialized", lambda: False)()


def put_on(device: Any, array: np.ndarray, *, committed: bool) -> jax.Array:
    """Put a NumPy array on one device, in a quarter of the time of ``jax.device_put``.

    One eager call of a layer does this about ten times. ``committed`` is whether the result is
    committed to the device, in the sense of JAX.
    """
    from jax._src.interpreters import pxla

    put = _private(pxla, "batched_device_put")
    if put is None or array.dtype.itemsize > 4:  # for 64 bits, a setting of JAX decides
        return jax.device_put(array, device if committed else None)
    aval = _shaped(array.shape, array.dtype)
    return put(aval, _sharding_on(device), [array], [device], committed)


@functools.lru_cache(maxsize=1024)
def _shaped(shape: tuple[int, ...], dtype: np.dtype) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(shape, dtype)


@functools.cache
def _sharding_on(device: Any) -> jax.sharding.SingleDeviceSharding:
    return jax.sharding.SingleDeviceSharding(device)


def is_readable(array: Any) -> bool:
    """Return whether this process can read the values of an array now.

    It can read NumPy arrays and, unless other processes hold a part, JAX arrays. It cannot read
    tracers.
    """
    if isinstance(array, jax.Array):
        return not is_traced(array) and array.is_fully_addressable
    return isinstance(array, np.ndarray)


def as_one_program(function: _Function) -> _Function:
    """Wrap ``function`` so that an eager call with JAX arrays runs as one compiled program.

    This is faster than one program for each operation. In a trace, and for NumPy arrays, the
    function is called without ``jax.jit``.
    """
    compiled = jax.jit(function, inline=True)

    @functools.wraps(function)
    def call(*arrays: Any) -> Any:
        concrete = all(
            isinstance(a, jax.Array) and not isinstance(a, jax.core.Tracer) for a in arrays
        )
        return (compiled if concrete else function)(*arrays)

    return cast("_Function", call)


# Calls whose results are those of their body, without and with a custom derivative.
PLAIN_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
CUSTOM_CALLS = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
# Operations whose results equal their operands.
_COPIES = (
    "optimization_barrier", "stop_gradient", "copy", "name", "sharding_constraint",
    "layout_constraint", "reshard", "device_put", "pvary", "pcast",
)  # fmt: skip


def without_tangent(value: Any) -> Any:
    """Return the primal value of an integer tracer of jvp or grad, or another value unchanged."""
    while isinstance(value, jax.core.Tracer):
        primal = _private(value, "primal")
        if primal is None or jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
            break
        value = primal
    return value


def origin(value: Any) -> Any:
    """Return the earliest value that an integer array is known to be an unchanged copy of.

    A function under ``jit``, ``checkpoint`` or a custom derivative returns even an unchanged
    argument as a new tracer. Given this tracer, the result is the argument.
    """
    while isinstance(value, jax.core.Tracer):
        known = without_tangent(value)
        if known is value:
            lower = _private(value, "full_lower")
            known = value if lower is None else lower()  # a constant
        if known is value:
            known = _operand(value)
        if known is value:
            break
        value = known
    return value


def _operand(tracer: Any) -> Any:
    """Return the operand that ``tracer`` is an unchanged copy of, or ``tracer`` if there is none.

    Only the operation that made ``tracer`` is considered, not the operations before it.
    """
    equation, variable = _private(tracer, "parent"), _private(tracer, "val")
    operands = _private(equation, "in_tracers")
    if equation is None or operands is None or variable is None:
        return tracer
    try:
        place = _handed_on(equation, len(operands), variable)
    except (AttributeError, LookupError, TypeError, ValueError):  # parameters of another version
        place = None
    return tracer if place is None else operands[place]


def _handed_on(equation: Any, operands: int, variable: Any) -> int | None:
    """Return the index of the operand that an equation returns unchanged as ``variable``, or None.

    ``operands`` is the number of operands of the equation.
    """
    made = _private(equation, "outvars", ())
    place = next((i for i, out in enumerate(made) if out is variable), None)
    name = _private(_private(equation, "primitive"), "name")
    params = _private(equation, "params", {})
    if place is None or name in _COPIES:
        return place if place is None or place < operands else None
    start = 0  # place of the body's first operand among the equation's
    if name in (*PLAIN_CALLS, *CUSTOM_CALLS, "shard_map"):
        bodies = [params.get("jaxpr", params.get("call_jaxpr"))]
    elif name == "cond":
        bodies, start = params["branches"], 1
    elif name == "scan" and place < _scan_parts(params)[1]:
        bodies = [params["jaxpr"]]
    elif name == "while":
        bodies, start = [params["body_jaxpr"]], params["cond_nconsts"]
    else:
        return None
    found = {_argument(_private(body, "jaxpr", body), place) for body in bodies}
    index = found.pop()
    if found or index is None:
        return None
    # A loop returns an operand if its body returns it unchanged at the same place of the state.
    if name == "scan" and index != _scan_parts(params)[0] + place:
        return None
    if name == "while" and index != params["body_nconsts"] + place:
        return None
    if name == "shard_map" and params["in_specs"][index] != params["out_specs"][place]:
        return None
    return start + index


def _scan_parts(params: Any) -> tuple[int, int]:
    """Return the number of constants and of carried values among the operands of a ``scan``.

    ``params`` are the parameters of the scan's equation.
    """
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, state, *_ = map(len, params["ft_in"].unpack())  # JAX 0.12
    return consts, state


def _argument(body: Any, place: int) -> int | None:
    """Return the index of the argument that a jaxpr returns unchanged as its result ``place``.

    ``body`` is the jaxpr and ``place`` the index of the result. The value is None if the result is
    not known to be a copy of an argument.
    """
    results, arguments = _private(body, "outvars", ()), _private(body, "invars", ())
    if place >= len(results):
        return None
    found = results[place]
    while (index := next((i for i, v in enumerate(arguments) if v is found), None)) is None:
        equations = _private(body, "eqns", ())
        maker = next((e for e in equations if any(v is found for v in e.outvars)), None)
        operands = _private(maker, "invars", ())
        operand = None if maker is None else _handed_on(maker, len(operands), found)
        if operand is None:
            return None
        found = operands[operand]
    return index


def known_equal(a: Any, b: Any) -> bool:
    """Return whether two integer arrays are known to be equal; False may mean "unknown".

    They are known to be equal if both are copies of one array, or concrete with equal values.
    """
    a, b = origin(a), origin(b)
    if a is b:
        return True
    if not is_traced(a, b):
        return np.array_equal(a, b)
    trace, ours, theirs = _trace_of(a), _private(a, "val"), _private(b, "val")
    if trace is None or trace is _UNKNOWN or trace is not _trace_of(b) or ours is None:
        return False
    if not isinstance(ours, jax.Array):
        return ours is theirs
    dims = [_private(x, "batch_dim", _UNKNOWN) for x in (a, b)]  # under jax.vmap
    return dims[0] is not _UNKNOWN and dims[0] == dims[1] and known_equal(ours, theirs)


# The values of these variables are part of the key of jax.jit's caches: JAX traces a function again
# for a new value, and reuses its trace for an old value. Values are hashable. New threads see the
# global value, which is the one given here unless `set_global` changes it. Calling a variable with
# a value returns a context, which can be entered only once.
_trace_token = jax.make_user_context(None)
_environment_token = jax.make_user_context(0)
overlay: Any = jax.make_user_context(())
_tokens = itertools.count(1)


class _Fresh(NamedTuple):
    outer: Hashable
    number: int


def fresh_trace() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which every jitted function is traced anew, even if it was traced before.

    Code that observes what a function does while it is traced needs this context, because JAX does
    not run functions whose trace is cached. JAX keeps the traces of every such context (megabytes)
    and never uses them again, so use :func:`separate_traces` where this happens often.
    """
    return _trace_token(_Fresh(_trace_token.value, next(_tokens)))


def own_traces() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which jitted functions use their cached traces.

    It undoes an enclosing :func:`fresh_trace`, and otherwise has no effect.
    """
    token = _trace_token.value
    return _trace_token(token.outer) if isinstance(token, _Fresh) else contextlib.nullcontext()


def separate_traces(key: Hashable) -> contextlib.AbstractContextManager[Any]:
    """Return a context whose cached jit traces are reused only in contexts with the same key."""
    return _trace_token(key)


def retrace_everything() -> None:
    """Make JAX trace every jitted function once again, in all threads."""
    if hasattr(_environment_token, "set_global"):
        _environment_token.set_global(next(_tokens))
    else:  # JAX 0.10.0
        jax.clear_caches()


def environment_key() -> Hashable:
    """Return a key for caches whose results depend on environment variables.

    The key changes with :func:`retrace_everything`, :func:`fresh_trace` and
    :func:`separate_traces`.
    """
    return _environment_token.value, _trace_token.value


def vary_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return the operands of a primitive, all with the same ``shard_map`` axes and mesh.

    Inside ``shard_map``, every array is marked as varying over each axis over which any of the
    arrays varies. The gradient of an operand that all shards share is then the sum over the shards.
    Outside of ``shard_map``, arrays that are split over explicit axes of a mesh are gathered, and
    all arrays are put on this mesh. The reason is that ``jax.vmap`` over an explicit axis splits
    the carry of a loop.
    """
    if not any(map(_is_placed, arrays)):
        return arrays
    arrays = gathered(arrays)
    if (on_mesh := next(filter(_has_explicit_axes, arrays), None)) is not None:
        mesh = jax.typeof(on_mesh).sharding.mesh
        arrays = tuple(
            x if _has_explicit_axes(x) else _resharded(x, mesh, [None] * x.ndim) for x in arrays
        )
    axes = frozenset().union(*(_varying(jax.typeof(x)) for x in arrays))
    missing = [tuple(sorted(axes - _varying(jax.typeof(x)))) for x in arrays]
    return tuple(
        jax.lax.pcast(x, lacks, to="varying") if lacks else x
        for x, lacks in zip(arrays, missing, strict=True)
    )


def _is_placed(array: Any) -> bool:
    """Return whether an array is on a mesh with explicit axes, or inside a ``shard_map``."""
    if _is_on_one_device(array):
        return False
    aval = jax.typeof(array)
    return bool(_varying(aval)) or _is_explicit(getattr(aval, "sharding", None))


def _is_on_one_device(array: Any) -> bool:
    """Return whether an eager array is on one device; this is much faster than ``jax.typeof``."""
    if isinstance(array, jax.core.Tracer):
        return False
    return isinstance(getattr(array, "sharding", None), jax.sharding.SingleDeviceSharding)


def gathered(tree: Any) -> Any:
    """Return ``tree`` with every array gathered that is split over explicit axes of a mesh.

    An explicit sharding is part of an array's type, and no operation on coordinates has a rule for
    split rows. Arrays over automatic axes, and arrays inside ``shard_map``, are left unchanged.
    """

    def whole(leaf: Any) -> Any:
        spec = _explicit_spec(leaf)
        return (
            _resharded(leaf, jax.typeof(leaf).sharding.mesh, [None] * len(spec)) if spec else leaf
        )

    # Objects without split arrays stay the same, with their memos.
    return jax.tree.map(whole, tree, is_leaf=lambda node: not _is_split(node))


def _is_split(tree: Any) -> bool:
    return any(map(_explicit_spec, jax.tree.leaves(tree)))


def on_whole_arrays(
    function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Return ``function(*args, **options)`` for gathered arguments, inside the arguments' mesh.

    Arguments are gathered by :func:`gathered`. Arrays that the function creates belong to the mesh
    too, as JAX requires of operations on several arrays that run eagerly or under ``jax.vmap``. If
    the function fails under ``jax.vmap`` over a split batch, it runs again on the gathered batch.
    """
    given = args, options
    with _inside_mesh_of(given):
        args, options = gathered(given) if _is_split(given) else given
        try:
            return function(*args, **options)
        except Exception:
            if not any(map(_is_of_split_batch, jax.tree.leaves(given))):
                raise
        return _on_whole_batch(function, args, options)


def _is_of_split_batch(leaf: Any) -> bool:
    """Return whether ``leaf`` is a ``jax.vmap`` tracer whose mapped axis is split over a mesh."""
    dim, value = _private(leaf, "batch_dim"), _private(leaf, "val")
    if not isinstance(dim, int) or value is None:
        return False
    spec = _explicit_spec(value)
    return bool(spec) and spec[dim] is not None


def _on_whole_batch(function: Callable[..., Any], args: Any, options: Any) -> Any:
    """Return ``function(*args, **options)``, computed under ``jax.vmap`` on the gathered batch.

    Batched arrays are gathered from all devices of the mesh, and the results are split as the batch
    was. JAX has no rule for some operations on a split batch, such as taking rows of an array that
    all devices share.
    """
    leaves, tree = jax.tree.flatten((args, options))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

    @jax.custom_batching.custom_vmap
    def run(*arrays: jax.Array) -> Any:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        args, options = jax.tree.unflatten(tree, filled)
        return function(*args, **options)

    @run.def_vmap
    def _(size: int, is_mapped: Sequence[bool], *arrays: jax.Array) -> Any:
        axes = tuple(0 if mapped else None for mapped in is_mapped)
        split = next(a for a, mapped in zip(arrays, is_mapped, strict=True) if mapped)
        first, mesh = jax.typeof(split).sharding.spec[0], jax.typeof(split).sharding.mesh
        outs = jax.vmap(run.fun, axes, axis_size=size)(*gathered(arrays))
        outs = jax.tree.map(
            lambda out: _resharded(out, mesh, [first] + [None] * (out.ndim - 1)), outs
        )
        return outs, jax.tree.map(lambda _: True, outs)

    return run(*(leaves[place] for place in places))


@contextlib.contextmanager
def _inside_mesh_of(tree: Any) -> Iterator[None]:
    """Return a context like ``jax.set_mesh`` with the explicit mesh of an array in ``tree``.

    It does nothing if no array, traced or not, is on an explicit mesh, or if a mesh is set already.
    """
    value = next(filter(_has_explicit_axes, jax.tree.leaves(tree)), None)
    if value is None or not jax.sharding.get_abstract_mesh().empty:
        yield
        return
    with jax.sharding.use_abstract_mesh(jax.typeof(value).sharding.mesh):
        while isinstance(value, jax.core.Tracer):  # of an array, if it is mapped eagerly
            value = _private(value, "primal", _private(value, "val"))
        if not isinstance(value, jax.Array):
            yield
            return
        # jax.set_mesh refuses inside of jax.vmap.
        from jax._src import sharding_impls

        unable = contextlib.nullcontext
        enter = _private(sharding_impls, "_internal_use_concrete_mesh", unable)
        with enter(value.sharding.mesh):  # pyright: ignore[reportAttributeAccessIssue]
            yield


# Common types of arguments that contain no array.
_PLAIN = frozenset((type(None), bool, int, float, str, types.FunctionType, types.MethodType))


def is_on_explicit_mesh(*values: Any) -> bool:
    """Return whether an array in ``values`` (pytrees allowed) is on a mesh with explicit axes.

    The array may be split or not. Every operator calls this function, so it must be fast: a class
    of immutable objects may have an attribute ``is_on_explicit_mesh`` with the answer for its
    arrays, so that trees of many leaves are walked only once.
    """
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind is tuple or kind is list:
            found = is_on_explicit_mesh(*value)
        elif kind is dict:
            found = bool(value) and is_on_explicit_mesh(*value.values())
        elif getattr(kind, "is_on_explicit_mesh", None) is not None:
            found = value.is_on_explicit_mesh
        elif isinstance(value, jax.core.Tracer):
            found = _is_explicit(getattr(value.aval, "sharding", None))
        else:
            found = any(map(_has_explicit_axes, jax.tree.leaves(value)))
        if found:
            return True
    return False


def _has_explicit_axes(leaf: Any) -> bool:
    return _is_explicit(_typed_sharding(leaf))


def _is_explicit(sharding: Any) -> bool:
    return sharding is not None and jax.sharding.AxisType.Explicit in sharding.mesh.axis_types


def _typed_sharding(leaf: Any) -> Any:
    """Return the sharding in an array's type; None for arrays on one device and for non-arrays."""
    if _is_on_one_device(leaf) or not isinstance(leaf, jax.Array):
        return None
    return getattr(jax.typeof(leaf), "sharding", None)


def _explicit_spec(leaf: Any) -> tuple[Any, ...]:
    """Return the mesh axes that split each dimension of an array, or () if nothing is split.

    The entry is None for a dimension that is not split.
    """
    sharding = _typed_sharding(leaf)
    spec = tuple(getattr(sharding, "spec", ()))
    return spec if any(axes is not None for axes in spec) else ()


def _resharded(leaf: Any, mesh: Any, spec: Sequence[Any]) -> Any:
    partitions = jax.sharding.PartitionSpec(*spec)
    return jax.sharding.reshard(leaf, jax.sharding.NamedSharding(mesh, partitions))


def _varying(aval: Any) -> frozenset[Any]:
    """Return the mesh axes of an enclosing ``shard_map`` over which a value varies."""
    return _private(_private(aval, "manual_axis_type"), "varying", frozenset())


def shape_like(shape: Sequence[int], dtype: Any, like: jax.Array) -> jax.ShapeDtypeStruct:
    """Return a ``ShapeDtypeStruct`` of ``shape`` and ``dtype``, also for use inside ``shard_map``.

    It varies over the same axes of an enclosing ``shard_map`` as the array ``like``.
    """
    aval: Any = jax.typeof(like)
    options = {"manual_axis_type": aval.manual_axis_type} if _varying(aval) else {}
    return jax.ShapeDtypeStruct(tuple(shape), dtype, **options)


def thread_settings(device: Any = None) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Copy this thread's JAX settings (64-bit mode, default device) for use in another thread.

    Threads do not inherit these settings. The result is a function that returns a context; enter
    the context in the other thread: ``with settings():``.

    Args:
      device: the default device in the other thread; None takes this thread's default device.
    """
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    place = device or getattr(jax.config, "jax_default_device", None)

    @contextlib.contextmanager
    def settings() -> Iterator[None]:
        with jax.enable_x64(x64), jax.default_device(place):
            yield

    return settings


add_tangents = ad.add_jaxvals


def no_tangent(value: Any) -> Zero:
    """Return JAX's symbolic zero tangent for a value that is constant under differentiation."""
    return Zero(jax.typeof(value).to_tangent_aval())


def set_rules(primitive: Primitive, jvp: Any, transpose: Any, batch: Any) -> None:
    """Register JAX's rules ``jvp``, ``transpose`` and ``batch`` (``jax.vmap``) for a primitive.

    ``transpose`` is None for a primitive that is not linear.
    """
    ad.primitive_jvps[primitive] = jvp
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose
    set_batch_rule(primitive, batch)


def set_batch_rule(primitive: Primitive, batch: Callable[..., Any]) -> None:
    """Register the rule of ``jax.vmap`` for a primitive.

    A batch that is split over explicit axes of a mesh is gathered for ``batch``, and the batched
    results are split over these axes again.

    Args:
      batch: a function of ``(operands, dims, **params)`` that returns ``(out, out_dim)``, or lists
        of both for a primitive with several results.
    """

    def rule(args: Any, dims: Any, **params: Any) -> Any:
        outs, out_dims = batch(gathered(args), dims, **params)
        for x, dim in zip(args, dims, strict=True):
            spec = _explicit_spec(x)
            if dim is not None and spec and spec[dim] is not None:
                mesh, axes = jax.typeof(x).sharding.mesh, spec[dim]

                def split(out: Any, at: int, mesh: Any = mesh, axes: Any = axes) -> Any:
                    return _resharded(
                        out, mesh, [axes if i == at else None for i in range(out.ndim)]
                    )

                if primitive.multiple_results:
                    return [split(*each) for each in zip(outs, out_dims, strict=True)], out_dims
                return split(outs, out_dims), out_dims
        return outs, out_dims

    batching.primitive_batchers[primitive] = rule


def set_dce_rule(primitive: Primitive, rule: Callable[[Sequence[bool], Any], Any]) -> None:
    """Register the rule by which JAX's dead-code elimination drops unused results of a primitive.

    Args:
      rule: a function of ``(used outputs, equation)`` that returns ``(used inputs, equation)``.
    """
    # JAX 0.12 has more arguments between the two. If JAX has no rules, everything is computed.
    getattr(partial_eval, "dce_rules", {})[primitive] = lambda *some: rule(some[0], some[-1])


def save_as_matrix_product(primitive: Primitive) -> None:
    """Let policies of ``jax.checkpoint`` save results of a primitive like those of matrix products.

    Policies such as ``dots_saveable`` only know JAX's own primitives. A policy may also name the
    primitive itself. Results that a policy would offload are kept on the device.
    """

    def rule(saveable: Any, unknown: Any, at_hand: Any, equation: Any) -> Any:
        number = len(equation.outvars)
        if any(unknown):
            needed = [x for x, kept in zip(equation.invars, at_hand, strict=True) if not kept]
            return None, equation, [True] * number, [True] * number, needed
        avals = [x.aval for x in equation.invars]
        as_dot = {**equation.params, "dimension_numbers": (((1,), (0,)), ((), ()))}
        answers = (
            saveable(primitive, *avals, **equation.params),
            saveable(jax.lax.dot_general_p, *avals, **as_dot),
        )
        # Answers are booleans, or objects of types that JAX keeps private.
        kept = any(a is not False and type(a).__name__ != "RecomputeType" for a in answers)
        again = None if kept else equation
        return equation, again, [False] * number, [not kept] * number, []

    getattr(partial_eval, "partial_eval_jaxpr_custom_rules", {})[primitive] = rule


def is_evaluating() -> bool:
    """Return whether operations on concrete arrays run eagerly here, instead of being traced."""
    here = _extend_core.get_opaque_trace_state()
    with jax.core.eval_context():
        return here == _extend_core.get_opaque_trace_state()


def evaluating() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which operations on concrete arrays run eagerly, even inside a trace."""
    return jax.core.eval_context()


def staged_primitive(
    name: str,
    implementation: Callable[..., Any],
    output_shapes: Callable[..., Any],
    *,
    many: bool,
    eager: Callable[..., Any] | None = None,
    platforms: Sequence[str] = ("cpu", "gpu", "tpu"),
) -> Primitive:
    """Create a JAX primitive with eager evaluation and lowering, but no differentiation rules.

    Args:
      name: the primitive's name in jaxprs.
      implementation: a function of ``(platform, *operands, **params)`` in ordinary JAX, called when
        the primitive is lowered for ``platform`` (``cpu``, ``gpu``, ``tpu``, or ``any`` for a
        platform unknown to voxax). Inside ``shard_map`` all operands must vary over the same mesh
        axes, see :func:`vary_alike`; the output then does too.
      output_shapes: a function of ``(*shapes, **params)`` that returns a ``ShapeDtypeStruct``, or a
        tuple of them.
      many: whether the result is a tuple of arrays, instead of one array.
      eager: None, or a function of ``(*arrays, **params)`` for concrete operands, with bitwise the
        results of the compiled program. It returns None for operands that it does not support.
      platforms: the platforms for which ``implementation`` is called with their name; it is called
        with ``any`` for all others.

    Where ``eager`` gives no result, an eager call runs a jitted program, which is kept for each set
    of parameters. Otherwise each eager call would take about 35 ms of tracing instead of 0.02 ms
    (measured on a CPU).
    """
    primitive = Primitive(name)
    primitive.multiple_results = many

    @functools.lru_cache(maxsize=4096)
    def jitted(params: tuple) -> Callable:
        return jax.jit(functools.partial(primitive.bind, **dict(params)))

    def impl(*args: Any, **params: Any) -> Any:
        done = None if eager is None else eager(*args, **params)
        if done is not None:
            return done
        token = _eager_program.set(True)
        try:
            # Inside jax.disable_jit() the jitted program would only call this again.
            with jax.disable_jit(False):
                return jitted(tuple(sorted(params.items())))(*args)
        finally:
            _eager_program.reset(token)

    def abstract_eval(*avals: Any, **params: Any) -> Any:
        shapes = output_shapes(*avals, **params)
        return [alike(s, avals[0]) for s in shapes] if many else alike(shapes, avals[0])

    primitive.def_impl(impl)
    primitive.def_abstract_eval(abstract_eval)
    for platform, known in ((None, "any"), *_PLATFORMS.items()):
        if platform is not None and known not in platforms:
            continue
        # XLA does not partition Mosaic kernels, which only "tpu" has. An exported program does not
        # call native kernels, which only "cpu" has, unless it says so. It never calls Triton
        # kernels, which only "gpu" has, because JAX may change this call.
        exported = "any" if known in ("cpu", "gpu") else known
        names = known, "any" if known == "tpu" else known, exported
        ways = {name: functools.partial(implementation, name) for name in names}
        register_lowering(primitive, platform, *(ways[name] for name in names))
    return primitive


_eager_program = contextvars.ContextVar("voxax_eager_program", default=False)


def lowers_eager_program() -> bool:
    """Return whether the program being lowered is an eager call of a single voxax primitive."""
    return _eager_program.get()


def stable_custom_calls() -> frozenset[str]:
    """Return the names of the custom calls that JAX allows in programs of ``jax.export``."""
    from jax._src.export import _export

    return frozenset(_export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE)


_native_exports = contextvars.ContextVar("voxax_native_exports", default=False)


@contextlib.contextmanager
def exporting_native_calls() -> Iterator[None]:
    """Return a context in which ``jax.export`` for CPUs in this thread keeps native kernel calls.

    The caller has to allow these custom calls in ``jax.export``, and to note in the file that the
    program needs them.
    """
    token = _native_exports.set(True)
    try:
        yield
    finally:
        _native_exports.reset(token)


def exports_native_calls() -> bool:
    """Return whether this thread is inside :func:`exporting_native_calls`."""
    return _native_exports.get()


def register_lowering(
    primitive: Primitive, platform: str | None, plain: Any, partitioned: Any, exported: Any
) -> None:
    """Register functions in ordinary JAX to which a primitive is lowered on a platform.

    The functions take ``(*arrays, **params)``.

    Args:
      primitive: the primitive. With ``multiple_results`` the functions return a tuple, else one
        array.
      platform: JAX's name of the platform; None is for all platforms without a lowering of
        their own.
      plain: the function for ordinary programs, and for exported ones inside
        :func:`exporting_native_calls`.
      partitioned: the function for programs that XLA partitions over devices (outside of
        ``shard_map``).
      exported: the function for programs of ``jax.export``. If XLA also partitions the program,
        ``partitioned`` is taken instead, unless ``partitioned`` is ``plain``.
    """
    functions = plain, partitioned, exported
    rules = [mlir.lower_fun(function, primitive.multiple_results) for function in functions]

    def rule(ctx: Any, *args: Any, **params: Any) -> Any:
        ctx = _with_own_functions(ctx)
        module = _private(ctx, "module_context")
        kind = int(_is_partitioned(_private(module, "axis_context", _UNKNOWN)))
        # If JAX hides this, the program counts as exported, which runs everywhere.
        settings = _private(module, "lowering_parameters")
        exports = _private(settings, "for_export", True) and not _native_exports.get()
        if exports and (not kind or partitioned is plain):
            kind = 2
        token = _absent_device.set(_device_elsewhere(module, platform))
        try:
            return rules[kind](ctx, *args, **params)
        finally:
            _absent_device.reset(token)

    mlir.register_lowering(primitive, rule, platform=platform)


def _with_own_functions(ctx: Any) -> Any:
    """Return a lowering context with an empty function cache, if ``ctx`` is for several platforms.

    JAX lowers a jitted function once for a program, whatever the platform. In a program for several
    platforms, a function that a GPU's rule lowers first would otherwise run on CPUs too. For a
    program of one platform, return ``ctx`` unchanged.
    """
    module = _private(ctx, "module_context")
    alone = len(_private(module, "platforms", ())) < 2
    if alone or _private(module, "cached_primitive_lowerings") is None:
        return ctx
    return ctx.replace(module_context=module.replace(cached_primitive_lowerings={}))


_absent_device: contextvars.ContextVar[Any]
_absent_device = contextvars.ContextVar("voxax_absent_device", default=None)


def absent_device() -> Any | None:
    """Return the device for which a program is being lowered, if this machine lacks it, else None.

    Such a device comes from ``jax.experimental.topologies``: the sharding of the program's
    arguments names it.
    """
    return _absent_device.get()


def _device_elsewhere(context: Any, platform: str | None) -> Any | None:
    backend = _private(context, "backend")
    if backend is None or not type(backend).__name__.startswith("CompileOnly"):
        return None
    device = next(iter(backend.devices()), None)
    return device if device is not None and device.platform == platform else None


def _is_partitioned(context: Any) -> bool:
    """Return whether XLA itself partitions the program over devices: ``jit`` over a mesh.

    ``context`` is the axis context of JAX's lowering. The result is False on one device, and inside
    a ``shard_map`` over all axes of the mesh.
    """
    axes, mesh = _private(context, "manual_axes"), _private(context, "mesh")
    if axes is not None and mesh is not None:  # shard_map, of all axes of the mesh or of some
        return axes | set(mesh.manual_axes) != frozenset(mesh.axis_names)
    return _private(context, "num_devices", None) != 1


def alike(out: jax.ShapeDtypeStruct, operand: Any) -> Any:
    """Return the abstract value of an output that is not split, on the mesh of ``operand``.

    ``out`` gives the shape and dtype. The output varies over the same axes of an enclosing
    ``shard_map`` as the operand.
    """
    mesh = operand.sharding.mesh
    explicit = jax.sharding.AxisType.Explicit in (getattr(mesh, "axis_types", None) or ())
    if not _varying(operand) and not explicit:
        return jax.core.ShapedArray(out.shape, out.dtype)
    unsharded = jax.sharding.PartitionSpec(*(None,) * len(out.shape))
    options: dict[str, Any] = {"sharding": jax.sharding.NamedSharding(mesh, unsharded)}
    if _varying(operand):
        options["manual_axis_type"] = operand.manual_axis_type
    return jax.core.ShapedArray(out.shape, out.dtype, **options)


def constants_of(program: Any) -> list[Any] | None:
    """Return the fill value of each result of a closed jaxpr, if all results are constant arrays.

    Return None if a result depends on arguments, or on operations except broadcast and conversion.
    """
    known: dict[Any, Any] = {}

    def read(variable: Any) -> Any:
        value = variable.val if isinstance(variable, _extend_core.Literal) else known[variable]
        return value if np.ndim(value) == 0 else np.asarray(value)[()]

    try:
        for variable, value in zip(program.jaxpr.constvars, program.consts, strict=True):
            if np.ndim(value) == 0:
                known[variable] = np.asarray(value)[()]
        for equation in program.jaxpr.eqns:
            if equation.primitive.name not in ("broadcast_in_dim", "convert_element_type"):
                return None
            (known[equation.outvars[0]],) = map(read, equation.invars)
        return [read(variable) for variable in program.jaxpr.outvars]
    except KeyError:
        return None


JAX_VERSION = jax.__version__


def tpu_info(device_kind: str | None, num_cores: int | None) -> Any:
    """Return JAX's table entry for a kind of TPU device, or None if JAX does not know the kind.

    No device is used. Pallas is imported by this call, not by importing voxax.

    Args:
      device_kind: the runtime's name of the device, e.g. ``TPU v5 lite``.
      num_cores: number of TensorCores of one device; None means 1.

    Returns:
      A ``pltpu.TpuInfo``, whose sizes and rates are those of one TensorCore, or None.
    """
    if device_kind is None:
        return None
    try:
        from jax.experimental.pallas import tpu as pltpu

        device = jax.sharding.AbstractDevice(
            device_kind=device_kind, num_cores=num_cores or 1, platform="tpu"
        )
        mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
        with jax.sharding.use_abstract_mesh(mesh):
            return pltpu.get_tpu_info()
    except Exception:  # also NotImplementedError and AttributeError of other versions
        return None


def tpu_versions() -> tuple[str, ...]:
    """Return the names of the TPUs that this version of JAX knows, such as ``v5e``."""
    try:
        from jax.experimental.pallas import tpu as pltpu

        return tuple(str(version.value) for version in pltpu.ChipVersion)
    except Exception:
        return ()


def tpu_info_of_version(name: str) -> Any:
    """Return the ``pltpu.TpuInfo`` of a chip such as ``v5e``; None if JAX does not know the chip.

    It describes a device of two TensorCores if JAX joins the cores of this chip into one device,
    and otherwise a device of one TensorCore.
    """
    try:
        from jax.experimental.pallas import tpu as pltpu

        version = pltpu.ChipVersion(name)
    except Exception:
        return None
    for cores in (2, 1):
        try:
            return pltpu.get_tpu_info_for_chip(version, cores)
        except Exception:  # chips whose cores are devices of their own refuse 2
            continue
    return None


def known_tpu_infos() -> list[Any]:
    """Return the ``pltpu.TpuInfo`` of every TPU chip that this version of JAX knows."""
    return [info for name in tpu_versions() if (info := tpu_info_of_version(name)) is not None]


def has_libtpu() -> bool:
    """Return whether the TPU compiler, the package libtpu, is installed."""
    return importlib.util.find_spec("libtpu") is not None


def tpu_topology(name: str) -> list[Any]:
    """Return the devices of a TPU topology, such as ``v5e:2x2``. It needs libtpu, but no TPU."""
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)


# Triton's names of dtypes.
_TRITON_DTYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "int32": "i32",
    "bool": "i1",
}


def triton_dtype(dtype: Any) -> str:
    """Return Triton's name of a dtype, such as ``fp32`` for float32."""
    return _TRITON_DTYPES[jax.numpy.dtype(dtype).name]


def missing_for_triton() -> str | None:
    """Return a text on what to install to run Triton kernels, or None if nothing is missing."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton, which is not installed: pip install 'voxax[triton]'"
    # The module is empty without the plugin.
    if not hasattr(gpu_triton, "TritonKernelCall"):
        return "JAX's plugin for GPUs, which is not installed: pip install 'voxax[cuda]'"
    return None


def compiled_by_triton(
    kernel: Any,
    types: Sequence[str],
    constants: Mapping[str, Any],
    generation: str,
    warps: int,
    stages: int,
    options: Sequence[tuple[str, int]] = (),
) -> Any:
    """Compile a Triton kernel for a GPU, and return Triton's result. No GPU is needed.

    Triton caches results on disk.

    Args:
      kernel: a function under ``triton.jit``.
      types: Triton's types of the non-constant parameters, in order. Arrays must start at multiples
        of 16 bytes, as JAX's arrays do.
      constants: the kernel's constants, by name.
      generation: the compute capability, such as ``9.0``, or AMD's name, such as ``gfx942``.
      warps: number of warps. JAX's launcher gives a warp 32 threads, or 64 on AMD's GPUs.
      stages: the option ``num_stages`` of Triton's compiler.
      options: other options of Triton's compiler, by name.

    Raises:
      RuntimeError: Triton compiled for a different number of threads than JAX would launch.
    """
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    given: dict[str, Any] = {"num_stages": stages, "enable_fp_fusion": True, **dict(options)}
    amd = generation.startswith("gfx")
    # JAX's launcher (jaxlib/gpu/triton_kernels.cc) counts 64 threads on all of AMD's GPUs.
    threads = warps * (64 if amd else 32)
    if amd:
        target = GPUTarget("hip", generation, 64 if generation.startswith("gfx9") else 32)
    else:
        target = GPUTarget("cuda", int(generation.replace(".", "")), 32)
        given["ptx_version"] = ptx_version(generation)
    given["num_warps"] = threads // target.warp_size
    kinds = iter(types)
    signature = {
        name: "constexpr" if name in constants else next(kinds) for name in kernel.arg_names
    }
    arrays = [place for place, kind in enumerate(signature.values()) if kind.startswith("*")]
    aligned = {(place,): [["tt.divisibility", 16]] for place in arrays}
    source = ASTSource(kernel, signature, dict(constants), aligned)
    made = triton.compile(source, target=target, options=given)
    size = getattr(made.metadata, "warp_size", target.warp_size)
    if made.metadata.num_warps * size != threads:
        raise RuntimeError(
            f"Triton {triton.__version__} compiled {made.metadata.name} for {generation} with "
            f"{made.metadata.num_warps} warps of {size} threads, and JAX would launch {threads} "
            "threads: please report it. vx.algorithms('explicit_gemm') runs without Triton"
        )
    return made


# The least version of PTX that supports a GPU, times ten. JAX assembles PTX with a ptxas that may
# be older than Triton's. For a GPU that the version does not support, LLVM ends the process.
_PTX_OF = {"10.3": 88, "12.1": 88, "11.0": 90}


def ptx_version(generation: str) -> int:
    """Return the version of PTX, times ten, to generate for a compute capability such as ``9.0``.

    It is 87 (PTX 8.7 of CUDA 12.8), or more if the GPU needs a later version.
    """
    return _PTX_OF.get(generation, 87)


def assembled_ptx() -> int | None:
    """Return the newest PTX version, times ten, that JAX's ptxas accepts, or None if unknown."""
    plugin = importlib.util.find_spec("jax_cuda12_plugin")
    package = "nvidia-cuda-nvcc" if plugin is None else "nvidia-cuda-nvcc-cu12"
    try:
        major, minor, *_ = map(int, importlib.metadata.version(package).split("."))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    return 10 * (major - 4) + minor - (1 if major == 12 else 0)


def triton_call(
    kernel: Any,
    operands: Sequence[jax.Array],
    sizes: Sequence[int],
    out: jax.ShapeDtypeStruct,
    programs: int,
    constants: Mapping[str, Any],
    *,
    generation: str,
    warps: int,
    stages: int,
    options: tuple[tuple[str, int], ...] = (),
) -> jax.Array:
    """Run a Triton kernel in a JAX program, and return its result.

    The kernel's parameters are operands, sizes, result and constants, in this order.

    Args:
      operands: the input arrays.
      sizes: integers that are passed as 32-bit scalars.
      out: shape and dtype of the result.
      programs: number of program instances, the size of the one-dimensional grid.
      kernel, constants, generation, warps, stages, options: see :func:`compiled_by_triton`.
    """
    return _triton_call_p.bind(
        *operands,
        kernel=kernel,
        sizes=tuple(sizes),
        out=out,
        programs=programs,
        constants=tuple(sorted(constants.items())),
        generation=generation,
        warps=warps,
        stages=stages,
        options=options,
    )


_triton_call_p = Primitive("triton_call")
_triton_call_p.def_impl(
    lambda *operands, **params: jax.jit(functools.partial(_triton_call_p.bind, **params))(*operands)
)
_triton_call_p.def_abstract_eval(lambda *operands, out, **_: alike(out, operands[0]))


def _lower_triton_call(
    ctx: Any,
    *operands: Any,
    kernel: Any,
    sizes: tuple[int, ...],
    out: jax.ShapeDtypeStruct,
    programs: int,
    constants: tuple[tuple[str, Any], ...],
    generation: str,
    warps: int,
    stages: int,
    options: tuple[tuple[str, int], ...],
) -> Any:
    """Lower the primitive of :func:`triton_call`, whose arguments these are, to JAX's custom call.

    The custom call contains PTX code for NVIDIA GPUs, or the name of a code file for AMD GPUs.
    """
    arrays = [f"*{triton_dtype(a.dtype)}" for a in (*ctx.avals_in, out)]
    types = (*arrays[:-1], *["i32"] * len(sizes), arrays[-1])
    made = compiled_by_triton(kernel, types, dict(constants), generation, warps, stages, options)
    if "ptx" in made.asm:
        code, capability = made.asm["ptx"], int(generation.replace(".", ""))
    else:
        # JAX removes the file after reading it, so it is a copy of the one that Triton caches.
        with tempfile.NamedTemporaryFile(suffix=".hsaco", delete=False) as file:
            file.write(made.asm["hsaco"])
        code, capability = file.name, 0
    array = gpu_triton.create_array_parameter(0, 16)
    parameters = [array] * len(operands)
    parameters += [gpu_triton.create_scalar_parameter(size, "i32") for size in sizes]
    name, shared = made.metadata.name, made.metadata.shared
    binary = gpu_triton.TritonKernel(name, warps, 1, shared, code, "", capability)
    call = gpu_triton.TritonKernelCall(binary, programs, 1, 1, [*parameters, array])
    rule = jax.ffi.ffi_lowering("triton_kernel_call_ffi", api_version=4)
    return rule(ctx, *operands, opaque=zlib.compress(call.to_proto(name, b"")))


for _platform in ("cuda", "rocm"):
    mlir.register_lowering(_triton_call_p, _lower_triton_call, platform=_platform)


def scope_in(equation: Any, outer: str = "") -> str:
    """Return the ``jax.named_scope`` path of an equation, joined to the scope `outer` around it."""
    return "/".join(part for part in (outer, str(equation.source_info.name_stack)) if part)


def programs_in(equation: Any) -> list[Any]:
    """Return the jaxprs and closed jaxprs in an equation's parameters, such as a loop's body."""
    values = equation.params.values()
    parts = (part for v in values for part in (v if isinstance(v, tuple | list) else (v,)))
    return [part for part in parts if hasattr(getattr(part, "jaxpr", part), "eqns")]


# Primitives whose inner functions run several times, or on a part of the operands.
_NOT_ENTERED = ("while", "scan", "cond", "shard_map", "xla_pmap")

Place = tuple[int, ...]
"""The position of an equation in nested jaxprs: one index per level, the outermost jaxpr first."""


def applications(closed: Any, primitives: Sequence[Primitive]) -> list[tuple[Any, str, Place]]:
    """Return every equation of a closed jaxpr that applies one of ``primitives``.

    Bodies of inner functions and loops are searched too, once each.

    Returns:
      ``[(equation, jax.named_scope path, place)]`` in the order of the program. The place has the
      index of the equation in each of the nested jaxprs, outermost first.
    """
    found: list[tuple[Any, str, Place]] = []

    def visit(jaxpr: Any, outer: str, above: Place) -> None:
        for number, equation in enumerate(jaxpr.eqns):
            scope = scope_in(equation, outer)
            place = (*above, number)
            if equation.primitive in primitives:
                found.append((equation, scope, place))
            for inner in programs_in(equation):
                visit(getattr(inner, "jaxpr", inner), scope, place)

    visit(closed.jaxpr, "", ())
    return found


def watch(
    closed: Any, arguments: Sequence[Any], *primitives: Primitive
) -> list[tuple[Any, tuple[Any, ...], Place]]:
    """Evaluate a closed jaxpr on ``arguments``; return the operands of calls of ``primitives``.

    Calls inside inner functions (jit, remat, custom derivatives) are included; calls inside loops,
    branches and ``shard_map`` are not.

    Returns:
      ``[(equation, operands, place)]`` in the order of the program, with the concrete or traced
      operands. The place is the position of the equation, as in :func:`applications`.
    """
    found: list[tuple[Any, tuple[Any, ...], Place]] = []

    def holds(jaxpr: Any) -> bool:
        inner = (getattr(p, "jaxpr", p) for e in jaxpr.eqns for p in e.params.values())
        return any(e.primitive in primitives for e in jaxpr.eqns) or any(
            holds(j) for j in inner if hasattr(j, "eqns")
        )

    def run(jaxpr: Any, consts: Sequence[Any], values: Sequence[Any], above: Place) -> list[Any]:
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))

        def read(variable: Any) -> Any:
            return variable.val if hasattr(variable, "val") else known[variable]

        for number, equation in enumerate(jaxpr.eqns):
            operands = tuple(read(v) for v in equation.invars)
            place = (*above, number)
            if equation.primitive in primitives:
                found.append((equation, operands, place))
            inner = next(
                (p for p in equation.params.values() if hasattr(getattr(p, "jaxpr", p), "eqns")),
                None,
            )
            body = getattr(inner, "jaxpr", inner)
            enter = body is not None and len(body.invars) == len(operands) and holds(body)
            if enter and equation.primitive.name not in _NOT_ENTERED:
                outs = run(body, getattr(inner, "consts", ()), operands, place)
            else:
                parameters = equation.primitive.get_bind_params(equation.params)
                outs = equation.primitive.bind(*operands, **parameters)
            outs = outs if equation.primitive.multiple_results else [outs]
            known.update(zip(equation.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    run(closed.jaxpr, closed.consts, arguments, ())
    return found


def only_results(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return ``function`` compiled, without the equations that its results do not depend on.

    ``jax.jit`` itself would keep equations with side effects, such as ``jax.debug.callback``.
    """

    def run(*arguments: Any) -> list[Any]:
        closed = jax.make_jaxpr(function)(*arguments)
        jaxpr, kept = closed.jaxpr, []
        needed = {id(v) for v in jaxpr.outvars}
        for equation in reversed(jaxpr.eqns):
            if any(id(v) in needed for v in equation.outvars):
                kept.append(equation)
                needed.update(id(v) for v in equation.invars)
        effects = frozenset().union(*(equation.effects for equation in kept))
        jaxpr = jaxpr.replace(eqns=kept[::-1], effects=effects)
        return jax.jit(_extend_core.jaxpr_as_fun(closed.replace(jaxpr=jaxpr)))(*arguments)

    return run


def coordinator() -> tuple[Any, str] | None:
    """Return JAX's key-value client, which the processes of one distributed job share, or None.

    Returns:
      ``(client, a name for the job)``. The result is None for a single process, before
      ``jax.distributed.initialize``, after its ``shutdown``, and in versions of JAX that keep the
      client elsewhere. The client has ``key_value_set(key, text, allow_overwrite=)`` and
      ``blocking_key_value_get(key, milliseconds)``.
    """
    try:
        from jax._src.distributed import global_state

        client, processes = global_state.client, global_state.num_processes
        if client is None or (processes or 1) < 2:
            return None
        return client, f"{global_state.coordinator_address} {global_state.process_id} {id(client)}"
    except (ImportError, AttributeError):
        return None
