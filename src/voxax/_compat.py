"""Every difference between JAX versions, and every semi-public JAX name, in one place.

``jax.extend`` and ``jax.interpreters`` may change between releases; nothing else
in voxax imports them (a test holds this).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
from jax.extend import core as _extend_core
from jax.interpreters import ad, batching, mlir

Primitive = _extend_core.Primitive
Zero = ad.Zero
is_undefined_primal = ad.is_undefined_primal

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}


def home_of(*values: Any) -> contextlib.AbstractContextManager | None:
    """The context in which arrays computed from ``values`` alone belong.

    Inside it, operations are recorded at the trace level where ``values`` live, however
    deep the current one is nested, and run eagerly when all of them are concrete. None
    when they live at different levels.
    """
    traces = {id(t): t for leaf in jax.tree.leaves(values) for t in [getattr(leaf, "_trace", None)]}
    if len(traces) != 1:
        return None
    (trace,) = traces.values()
    if trace is not None:
        return _extend_core.set_current_trace(trace)
    return jax.ensure_compile_time_eval()


def is_traced(*values: Any) -> bool:
    """Whether any array in ``values`` (pytrees allowed) is an abstract tracer."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


# Part of the key of jax.jit's caches (JAX 0.10.2 and later); earlier versions may reuse a trace.
_trace_token = jax.make_user_context(None) if hasattr(jax, "make_user_context") else None
_tokens = itertools.count(1)


def fresh_trace() -> contextlib.AbstractContextManager[Any]:
    """Inside, every jitted function is traced anew, also those traced before.

    An abstract evaluation does not enter functions whose trace is cached, so whoever
    watches what a trace does needs this.
    """
    return contextlib.nullcontext() if _trace_token is None else _trace_token(next(_tokens))


def bilinear_primitive(
    name: str,
    implementation: Callable[..., jax.Array],
    output_shape: Callable[..., jax.ShapeDtypeStruct],
    transpose: Callable[..., list],
    batch: Callable[..., tuple[jax.Array, int]],
) -> Primitive:
    """A primitive that is bilinear in its first two operands.

    Args:
      name: the primitive's name, as it appears in a jaxpr.
      implementation: ``(platform, a, b, *views, **params) -> Array`` in ordinary JAX,
        called when the primitive is lowered for ``platform`` (``cpu``, ``gpu``, ``tpu``, or
        ``any`` for a platform unknown here).
      output_shape: the same signature on shapes, returns a ``ShapeDtypeStruct``.
      transpose: ``(cotangent, a, b, *views, **params) -> [ct_a, ct_b, None, ...]``.
      batch: ``(args, dims, **params) -> (out, out_dim)``.

    The JVP is the primitive itself, once per operand (product rule). The eager
    path keeps one jitted program per set of parameters: without that, each eager
    call costs about 35 ms of tracing instead of 0.02 ms (measured on a CPU).
    """
    primitive = Primitive(name)

    @functools.lru_cache(maxsize=4096)
    def jitted(params: tuple) -> Callable:
        return jax.jit(functools.partial(primitive.bind, **dict(params)))

    def impl(*args: Any, **params: Any) -> Any:
        # Inside jax.disable_jit() the jitted program would only call this again.
        with jax.disable_jit(False):
            return jitted(tuple(sorted(params.items())))(*args)

    def abstract_eval(*avals: Any, **params: Any) -> Any:
        out = output_shape(*avals, **params)
        return jax.core.ShapedArray(out.shape, out.dtype)

    def jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        a, b, *views = primals
        ta, tb, *_ = tangents
        out = primitive.bind(a, b, *views, **params)
        terms = []
        if not isinstance(ta, Zero):
            terms.append(primitive.bind(ta, b, *views, **params))
        if not isinstance(tb, Zero):
            terms.append(primitive.bind(a, tb, *views, **params))
        if not terms:
            return out, ad.Zero.from_primal_value(out)  # pyright: ignore[reportAttributeAccessIssue]
        return out, functools.reduce(ad.add_jaxvals, terms)

    primitive.def_impl(impl)
    primitive.def_abstract_eval(abstract_eval)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    for platform in (None, *_PLATFORMS):
        body = functools.partial(implementation, _PLATFORMS.get(platform or "", "any"))
        rule = mlir.lower_fun(body, multiple_results=False)
        mlir.register_lowering(primitive, rule, platform=platform)
    return primitive
