"""``where`` whose gradient is NaN though its value is finite.

``jnp.where(x > 0, jnp.sqrt(x), 0.0)`` has the value 0 at ``x = 0`` and the gradient ``0 * inf``.
Each ``where`` of a program is tried: the elementwise operations before it are evaluated and
differentiated at a few values of what enters them, zero among them. A finding is a value for which
the result is finite and the derivative is NaN, so it is proven and not guessed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat, _compat_tracing
from voxax.check.finding import Finding
from voxax.check.modules import module_of_scope
from voxax.check.source import Place, place_of

_PROBES = (0.0, 1.0, -1.0, 0.5)
# Inputs of one expression that are tried together, and operations in it.
_MOST_INPUTS = 3
_MOST_OPERATIONS = 64

# Their slope is infinite or NaN somewhere: only expressions with one of them are tried.
_SINGULAR = {
    "sqrt", "rsqrt", "cbrt", "log", "log1p", "div", "pow", "integer_pow", "acos", "asin", "atanh",
    "acosh", "atan2",
}  # fmt: skip
_ELEMENTWISE = _SINGULAR | {
    "add", "sub", "mul", "neg", "abs", "sign", "max", "min", "exp", "expm1", "tanh", "sin", "cos",
    "tan", "logistic", "square", "select_n", "clamp", "eq", "ne", "lt", "le", "gt", "ge", "and",
    "or", "not", "is_finite", "convert_element_type", "stop_gradient", "floor", "ceil", "round",
    "erf", "sinh", "cosh", "asinh", "atan", "copy", "add_any",
}  # fmt: skip
# They do not change values, and single values have no shape to change.
_RESHAPES = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy"}


def unsafe(closed: Any, own: str | None) -> list[Finding]:
    """A finding for each ``where`` with a finite value and a NaN gradient."""
    found = []
    for equation, producers, scope, where in _selections(closed.jaxpr, {}, "", None, own):
        inputs, steps = _expression(equation, producers)
        if not _worth_trying(inputs, steps):
            continue
        bad = _counterexample(equation, inputs, steps)
        if bad is None:
            continue
        if where is None:
            continue
        found.append(
            Finding(
                "VX307",
                where.site,
                f"the value is finite and its gradient is NaN where an operand is {bad:g}",
                fix="make the operand safe first: jnp.where(ok, f(jnp.where(ok, x, 1.0)), 0.0)",
                module=module_of_scope(scope),
                callers=where.callers,
            )
        )
    return found


def _selections(
    jaxpr: Any, outer: dict[Any, Any], scope: str, call: Place | None, own: str | None
) -> Iterator[tuple[Any, dict[Any, Any], str, Place | None]]:
    """Each ``select_n``, with what makes every variable; calls of ``where`` are entered."""
    producers = dict(outer)
    for equation in jaxpr.eqns:
        where = place_of(equation, call, own)
        inner_scope = "/".join(p for p in (scope, _compat.scope_of(equation)) if p)
        for variable in equation.outvars:
            producers[variable] = equation
        if equation.primitive.name == "select_n":
            yield equation, producers, inner_scope, where
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                body = getattr(item, "jaxpr", item)
                if not hasattr(body, "eqns"):
                    continue
                inner: dict[Any, Any] = {}
                if len(body.invars) == len(equation.invars):  # a call: its inputs are known
                    inner = dict(producers)
                    for variable, operand in zip(body.invars, equation.invars, strict=True):
                        inner[variable] = operand
                yield from _selections(body, inner, inner_scope, where, own)


def _resolve(variable: Any, producers: dict[Any, Any]) -> Any:
    """Follow inputs of called functions to what was given."""
    while not hasattr(variable, "val"):
        made = producers.get(variable)
        if made is None or hasattr(made, "primitive"):
            return variable
        variable = made
    return variable


def _expression(equation: Any, producers: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """The elementwise operations before a ``where``: their inputs, and themselves in order."""
    inputs: dict[Any, None] = {}
    steps: list[Any] = []
    done: set[Any] = set()

    def visit(variable: Any, depth: int) -> None:
        variable = _resolve(variable, producers)
        if hasattr(variable, "val") or variable in done:
            return
        done.add(variable)
        made = producers.get(variable)
        name = made.primitive.name if made is not None else ""
        if (
            made is None
            or depth > _MOST_OPERATIONS
            or len(steps) > _MOST_OPERATIONS
            or name not in _ELEMENTWISE | _RESHAPES
        ):
            inputs[variable] = None
            return
        for operand in made.invars:
            visit(operand, depth + 1)
        steps.append((made, variable, [_resolve(v, producers) for v in made.invars]))

    for operand in equation.invars:
        visit(operand, 0)
    own = (equation, equation.outvars[0], [_resolve(v, producers) for v in equation.invars])
    return list(inputs), [*steps, own]


def _worth_trying(inputs: Sequence[Any], steps: Sequence[Any]) -> bool:
    if not inputs or len(inputs) > _MOST_INPUTS:
        return False
    floats = any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in inputs)
    return floats and any(made.primitive.name in _SINGULAR for made, _, _ in steps)


def _counterexample(equation: Any, inputs: Sequence[Any], steps: Sequence[Any]) -> float | None:
    """A value of one input that makes the gradient NaN and not the result."""

    def evaluate(values: Sequence[Any]) -> Any:
        known = dict(zip(inputs, values, strict=True))

        def read(operand: Any) -> Any:
            if not hasattr(operand, "val"):
                return known[operand]
            array = np.asarray(operand.val, operand.aval.dtype)  # a literal may be a Python number
            return jnp.asarray(array.reshape(-1)[0]) if array.size else array

        for made, variable, operands in steps:
            given = [read(v) for v in operands]
            if made.primitive.name in _RESHAPES:
                known[variable] = given[0]
            else:
                known[variable] = made.primitive.bind(*given, **_scalar(made))
        return known[equation.outvars[0]]

    differentiable = [i for i, v in enumerate(inputs) if jnp.issubdtype(v.aval.dtype, jnp.floating)]
    if not jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
        return None
    try:
        with _compat_tracing.outside():
            for probe in itertools.product(*(_probes(v) for v in inputs)):
                bad = _tried(evaluate, probe, differentiable)
                if bad is not None:
                    return bad
    except (TypeError, ValueError, NotImplementedError, KeyError, IndexError):
        return None  # an operation that is not one of single values after all
    return None


def _tried(evaluate: Any, probe: Sequence[Any], differentiable: Sequence[int]) -> float | None:
    if not math.isfinite(float(evaluate(probe))):
        return None
    for i in differentiable:

        def alone(value: Any, i: int = i) -> Any:
            return evaluate([*probe[:i], value, *probe[i + 1 :]])

        if math.isnan(float(jax.grad(alone)(probe[i]))):
            return float(probe[i])
    return None


def _probes(variable: Any) -> list[Any]:
    dtype = variable.aval.dtype
    if jnp.issubdtype(dtype, jnp.bool_):
        return [jnp.asarray(False), jnp.asarray(True)]
    return [jnp.asarray(value, dtype) for value in _PROBES]


def _scalar(equation: Any) -> dict[str, Any]:
    params = dict(equation.params)
    if "sharding" in params:
        params["sharding"] = None
    return params
