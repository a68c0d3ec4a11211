"""Primitives with the rules of bilinear maps, and of sums and tuples of other primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from voxax import _compat


def bilinear_primitive(
    name: str,
    implementation: Callable[..., jax.Array],
    output_shape: Callable[..., jax.ShapeDtypeStruct],
    transpose: Callable[..., list],
    batch: Callable[..., tuple[jax.Array, int]],
    join_tangents: Callable[..., jax.Array | None] | None = None,
) -> Any:
    """A primitive that is bilinear in its first two operands.

    Args:
      name: the primitive's name, as it appears in a jaxpr.
      implementation: ``(platform, a, b, *views, **params) -> Array``, see
        :func:`voxax._compat.staged_primitive`.
      output_shape: the same signature on shapes, without the platform.
      transpose: ``(cotangent, a, b, *views, **params) -> [ct_a, ct_b, None, ...]``.
      batch: ``(args, dims, **params) -> (out, out_dim)``.
      join_tangents: ``(a, ta, b, tb, *views, **params)`` to the JVP where both operands have
        tangents; where it is or gives None, the JVP is the primitive itself, once per operand
        (product rule).
    """

    def jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        a, b, *views = primals
        ta, tb, *_ = tangents
        out = primitive.bind(a, b, *views, **params)
        moves_a, moves_b = (not isinstance(t, _compat.Zero) for t in (ta, tb))
        if not moves_a and not moves_b:
            return out, _compat.no_tangent(out)
        if join_tangents is not None and moves_a and moves_b:
            joined = join_tangents(a, ta, b, tb, *views, **params)
            if joined is not None:
                return out, joined
        terms = [primitive.bind(ta, b, *views, **params)] if moves_a else []
        terms += [primitive.bind(a, tb, *views, **params)] if moves_b else []
        return out, functools.reduce(_compat.add_tangents, terms)

    primitive = _compat.staged_primitive(name, implementation, output_shape, many=False)
    _compat.set_rules(primitive, jvp, transpose, batch)
    return primitive


def composed_primitive(
    name: str,
    implementation: Callable[..., Any],
    output_shapes: Callable[..., Any],
    spelled_out: Callable[..., Any],
    transpose: Callable[..., list],
    *,
    many: bool = False,
) -> Any:
    """A primitive that others can say: JVP and batching are those of what they say.

    Args:
      name, implementation: as for :func:`bilinear_primitive`; one array or a tuple of them.
      output_shapes: ``(*shapes, **params)`` to a ``ShapeDtypeStruct`` or a tuple of them.
      spelled_out: ``(*operands, **params)``, the same by other primitives.
      transpose: ``(cotangents, *operands, **params)`` to one cotangent or None per operand.
      many: it computes a tuple.
    """

    def jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        moving = [i for i, t in enumerate(tangents) if not isinstance(t, _compat.Zero)]

        def along(*some: Any) -> Any:
            operands = list(primals)
            for i, value in zip(moving, some, strict=True):
                operands[i] = value
            return spelled_out(*operands, **params)

        of, to = [primals[i] for i in moving], [tangents[i] for i in moving]
        return primitive.bind(*primals, **params), jax.jvp(along, of, to)[1]

    def batch(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
        out = jax.vmap(functools.partial(spelled_out, **params), tuple(dims))(*args)
        return out, (0,) * len(out) if many else 0

    primitive = _compat.staged_primitive(name, implementation, output_shapes, many=many)
    _compat.set_rules(primitive, jvp, transpose, batch)
    return primitive
