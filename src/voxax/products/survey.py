"""Finding the products that a function computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from voxax import _compat
from voxax.algorithms import Problem, Product
from voxax.errors import InputError
from voxax.geometry.plan import pure_call
from voxax.products.layer import Layer, problem_of
from voxax.products.primitives import PARTS
from voxax.tuning import Resolved, unmeasured


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One product in a function.

    Attributes:
      scope: the ``jax.named_scope`` path it was traced under.
      problem: what it computes.
      admitted: the algorithms that its request admits.
      layer: the layer it belongs to.
      views: the arrays of the map that it runs on, by name; None where they were not computed.
    """

    scope: str
    problem: Problem
    admitted: Resolved
    layer: Layer
    views: Mapping[str, jax.Array] | None = None


def is_concrete(fn: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether all arguments, and the parameters of a module, have values."""
    leaves = jax.tree.leaves((args, pure_call(fn)[1]))
    shapes = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    return not shapes and not _compat.is_traced(leaves)


def survey(
    fn: Callable[..., Any], arguments: tuple[Any, ...], platform: str, *, maps: bool = False
) -> list[Call]:
    """The products of ``fn(*arguments)`` in the order of the program.

    Args:
      fn: any traceable function.
      arguments: its arguments, or ``jax.ShapeDtypeStruct``s in their place.
      platform: that the products are to run on.
      maps: compute the maps of all products outside of loops, in one program; arguments must be
        concrete. Of the function only that is computed which the maps depend on. Without maps,
        nothing is computed.

    Raises:
      InputError: there is no product.
    """
    call_fn, state = pure_call(fn)
    leaves, tree = jax.tree.flatten((state, *arguments))

    def flat(*values: Any) -> list[Any]:
        return jax.tree.leaves(call_fn(*jax.tree.unflatten(tree, values)))

    with _compat.fresh_trace():
        closed = jax.make_jaxpr(flat)(*leaves)
    found = _compat.applications(closed, tuple(PARTS))
    if not found:
        raise InputError(
            f"{getattr(fn, '__name__', fn)} computes no sparse convolution with these arguments: "
            "there is nothing to tune or to explain"
        )
    views = _views(closed, leaves) if maps else {}
    return [
        _call(product, operands, equation, scope, platform, views.get(place))
        for equation, scope, place in found
        for product, *operands in PARTS[equation.primitive]
    ]


def _views(closed: Any, leaves: list[Any]) -> dict[_compat.Place, list[jax.Array]]:
    """The arrays of the maps, in the order of the layers' view names, by the product's place."""
    indices: dict[_compat.Place, list[int]] = {}

    def maps(*values: Any) -> list[Any]:
        indices.clear()
        # Each map once: jit would return a copy for every product that reads it.
        places: dict[int, int] = {}
        distinct: list[Any] = []
        for equation, operands, place in _compat.watch(closed, values, *PARTS):
            views = operands[len(operands) - len(equation.params["layer"].view_names) :]
            for view in views:
                if id(view) not in places:
                    places[id(view)] = len(distinct)
                    distinct.append(view)
            indices[place] = [places[id(view)] for view in views]
        return distinct

    # Where a convolution decides about a map, any choice will do; nothing is to be measured.
    with unmeasured():
        arrays = _compat.only_results(maps)(*leaves)
    return {place: [arrays[i] for i in own] for place, own in indices.items()}


def _call(
    product: Product,
    operands: list[int],
    equation: Any,
    scope: str,
    platform: str,
    views: list[jax.Array] | None,
) -> Call:
    layer: Layer = equation.params["layer"]
    a, b = (equation.invars[i].aval for i in operands)
    problem = problem_of(product, platform, a, b, layer)
    named = None if views is None else dict(zip(layer.view_names, views, strict=True))
    return Call(scope, problem, dict(layer.requests)[product], layer, named)
