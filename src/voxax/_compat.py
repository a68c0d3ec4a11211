"""Every difference between JAX versions, and every semi-public JAX name, in one place.

``jax.extend``, ``jax.interpreters``, ``jax.core`` and ``jax._src`` may change between releases;
no other module of voxax imports them (a test holds this). First comes what the library needs,
then, from :class:`Node` on, what only the checker needs: tracing with example values. JAX stops
at the first place where Python asks a tracer for its value. There every such question goes to a
handler, which may answer with the value that the examples give, so that the trace goes on.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import importlib.util
import itertools
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import numpy as np
from jax._src import config, core, source_info_util
from jax._src.lax.control_flow import loops
from jax.extend import core as _extend_core
from jax.interpreters import ad, batching, mlir, partial_eval

Primitive = _extend_core.Primitive
Zero = ad.Zero
is_undefined_primal = ad.is_undefined_primal

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}


def context_of(*values: Any) -> contextlib.AbstractContextManager | None:
    """A context for arrays that are computed from ``values`` alone.

    Inside it, operations are recorded at the trace level of ``values``, however deep the
    current one is nested, and run eagerly when all of them are concrete. None when their
    trace levels differ.
    """
    traces = {id(t): t for leaf in jax.tree.leaves(values) for t in [getattr(leaf, "_trace", None)]}
    if len(traces) != 1:
        return None
    (trace,) = traces.values()
    if trace is not None:
        return _extend_core.set_current_trace(trace)
    return _eagerly()


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Evaluate eagerly, also outside of a ``shard_map`` that is being traced or run.

    Arrays made under its mesh belong to it, and could not be used with others afterwards; and
    ``jax.ensure_compile_time_eval`` does not leave one that runs without ``jit``.
    """
    no_mesh = jax.sharding.AbstractMesh((), ())
    with jax.core.eval_context(), jax.sharding.use_abstract_mesh(no_mesh):
        yield


def is_traced(*values: Any) -> bool:
    """True if any array in ``values`` (pytrees allowed) is an abstract tracer."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


# Values that are part of the key of jax.jit's caches: a function is traced anew for a new value,
# and found again for an old one. Values are hashable; new threads see the global value, which
# stays as given here unless `set_global` changes it. A context that they make is entered once.
_trace_token = jax.make_user_context(None)
_environment_token = jax.make_user_context(0)
overlay: Any = jax.make_user_context(())
_tokens = itertools.count(1)
batchers = batching.primitive_batchers  # (args, dims, **params) -> (out, out_dim), or lists


def fresh_trace() -> contextlib.AbstractContextManager[Any]:
    """A context in which every jitted function is traced anew, also those traced before.

    Watching a trace needs it: an abstract evaluation does not enter functions whose trace is
    cached.
    """
    return _trace_token(next(_tokens))


def usual_trace() -> contextlib.AbstractContextManager[Any]:
    """A context that undoes :func:`fresh_trace`: earlier traces are found again."""
    return _trace_token(None)


def retrace_everything() -> None:
    """Make every jitted function trace anew from now on, once, in all threads."""
    if hasattr(_environment_token, "set_global"):
        _environment_token.set_global(next(_tokens))
    else:  # JAX 0.10.0
        jax.clear_caches()


def vary_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Mark arrays inside ``shard_map`` as varying over every axis that one of them varies over.

    Outside of it they are returned unchanged. Without the mark, the gradient of an operand that all
    shards share would be that of one shard, and not their sum.
    """
    axes = frozenset().union(*(_varying(jax.typeof(x)) for x in arrays))
    missing = [tuple(sorted(axes - _varying(jax.typeof(x)))) for x in arrays]
    return tuple(
        jax.lax.pcast(x, lacks, to="varying") if lacks else x
        for x, lacks in zip(arrays, missing, strict=True)
    )


def _varying(aval: Any) -> frozenset[Any]:
    """The mesh axes of an enclosing ``shard_map`` over which a value differs."""
    return getattr(getattr(aval, "manual_axis_type", None), "varying", frozenset())


def shape_like(shape: Sequence[int], dtype: Any, like: jax.Array) -> jax.ShapeDtypeStruct:
    """The shape of a kernel's output that varies over the same mesh axes as ``like``."""
    aval = jax.typeof(like)
    if not _varying(aval):
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    return jax.ShapeDtypeStruct(
        tuple(shape),
        dtype,
        manual_axis_type=aval.manual_axis_type,  # pyright: ignore[reportAttributeAccessIssue]
    )


def thread_settings(device: Any = None) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """This thread's JAX settings that decide what a program computes, for another thread.

    Threads do not inherit them. The result is called there: ``with settings():``.

    Args:
      device: where arrays are put; None keeps this thread's.
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
    """The zero tangent of a constant value."""
    return Zero(jax.typeof(value).to_tangent_aval())


def set_rules(primitive: Primitive, jvp: Any, transpose: Any, batch: Any) -> None:
    """Set JAX's rules of differentiation and batching for a primitive."""
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batchers[primitive] = batch


def set_dce_rule(primitive: Primitive, rule: Callable[[Sequence[bool], Any], Any]) -> None:
    """Set the rule that drops unused results.

    Args:
      rule: ``(used outputs, equation) -> (used inputs, equation)``.
    """
    # JAX 0.12 gives more between the two. Without rules everything is computed.
    getattr(partial_eval, "dce_rules", {})[primitive] = lambda *some: rule(some[0], some[-1])


def staged_primitive(
    name: str, implementation: Callable[..., Any], output_shapes: Callable[..., Any], *, many: bool
) -> Primitive:
    """Make a primitive, called ``name`` in jaxprs, without rules of differentiation.

    Args:
      implementation: ``(platform, *operands, **params)`` in ordinary JAX, called when the primitive
        is lowered for ``platform`` (``cpu``, ``gpu``, ``tpu``, or ``any`` for a platform unknown
        here). Inside ``shard_map`` all operands must vary over the same mesh axes, see
        :func:`vary_alike`; the output then does.
      output_shapes: ``(*shapes, **params)`` to a ``ShapeDtypeStruct``, or a tuple of them.
      many: it computes a tuple, and not one array.

    The eager path keeps one jitted program per set of parameters: without that, each eager
    call costs about 35 ms of tracing instead of 0.02 ms (measured on a CPU).
    """
    primitive = Primitive(name)
    primitive.multiple_results = many

    @functools.lru_cache(maxsize=4096)
    def jitted(params: tuple) -> Callable:
        return jax.jit(functools.partial(primitive.bind, **dict(params)))

    def impl(*args: Any, **params: Any) -> Any:
        # Inside jax.disable_jit() the jitted program would only call this again.
        with jax.disable_jit(False):
            return jitted(tuple(sorted(params.items())))(*args)

    def abstract_eval(*avals: Any, **params: Any) -> Any:
        shapes = output_shapes(*avals, **params)
        return [alike(s, avals[0]) for s in shapes] if many else alike(shapes, avals[0])

    primitive.def_impl(impl)
    primitive.def_abstract_eval(abstract_eval)
    for platform in (None, *_PLATFORMS):
        known = _PLATFORMS.get(platform or "", "any")
        # XLA does not partition Mosaic kernels, which are for "tpu" alone, and an exported program
        # must not call the native ones, which are for "cpu" alone.
        names = known, "any" if known == "tpu" else known, "any" if known == "cpu" else known
        ways = {name: functools.partial(implementation, name) for name in names}
        register_lowering(primitive, platform, *(ways[name] for name in names))
    return primitive


def register_lowering(
    primitive: Primitive, platform: str | None, plain: Any, partitioned: Any, exported: Any
) -> None:
    """Lower to a function in ordinary JAX, ``(*arrays, **params)``, that depends on the program.

    Args:
      primitive: with ``multiple_results`` the functions return a tuple, else one array.
      platform: JAX's name for it; None is every platform without a rule of its own.
      plain, partitioned, exported: for ordinary programs, for those that XLA partitions over
        devices (outside of ``shard_map``), and for those of ``jax.export``; for a program that is
        both, the one that is not ``plain``.
    """
    functions = plain, partitioned, exported
    rules = [mlir.lower_fun(function, primitive.multiple_results) for function in functions]

    def rule(ctx: Any, *args: Any, **params: Any) -> Any:
        kind = int(_is_partitioned(ctx.module_context.axis_context))
        if ctx.module_context.lowering_parameters.for_export and (not kind or partitioned is plain):
            kind = 2
        return rules[kind](ctx, *args, **params)

    mlir.register_lowering(primitive, rule, platform=platform)


def _is_partitioned(context: Any) -> bool:
    """True if XLA's partitioner splits the program over devices, as for a ``jit`` over a mesh."""
    if hasattr(context, "manual_axes"):  # shard_map, of all axes of the mesh or of some
        manual = context.manual_axes | set(context.mesh.manual_axes)
        return manual != frozenset(context.mesh.axis_names)
    return getattr(context, "num_devices", 1) != 1


def alike(out: jax.ShapeDtypeStruct, operand: Any) -> Any:
    """The abstract value of an output that varies over the same mesh axes as ``operand``."""
    if not _varying(operand):
        return jax.core.ShapedArray(out.shape, out.dtype)
    unsharded = jax.sharding.PartitionSpec(*(None,) * len(out.shape))
    return jax.core.ShapedArray(
        out.shape,
        out.dtype,
        sharding=jax.sharding.NamedSharding(operand.sharding.mesh, unsharded),
        manual_axis_type=operand.manual_axis_type,  # pyright: ignore[reportCallIssue]
    )


JAX_VERSION = jax.__version__


def tpu_info(device_kind: str | None, num_cores: int | None) -> Any:
    """JAX's table entry (``pltpu.TpuInfo``, of one TensorCore) of a kind of TPU device.

    No device is touched. Pallas is imported here and not with voxax.

    Args:
      device_kind: the runtime's name, e.g. ``TPU v5 lite``.
      num_cores: TensorCores of one device; None means 1.

    Returns:
      None for a kind that this version of JAX does not know.
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
    """Names of the TPUs that this version of JAX knows, such as ``v5e``."""
    try:
        from jax.experimental.pallas import tpu as pltpu

        return tuple(str(version.value) for version in pltpu.ChipVersion)
    except Exception:
        return ()


def tpu_info_of_version(name: str) -> Any:
    """The entry of the chip called ``name`` (``v5e``, ``7x``); both cores where JAX joins them."""
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
    """The entries of all TPUs that this version of JAX knows."""
    return [info for name in tpu_versions() if (info := tpu_info_of_version(name)) is not None]


def has_libtpu() -> bool:
    """True if the TPU compiler is installed."""
    return importlib.util.find_spec("libtpu") is not None


def tpu_topology(name: str) -> list[Any]:
    """The devices of a TPU topology, which may be absent; needs libtpu."""
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)


def scope_of(equation: Any) -> str:
    """The ``jax.named_scope`` path under which an equation of a jaxpr was traced."""
    return str(equation.source_info.name_stack)


# Their functions run several times, or on a part of the operands.
_NOT_ENTERED = ("while", "scan", "cond", "shard_map", "xla_pmap")

Place = tuple[int, ...]
"""The place of an equation in a jaxpr: its number, after those of the equations around it."""


def applications(closed: Any, primitives: Sequence[Primitive]) -> list[tuple[Any, str, Place]]:
    """Find every equation of a closed jaxpr that applies one of ``primitives``.

    Functions and loops inside are entered, each once.

    Returns:
      ``[(equation, its scope, its place)]`` in the order of the program.
    """
    found: list[tuple[Any, str, Place]] = []

    def visit(jaxpr: Any, outer: str, above: Place) -> None:
        for number, equation in enumerate(jaxpr.eqns):
            scope = "/".join(part for part in (outer, scope_of(equation)) if part)
            place = (*above, number)
            if equation.primitive in primitives:
                found.append((equation, scope, place))
            for value in equation.params.values():
                for inner in value if isinstance(value, tuple | list) else (value,):
                    body = getattr(inner, "jaxpr", inner)
                    if hasattr(body, "eqns"):
                        visit(body, scope, place)

    visit(closed.jaxpr, "", ())
    return found


def watch(
    closed: Any, arguments: Sequence[Any], *primitives: Primitive
) -> list[tuple[Any, tuple[Any, ...], Place]]:
    """Evaluate a closed jaxpr, and note each application of one of ``primitives``.

    Functions called inside (jit, remat, custom derivatives) are entered; loops and functions
    over shards are not.

    Returns:
      ``[(equation, its operands, its place)]`` in order; places are those of
      :func:`applications`.
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
    """``function`` compiled, without the equations that its results do not depend on.

    ``jax.jit`` alone would keep those with side effects, such as ``jax.debug.callback``.
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
    """The key-value client of a job of several processes.

    Returns:
      ``(client, a name for the job)``, or None for a single process, before
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


Tracer = jax.core.Tracer
# The file with the methods of tracers that Python calls.
CORE = core.__file__

Handler = Callable[[str, Any, str], Any]

_handler: contextvars.ContextVar[Handler | None] = contextvars.ContextVar("handler", default=None)
_notice: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar(
    "notice", default=None
)
_patching = threading.RLock()


@dataclasses.dataclass(eq=False)
class Node:
    """One operation, recorded while tracing, with its operands and its place in the source."""

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
        # Arrays of JAX are immutable. To go on, this tracer becomes the updated array.
        _ask("setitem", self)
        new: Any = jax.numpy.asarray(self.copy()).at[key].set(value)
        self.node, self.index, self.value = new.node, new.index, new.value

    def __format__(self, spec: str) -> str:
        return format(_ask("format", self).item(), spec) if spec else repr(self)

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(_ask("hash", self).tobytes())

    def copy(self) -> Any:
        """A second tracer of the same value, as ``jax.Array.copy`` gives."""
        twin = ExampleTracer(self._trace, self.aval, self.node, self.index, self.value)
        twin.label = self.label
        return twin


class ExampleTrace(core.Trace):
    """Records every operation, computes none; values are evaluated when one is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.limit: int | None = None
        self.end: float | None = None  # of time.monotonic()

    def argument(self, value: Any, label: str) -> ExampleTracer:
        """A tracer for an input whose example is ``value``."""
        value = jax.numpy.asarray(value) if not is_key(value) else value
        tracer = ExampleTracer(self, core.typeof(value), None, 0, value)
        tracer.label = label
        return tracer

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
        """A context in which operations are recorded in this trace."""
        return core.set_current_trace(self)


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Evaluate eagerly inside, whatever is being traced."""
    with core.eval_context(), jax.disable_jit(False), usual_trace():
        yield


class TraceLimit(BaseException):
    """Raised when a trace exceeds its number of operations or its time."""


def is_key(value: Any) -> bool:
    """True for an array of random keys, or its type: NumPy does not know them."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def example_of(tracer: Any) -> Any:
    """The value of any tracer for the example inputs, as a concrete array; ones if unknown."""
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
    """Evaluate only the operations that the tracer needs. No recursion: traces can be long."""
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
    """The recorded tracer below those of differentiation and vmap; None where there is none."""
    while isinstance(tracer, core.Tracer) and not isinstance(tracer, ExampleTracer):
        inner = getattr(tracer, "primal", None)
        tracer = inner if inner is not None else getattr(tracer, "val", None)
    return tracer if isinstance(tracer, ExampleTracer) else None


def _ask(kind: str, tracer: Any, context: str = "") -> Any:
    handler = _handler.get()
    if handler is None:
        raise jax.errors.ConcretizationTypeError(tracer, context)
    return handler(kind, tracer, context)


# Functions of JAX that only ask whether a value is known, and stop where it is not.
_STOPS_UNLESS_KNOWN = (
    "expand_bool_indices",
    "is_constant_dim",
    "_is_slice_element_none_or_constant_or_symbolic",
)


def answering(handler: Handler) -> contextlib.AbstractContextManager[None]:
    """A context in which ``handler(kind, tracer, context)`` answers for tracers, in this thread.

    ``kind`` is ``bool``, ``int``, ``float``, ``complex``, ``index``, ``array``, ``tolist``,
    ``tobytes``, ``dlpack``, ``static`` (a static argument of a JAX function), ``setitem``,
    ``format`` or ``hash``. What it returns is taken for the value. JAX has no hook for this, so
    the few methods that raise are replaced while any thread is inside, and behave as ever in the
    other threads.
    """
    return _patched(_handler, handler)


def noticing(notice: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    """A context that calls ``notice(kind)`` when Python asks a tracer for its value.

    In this thread; the question fails as ever. Kinds are those of :func:`answering` for numbers
    and arrays.
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
    """True while ``lax.while_loop`` tries its condition in Python, where an error is expected."""
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

    Each is (code, instruction); JAX's own frames are among them.
    """
    sources = (getattr(recorded, name, None) for name in ("source_info", "source", "_line_info"))
    tracebacks = (getattr(source, "traceback", None) for source in sources)
    traceback = next((found for found in tracebacks if found is not None), None)
    return [] if traceback is None else list(zip(*traceback.raw_frames(), strict=True))


def leaked_tracers(function: Callable[..., Any], values: Sequence[Any]) -> list[tuple[Any, str]]:
    """Return tracers that something holds after tracing, by ``jax.checking_leaks``.

    Each comes with what JAX says about its holder. Tracers that only the computation of others
    holds are left out.
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
    """``(static_argnums, static_argnames)`` of a function that ``jax.jit`` made."""
    info = getattr(jitted, "_jit_info", None)
    numbers = getattr(info, "static_argnums", ()) or ()
    names = getattr(info, "static_argnames", ()) or ()
    return tuple(numbers), tuple(names)


def is_jitted(target: Any) -> bool:
    """True for a function that ``jax.jit`` made."""
    return hasattr(target, "_jit_info") and hasattr(target, "trace")
