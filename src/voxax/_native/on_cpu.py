"""JAX functions that run in the native library on CPUs, and as ordinary JAX elsewhere."""

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
    gpu: Body | None = None,
    eager: HostBody | None = None,
) -> Body:
    """Return a function that runs ``native`` on CPUs with the library, ``portable`` elsewhere.

    On TPUs it runs ``tpu`` if given, except in programs that XLA partitions over devices, because
    XLA does not partition Pallas kernels. On GPUs it runs ``gpu`` if given. ``tpu`` and ``gpu`` are
    traced only for their platform.

    Programs of ``jax.export`` contain the portable implementation for CPUs too, since they may run
    where voxax is not installed; :func:`voxax.export.export_program` can write programs that call
    the library. The function is not differentiable.

    Args:
      name: name of the primitive, as it appears in a jaxpr.
      native, portable, tpu, gpu: functions of ``(*arrays, **static)`` in ordinary JAX that return
        tuples of arrays, of the same shapes and dtypes; the values in ``static`` are hashable.
        Under ``vmap`` the function that runs is mapped.
      eager: a function of ``(*arrays, **static)`` for NumPy arrays, with results bitwise equal to
        ``native``, so that eager calls on a CPU compile nothing; None if there is none.
    """

    def run(platform: str, *args: Any, axes: tuple, static: tuple) -> Any:
        body = portable
        if platform == "cpu" and _native.unavailable() is None:
            body = native
        elif platform == "tpu" and tpu is not None:
            body = tpu
        elif platform == "gpu" and gpu is not None:
            body = gpu
        function = functools.partial(body, **dict(static))
        for in_axes in axes:
            function = jax.vmap(function, in_axes=in_axes)
        return function(*args)

    def shapes(*avals: Any, **params: Any) -> Any:
        operands = (jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
        # The native body is one call, the portable one may be hundreds of operations to trace.
        return jax.eval_shape(functools.partial(run, "cpu", **params), *operands)

    def at_once(*args: Any, axes: tuple, static: tuple) -> Any:
        if eager is None or axes or _native.unavailable() is not None:
            return None
        return eager(*args, **dict(static))

    def batch(args: Any, dims: Any, *, axes: tuple, static: tuple) -> tuple[Any, tuple]:
        outs = primitive.bind(*args, axes=(*axes, tuple(dims)), static=static)
        return outs, (0,) * len(outs)

    primitive = _compat.staged_primitive(
        name, run, shapes, many=True,
        eager=None if eager is None else on_host(at_once),
        platforms=("cpu", *("tpu",) * (tpu is not None), *("gpu",) * (gpu is not None)),
    )  # fmt: skip
    _compat.set_batch_rule(primitive, batch)

    def call(*args: Any, **static: Any) -> tuple[jax.Array, ...]:
        same = _compat.vary_alike(*args)
        # Over explicit axes the primitive's rule of vmap is needed: JAX lacks rules for many
        # operations of the body.
        ways = (tpu, gpu) != (None, None) or _native.unavailable() is None
        if not (ways or _compat.is_on_explicit_mesh(same)):
            return portable(*same, **static)
        return tuple(primitive.bind(*same, axes=(), static=tuple(sorted(static.items()))))

    return call


def library_call(
    name: str,
    results: Any,
    *arrays: jax.Array,
    aliases: dict[int, int] | None = None,
    **attributes: Any,
) -> Any:
    """Call a native function in a JAX program, and return its results.

    Under ``vmap``, the calls for the elements of the batch run one after another.

    Args:
      name: name of the function, a key of ``voxax._native.CALLS``.
      results: shape and dtype of each result.
      arrays: the operands.
      aliases: maps the index of an operand to the index of the result that may reuse its memory.
      attributes: static attributes of the call.
    """
    target = name if _compat.exports_native_calls() else _native.target(name)
    call = jax.ffi.ffi_call(target, results, vmap_method="sequential", input_output_aliases=aliases)
    return call(*arrays, **attributes)
