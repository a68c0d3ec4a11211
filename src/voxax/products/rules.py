"""Primitives with the rules of bilinear maps, and of sums and tuples of other primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
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
        if join_tangents is not None and moves_a and moves_b:
            joined = join_tangents(a, ta, b, tb, *views, **params)
            if joined is not None:
                return out, joined
        terms = [primitive.bind(ta, b, *views, **params)] if moves_a else []
        terms += [primitive.bind(a, tb, *views, **params)] if moves_b else []
        return out, _sum_of(terms, out)

    primitive = _compat.staged_primitive(name, implementation, output_shape, many=False)
    _compat.set_rules(primitive, jvp, transpose, batch)
    return primitive


def composed_primitive(
    name: str,
    implementation: Callable[..., Any],
    output_shapes: Callable[..., Any],
    parts: Sequence[tuple[Any, int, int]],
    transpose: Callable[..., list],
    *,
    many: bool,
) -> Any:
    """A primitive that other primitives can say: their results, or the sum of them.

    The JVP and the batching are those of what the others say. In a program that needs one result of
    several it is that primitive alone.

    Args:
      name, implementation: as for :func:`bilinear_primitive`; a tuple of arrays, or one.
      output_shapes: ``(*shapes, **params)`` to a tuple of ``ShapeDtypeStruct``, or to one.
      parts: of each the bilinear primitive, and which operands are its two. What follows the last
        of those goes to all.
      transpose: ``(cotangents, *operands, **params)`` to one cotangent or None per operand.
      many: the result is the tuple of the parts; else it is their sum.
    """
    first_view = 1 + max(place for _, *places in parts for place in places)

    def spelled_out(*args: Any, **params: Any) -> Any:
        views = args[first_view:]
        results = [part.bind(args[i], args[j], *views, **params) for part, i, j in parts]
        return tuple(results) if many else functools.reduce(_compat.add_tangents, results)

    def jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        out, views = primitive.bind(*primals, **params), primals[first_view:]
        moves = [not isinstance(t, _compat.Zero) for t in tangents]
        terms: list[list[Any]] = []
        for part, i, j in parts:
            terms.append([])
            if moves[i]:
                terms[-1].append(part.bind(tangents[i], primals[j], *views, **params))
            if moves[j]:
                terms[-1].append(part.bind(primals[i], tangents[j], *views, **params))
        if many:
            return out, [_sum_of(*pair) for pair in zip(terms, out, strict=True)]
        return out, _sum_of([term for own in terms for term in own], out)

    def batch(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
        out = jax.vmap(functools.partial(spelled_out, **params), tuple(dims))(*args)
        return out, (0,) * len(out) if many else 0

    def drop_unused(used: Sequence[bool], equation: Any) -> tuple[list[bool], Any]:
        operands = equation.invars
        if sum(used) != 1:
            return [any(used)] * len(operands), equation if any(used) else None
        output = list(used).index(True)
        part, *own = parts[output]
        kept = (*own, *range(first_view, len(operands)))
        alone = equation.replace(
            primitive=part,
            invars=[operands[i] for i in kept],
            outvars=[equation.outvars[output]],
        )
        return [i in kept for i in range(len(operands))], alone

    primitive = _compat.staged_primitive(name, implementation, output_shapes, many=many)
    _compat.set_rules(primitive, jvp, transpose, batch)
    if many:
        _compat.set_dce_rule(primitive, drop_unused)
    return primitive


def _sum_of(terms: list[Any], like: Any) -> Any:
    return functools.reduce(_compat.add_tangents, terms) if terms else _compat.no_tangent(like)
