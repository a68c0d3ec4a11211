"""Functions with a native implementation on CPUs, and with derivatives of any order.

The native library computes the value and the gradients of reverse mode. Forward mode, derivatives
of gradients and ``vmap`` are ordinary JAX on a portable implementation. Each function therefore has
three JAX primitives. The first computes the value. The second computes its tangent, which is linear
in the tangents of the arguments. The third computes the gradients, the transpose of the tangent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from voxax import _compat, _native
from voxax._native.eager import HostBody, on_host

Body = Callable[..., tuple[jax.Array, ...]]


def differentiable_on_cpu(
    name: str,
    native: Body,
    portable: Body,
    gradients: Body,
    *,
    eager: HostBody,
    eager_gradients: HostBody,
    shapes: Callable[..., Sequence[Any]] | None = None,
    gradients_on_tpu: Callable[..., tuple[jax.Array, ...] | None] | None = None,
) -> Body:
    """Return a function that runs ``native`` on CPUs with the library, ``portable`` elsewhere.

    The returned function can be differentiated in its first result only. Programs of ``jax.export``
    contain the portable implementation.

    Args:
      name: name of the primitive, as it appears in a jaxpr.
      native, portable: functions of ``(*arrays, **static)`` in ordinary JAX that return tuples of
        arrays, of the same shapes and dtypes; the values in ``static`` are hashable.
      gradients: a function of ``(cotangent, *arrays, *results, moves=, **static)``. ``moves`` has
        the positions of the arguments to differentiate. The function returns one cotangent for each
        position, or None to take the derivative of ``portable``.
      eager, eager_gradients: versions of ``native`` and ``gradients`` for NumPy arrays, with
        bitwise equal results. With them, eager calls on a CPU compile nothing.
      shapes: a function of ``(*arrays, **static)`` that returns a ``ShapeDtypeStruct`` for each
        result, and only reads shapes and dtypes of the arrays. None traces ``native`` or
        ``portable`` for them.
      gradients_on_tpu: ``gradients`` for TPUs in ordinary JAX, with fewer passes over the arrays
        than the derivative of ``portable``. None takes that derivative on TPUs too.
    """

    def first(arrays: Sequence[Any], moves: tuple[int, ...], static: tuple) -> Any:
        """Return ``(f, values)``, where ``f(*values)`` is the first result of ``portable``.

        ``values`` are the arrays to differentiate, at the positions `moves` of `arrays`. `f` has
        the other arrays and the arguments `static`, pairs of name and value, as constants.
        """

        def function(*moved: Any) -> jax.Array:
            return portable(*_replaced(arrays, moves, moved), **dict(static))[0]

        return function, [arrays[i] for i in moves]

    def pushed(*arrays: Any, size: int, moves: tuple[int, ...], static: tuple) -> Any:
        function, at = first(arrays[:size], moves, static)
        return (jax.jvp(function, at, list(arrays[len(arrays) - len(moves) :]))[1],)

    def pulled(ct: Any, *arrays: Any, size: int, moves: tuple[int, ...], static: tuple) -> Any:
        function, at = first(arrays[:size], moves, static)
        return jax.vjp(function, *at)[1](ct)

    def pulled_by(own: Callable[..., tuple[jax.Array, ...] | None]) -> Body:
        def function(*arrays: Any, size: int, moves: tuple[int, ...], static: tuple) -> Any:
            found = own(*arrays, moves=moves, **dict(static))
            if found is None:
                return pulled(*arrays, size=size, moves=moves, static=static)
            return found

        return function

    def plain(*arrays: Any, static: tuple) -> Any:
        made, *others = portable(*arrays, **dict(static))
        return made, *map(jax.lax.stop_gradient, others)

    def fast(*arrays: Any, static: tuple) -> Any:
        return native(*arrays, **dict(static))

    def fast_on_host(*arrays: Any, static: tuple) -> Any:
        return eager(*arrays, **dict(static))

    def pulled_on_host(*arrays: Any, size: int, moves: tuple[int, ...], static: tuple) -> Any:
        return eager_gradients(*arrays, moves=moves, **dict(static))

    def of_value(*avals: Any, static: tuple) -> Any:
        if shapes is not None:
            return shapes(*avals, **dict(static))
        body = native if _native.unavailable() is None else portable
        operands = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        return jax.eval_shape(functools.partial(body, **dict(static)), *operands)

    # Shapes are given here, because JAX would otherwise trace the portable implementation in each
    # equation of a derivative.
    def of_tangent(*avals: Any, size: int, **params: Any) -> Any:
        return (avals[size],)

    def of_gradients(ct: Any, *avals: Any, moves: tuple[int, ...], **params: Any) -> Any:
        return [avals[i] for i in moves]

    value = _primitive(name, of_value, fast, plain, fast_on_host)
    tangent = _primitive(f"{name}_tangent", of_tangent, pushed, pushed)
    on_tpu = None if gradients_on_tpu is None else pulled_by(gradients_on_tpu)
    bodies = pulled_by(gradients), pulled, pulled_on_host, on_tpu
    gradient = _primitive(f"{name}_gradients", of_gradients, *bodies)

    def jvp(primals: Any, tangents: Any, *, static: tuple) -> tuple[Any, Any]:
        outs = value.bind(*primals, static=static)
        moves = tuple(i for i, t in enumerate(tangents) if not isinstance(t, _compat.Zero))
        rest = [_compat.no_tangent(out) for out in outs]
        if moves:
            sizes = {"size": len(primals), "moves": moves, "static": static}
            moved = [tangents[i] for i in moves]
            (rest[0],) = tangent.bind(*primals, *outs, *moved, **sizes)
        return outs, rest

    def transpose(cts: Any, *args: Any, size: int, moves: tuple[int, ...], static: tuple) -> Any:
        given = args[: len(args) - len(moves)]
        linear = [_compat.is_undefined_primal(arg) for arg in args[len(given) :]]
        result: list[Any] = [None] * len(args)
        if isinstance(cts[0], _compat.Zero):
            return result
        asked = tuple(i for i, unknown in zip(moves, linear, strict=True) if unknown)
        found = iter(gradient.bind(cts[0], *given, size=size, moves=asked, static=static))
        for place, unknown in enumerate(linear, len(given)):
            result[place] = next(found) if unknown else None
        return result

    _compat.set_rules(value, jvp, None, _batched(plain))
    _compat.set_rules(tangent, _pushed_through(tangent, pushed), transpose, _batched(pushed))
    _compat.set_rules(gradient, _pushed_through(gradient, pulled), None, _batched(pulled))

    def call(*args: Any, **static: Any) -> tuple[jax.Array, ...]:
        same, options = _compat.vary_alike(*args), tuple(sorted(static.items()))
        if _native.unavailable() is not None or _compat.is_on_explicit_mesh(same):
            return plain(*same, static=options)
        return tuple(value.bind(*same, static=options))

    return call


def _replaced(values: Sequence[Any], places: Sequence[int], new: Sequence[Any]) -> list[Any]:
    result = list(values)
    for place, value in zip(places, new, strict=True):
        result[place] = value
    return result


def _primitive(
    name: str,
    shapes: Callable[..., Any],
    native: Body,
    portable: Body,
    eager: HostBody | None = None,
    on_tpu: Body | None = None,
) -> Any:
    """Create a JAX primitive called ``name``, with several results.

    ``native``, ``portable`` and ``on_tpu`` compute the same results. The primitive runs ``native``
    on CPUs if the native library is available, ``on_tpu`` on TPUs if given, and otherwise
    ``portable``. With the library, ``eager`` computes the results of arrays that have values, see
    :func:`on_host`. ``shapes`` takes abstract values of the arguments, and returns one abstract
    value for each result.
    """

    def run(platform: str, *args: Any, **params: Any) -> Any:
        ways: dict[str, Body] = {} if on_tpu is None else {"tpu": on_tpu}
        if _native.unavailable() is None:
            ways["cpu"] = native
        return ways.get(platform, portable)(*args, **params)

    def at_once(*args: Any, **params: Any) -> Any:
        if eager is None or _native.unavailable() is not None:
            return None
        return eager(*args, **params)

    return _compat.staged_primitive(
        name, run, shapes, many=True,
        eager=None if eager is None else on_host(at_once),
        platforms=("cpu",) if on_tpu is None else ("cpu", "tpu"),
    )  # fmt: skip


def _pushed_through(primitive: Any, body: Body) -> Callable[..., Any]:
    """Return a JVP rule for ``primitive``, for :func:`voxax._compat.set_rules`.

    The tangents are JAX's derivatives of ``body``, a function with the results of the primitive.
    """

    def jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        moves = [i for i, t in enumerate(tangents) if not isinstance(t, _compat.Zero)]

        def function(*moved: Any) -> tuple[Any, ...]:
            return tuple(body(*_replaced(primals, moves, moved), **params))

        at, along = ([values[i] for i in moves] for values in (primals, tangents))
        return primitive.bind(*primals, **params), list(jax.jvp(function, at, along)[1])

    return jvp


def _batched(body: Body) -> Callable[..., Any]:
    def batch(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
        outs = jax.vmap(functools.partial(body, **params), tuple(dims))(*args)
        return outs, (0,) * len(outs)

    return batch
