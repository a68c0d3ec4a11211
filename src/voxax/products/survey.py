"""Finding the products that a function computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from voxax import _compat
from voxax.algorithms import Problem, Product
from voxax.errors import InputError
from voxax.geometry.functional import functional
from voxax.products.primitives import Layer, dgrad_p, forward_p, problem_of, wgrad_p
from voxax.tuning import Resolved, unmeasured

_PRODUCTS: dict[Any, Product] = {forward_p: "forward", dgrad_p: "dgrad", wgrad_p: "wgrad"}


@dataclasses.dataclass(frozen=True)
class Call:
    """One product in a function.

    Attributes:
      scope: the ``jax.named_scope`` path it was traced under.
      problem: what it computes.
      admitted: the algorithms that its request admits.
      layer: the layer it belongs to.
    """

    scope: str
    problem: Problem
    admitted: Resolved
    layer: Layer


def survey(fn: Callable[..., Any], arguments: tuple[Any, ...], platform: str) -> list[Call]:
    """The products of ``fn(*arguments)`` in the order of the program; nothing is computed.

    Raises:
      InputError: there is none.
    """
    call, state = functional(fn)
    with _compat.fresh_trace():
        closed = jax.make_jaxpr(call)(state, *arguments)
    calls = [
        _call(equation, scope, platform)
        for equation, scope in _compat.applications(closed, tuple(_PRODUCTS))
    ]
    if not calls:
        raise InputError(
            f"{getattr(fn, '__name__', fn)} computes no sparse convolution with these arguments: "
            "there is nothing to tune or to explain"
        )
    return calls


def real_maps(
    fn: Callable[..., Any], arguments: tuple[Any, ...], platform: str
) -> list[tuple[Call, dict[str, jax.Array]]]:
    """The products outside of loops, each with the arrays of the map that it runs on.

    Only the maps are computed, in one program: convolutions whose results decide about no map
    are dropped by the compiler.
    """
    call_fn, state = functional(fn)
    leaves, tree = jax.tree.flatten((state, *arguments))
    found: list[tuple[Call, list[int]]] = []

    def flat(*values: Any) -> list[Any]:
        return jax.tree.leaves(call_fn(*jax.tree.unflatten(tree, values)))

    with _compat.fresh_trace():
        closed = jax.make_jaxpr(flat)(*leaves)

    def maps(*values: Any) -> list[Any]:
        found.clear()
        # Each map once: jit would return a copy for every product that reads it.
        places: dict[int, int] = {}
        distinct: list[Any] = []
        for equation, (_, _, *views) in _compat.watch(closed, values, *_PRODUCTS):
            for view in views:
                if id(view) not in places:
                    places[id(view)] = len(distinct)
                    distinct.append(view)
            call = _call(equation, _compat.scope_of(equation), platform)
            found.append((call, [places[id(view)] for view in views]))
        return distinct

    # Any choice will do for what is dropped; nothing is to be measured on its account.
    with unmeasured():
        arrays = jax.jit(maps)(*leaves)
    return [
        (call, dict(zip(call.layer.view_names, (arrays[i] for i in indices), strict=True)))
        for call, indices in found
    ]


def _call(equation: Any, scope: str, platform: str) -> Call:
    product = _PRODUCTS[equation.primitive]
    layer: Layer = equation.params["layer"]
    a, b, *_ = (variable.aval for variable in equation.invars)
    problem = problem_of(product, platform, a, b, layer)
    return Call(scope, problem, dict(layer.requests)[product], layer)
