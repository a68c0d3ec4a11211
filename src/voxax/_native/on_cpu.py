"""Functions with a native implementation on CPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from voxax import _compat, _native
from voxax._native.eager import HostBody, on_host

Body = Callable[..., tuple[jax.Array, ...]]


def natively_on_cpu(
    name: str,
    native: Body,
    portable: Body,
    tpu: Body | None = None,
    *,
    eager: HostBody | None = None,
) -> Body:
    """Return a function that runs ``native`` on CPUs with the library, ``portable`` elsewhere.

    On TPUs it runs ``tpu`` if given, which is traced for them alone, except in programs that XLA
    distributes over devices: it does not partition Pallas kernels.

    Programs of ``jax.export`` contain the portable implementation for CPUs too, since they may run
    where voxax is not installed; :func:`voxax.io.program.export_program` writes others. The
    function is not differentiable.

    Args:
      name: of the primitive, as it appears in a jaxpr.
      native, portable, tpu: ``(*arrays, **static) -> tuple of arrays`` in ordinary JAX, of the same
        shapes and dtypes; ``static`` is hashable. Under ``vmap`` the one that runs is mapped.
      eager: the library's function for NumPy arrays, ``(*arrays, **static)`` to a tuple, of the
        same bits as ``native``: eager calls on a CPU then compile nothing.
    """
    primitive = _compat.Primitive(name)
    primitive.multiple_results = True

    def mapped(body: Body, axes: tuple, static: tuple) -> Body:
        function = functools.partial(body, **dict(static))
        for in_axes in axes:
            function = jax.vmap(function, in_axes=in_axes)
        return function

    at_once = None if eager is None else on_host(eager)

    # Other eager calls: one program for each set of parameters.
    @functools.lru_cache(maxsize=1024)
    def jitted(axes: tuple, static: tuple) -> Callable:
        return jax.jit(functools.partial(primitive.bind, axes=axes, static=static))

    @primitive.def_impl
    def _(*args: Any, axes: tuple, static: tuple) -> Any:
        if at_once is not None and not axes and _native.unavailable() is None:
            outs = at_once(*args, **dict(static))
            if outs is not None:
                return outs
        with jax.disable_jit(False):
            return jitted(axes, static)(*args)

    @primitive.def_abstract_eval
    def _(*avals: Any, axes: tuple, static: tuple) -> list[Any]:
        shapes = (jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
        # The native body is one call, the portable one may be hundreds of operations to trace.
        body = native if _native.unavailable() is None else portable
        outs = jax.eval_shape(mapped(body, axes, static), *shapes)
        return [_compat.alike(out, avals[0]) for out in outs]

    def batch(args: Any, dims: Any, *, axes: tuple, static: tuple) -> tuple[Any, tuple]:
        outs = primitive.bind(*args, axes=(*axes, tuple(dims)), static=static)
        return outs, (0,) * len(outs)

    def lowered(body: Body) -> Body:
        return lambda *args, axes, static: mapped(body, axes, static)(*args)

    def on_cpu(*args: Any, **static: Any) -> tuple[jax.Array, ...]:
        body = native if _native.unavailable() is None else portable
        return body(*args, **static)

    _compat.set_batch_rule(primitive, batch)
    ours, others = lowered(on_cpu), lowered(portable)
    _compat.register_lowering(primitive, "cpu", ours, ours, others)
    _compat.register_lowering(primitive, None, others, others, others)
    if tpu is not None:
        tiles = lowered(tpu)
        _compat.register_lowering(primitive, "tpu", tiles, others, tiles)

    def call(*args: Any, **static: Any) -> tuple[jax.Array, ...]:
        same = _compat.vary_alike(*args)
        # The rule of vmap is needed over explicit axes: JAX has none for many operations inside.
        rule = tpu is not None or _native.unavailable() is None or _compat.is_on_explicit_mesh(same)
        if not rule:
            return portable(*same, **static)
        return tuple(primitive.bind(*same, axes=(), static=tuple(sorted(static.items()))))

    return call


def library_call(name: str, results: Any, *arrays: jax.Array, **attributes: Any) -> Any:
    """Call a function of the library. Under ``vmap`` the calls run one after the other."""
    target = name if _compat.exports_native_calls() else _native.target(name)
    call = jax.ffi.ffi_call(target, results, vmap_method="sequential")
    return call(*arrays, **attributes)
