"""``where`` whose gradient is NaN though its value is finite.

``jnp.where(x > 0, jnp.sqrt(x), 0.0)`` has the value 0 at ``x = 0`` and the gradient ``0 * inf``.
Each ``where`` of a program is tried: the elementwise operations before it are evaluated and
differentiated at a few values of what enters them, zero among them unless that is known to be
positive. A finding is a combination of values for which the result is finite and the derivative is
NaN. Values that never meet in the program may be tried together: it is evidence, and no proof.
Functions with a derivative of their own (``custom_jvp``, ``custom_vjp``) are taken as they are:
what is inside of them is not differentiated.

What the operations that made a value say about its sign.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.check.findings import Finding
from voxax.check.source import Place, place_of
from voxax.check.subject import module_of_scope


class Sign(enum.IntEnum):
    """From the least that is known to the most."""

    ANY = 0
    NOT_NEGATIVE = 1
    POSITIVE = 2


# Operations followed backwards from a value.
_DEPTH = 40

_POSITIVE = {"exp", "exp2", "logistic", "cosh", "rsqrt"}
_NOT_NEGATIVE = {"abs", "square", "sqrt", "iota", "argmax", "argmin", "population_count", "clz"}
# They move, choose or convert values of their first operand.
_SAME = {
    "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy", "transpose", "rev", "slice",
    "dynamic_slice", "convert_element_type", "stop_gradient", "reduce_sum", "reduce_max",
    "reduce_min", "reduce_prod", "cumsum", "cummax", "cummin", "cumprod", "psum",
    "pmax", "pmin", "all_gather", "reduce_precision", "optimization_barrier", "name", "sign",
}  # fmt: skip
# As much as is known of all their operands.
_LEAST = {"add_any", "mul", "div", "min", "concatenate", "pad", "dot_general"}


def sign(value: Any) -> Sign:
    """The sign of a value of the program; ``ANY`` where nothing is known."""
    return _sign(value, _DEPTH, {})


def _sign(value: Any, depth: int, known: dict[int, Sign]) -> Sign:
    # Each value once: followed along every path, a chain of `x = x * x + x` takes 2**depth steps.
    if id(value) not in known:
        known[id(value)] = _find(value, depth, known)
    return known[id(value)]


def _find(value: Any, depth: int, known: dict[int, Sign]) -> Sign:
    if jnp.issubdtype(value.aval.dtype, jnp.bool_):
        return Sign.NOT_NEGATIVE
    if jnp.issubdtype(value.aval.dtype, jnp.unsignedinteger):
        return Sign.NOT_NEGATIVE
    if value.literal is not None:
        return _sign_of_constant(value.literal)
    if depth == 0:
        return Sign.ANY
    if value.inside is not None:
        return _sign(value.inside, depth - 1, known)
    return Sign.ANY if value.made is None else _sign_of_result(value.made, depth - 1, known)


def _sign_of_constant(literal: Any) -> Sign:
    least = np.min(np.asarray(literal), initial=np.inf)
    if not least >= 0:  # NaN too
        return Sign.ANY
    return Sign.POSITIVE if least > 0 else Sign.NOT_NEGATIVE


def _sign_of_result(made: Any, depth: int, known: dict[int, Sign]) -> Sign:
    name, params, inputs = made.name, made.equation.params, made.inputs

    def of(i: int) -> Sign:
        return _sign(inputs[i], depth, known)

    if name in _POSITIVE:
        return Sign.POSITIVE
    if name in _NOT_NEGATIVE:
        return Sign.NOT_NEGATIVE
    if name == "convert_element_type" and not jnp.issubdtype(params["new_dtype"], jnp.inexact):
        return min(of(0), Sign.NOT_NEGATIVE)  # 0.5 becomes 0
    if name in _SAME:
        return of(0)
    if name == "mul" and inputs[0] is inputs[1]:
        return Sign.NOT_NEGATIVE
    if name == "integer_pow":
        even = params["y"] % 2 == 0
        return max(of(0), Sign.NOT_NEGATIVE) if even else of(0)
    if name == "pow":
        return of(0)
    if name == "add":
        return max(of(0), of(1)) if min(of(0), of(1)) > Sign.ANY else Sign.ANY
    if name == "max":
        return max(of(0), of(1))
    if name in _LEAST:
        return min(of(i) for i in range(len(inputs)))
    if name == "clamp":  # the least of what is allowed, the value, the most
        return min(max(of(0), of(1)), of(2))
    if name == "select_n":
        return min(of(i) for i in range(1, len(inputs)))
    if name in ("gather", "dynamic_update_slice"):
        # Rows out of range may be filled with zeros.
        return min(of(0), Sign.NOT_NEGATIVE) if name == "gather" else min(of(0), of(1))
    if name in ("scatter", "scatter-add", "scatter_add", "scatter-max", "scatter-min"):
        return min(of(0), of(2))
    return Sign.ANY


_PROBES = (0.0, 1.0, -1.0, 0.5)
_ALLOWED = {
    Sign.ANY: _PROBES,
    Sign.NOT_NEGATIVE: (0.0, 1.0, 0.5),
    Sign.POSITIVE: (1.0, 0.5),
}
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


# Calls whose body is what they compute.
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint"}
# Calls that are differentiated by a rule of their own.
_RULES = {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}


@dataclasses.dataclass(eq=False)
class _Value:
    """A value of the program, with calls followed: what made it, or the constant that it is."""

    aval: Any
    made: _Operation | None = None
    literal: Any = None
    # The same value as the body of a call with a derivative of its own computes it.
    inside: _Value | None = None


@dataclasses.dataclass(eq=False)
class _Operation:
    equation: Any
    inputs: list[_Value]
    output: _Value
    where: Place | None
    scope: str

    @property
    def name(self) -> str:
        return self.equation.primitive.name


def unsafe(closed: Any, own: str | None) -> list[Finding]:
    """A finding for each ``where`` with a finite value and a NaN gradient."""
    found = []
    selections: list[_Operation] = []
    inputs = [_Value(v.aval) for v in (*closed.jaxpr.constvars, *closed.jaxpr.invars)]
    _follow(closed.jaxpr, inputs, "", None, own, selections)
    for selection in selections:
        inputs, steps = _expression(selection)
        if selection.where is None or not _worth_trying(inputs, steps):
            continue
        bad = _counterexample(selection, inputs, steps)
        if bad is None:
            continue
        found.append(
            Finding(
                "VX307",
                selection.where.site,
                f"the value is finite and its gradient is NaN where an operand is {bad:g}",
                fix="make the operand safe first: jnp.where(ok, f(jnp.where(ok, x, 1.0)), 0.0)",
                module=module_of_scope(selection.scope),
                callers=selection.where.callers,
            )
        )
    return found


def _follow(
    jaxpr: Any,
    inputs: Sequence[_Value],
    scope: str,
    call: Place | None,
    own: str | None,
    selections: list[_Operation],
) -> list[_Value]:
    """The results of a jaxpr; each ``select_n`` on the way is added to ``selections``."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True))

    def read(atom: Any) -> _Value:
        return _Value(atom.aval, literal=atom.val) if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        operands = [read(v) for v in equation.invars]
        where = place_of(equation, call, own)
        inner_scope = "/".join(p for p in (scope, _compat.scope_of(equation)) if p)
        results: list[_Value] | None = None
        bodies: list[_Value] = []
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                body = getattr(item, "jaxpr", item)
                if not hasattr(body, "eqns"):
                    continue
                variables = [*body.constvars, *body.invars]
                is_rule = equation.primitive.name in _RULES
                is_call = is_rule or equation.primitive.name in _CALLS
                is_call = is_call and len(variables) == len(operands)
                given = operands if is_call else [_Value(v.aval) for v in variables]
                kept = [] if is_rule else selections
                made = _follow(body, given, inner_scope, where, own, kept)
                if is_rule:
                    bodies = bodies or (made if is_call else [])
                else:
                    results = made if is_call and results is None else results
        if results is None:
            results = [_Value(v.aval) for v in equation.outvars]
            for result, inside in itertools.zip_longest(results, bodies):
                result.made = _Operation(equation, operands, result, where, inner_scope)
                result.inside = inside
            if equation.primitive.name == "select_n" and results[0].made is not None:
                selections.append(results[0].made)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _expression(selection: _Operation) -> tuple[list[_Value], list[_Operation]]:
    """The elementwise operations before a ``where``: their inputs, and themselves in order."""
    inputs: list[_Value] = []
    steps: list[_Operation] = []
    done: set[int] = set()

    def visit(value: _Value) -> None:
        if value.literal is not None or id(value) in done:
            return
        done.add(id(value))
        made = value.made
        known = made is not None and made.name in _ELEMENTWISE | _RESHAPES
        if made is None or not known or len(done) > _MOST_OPERATIONS:
            inputs.append(value)
            return
        for operand in made.inputs:
            visit(operand)
        steps.append(made)

    for operand in selection.inputs:
        visit(operand)
    return inputs, [*steps, selection]


def _worth_trying(inputs: Sequence[_Value], steps: Sequence[_Operation]) -> bool:
    if not inputs or len(inputs) > _MOST_INPUTS:
        return False
    floats = any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in inputs)
    return floats and any(step.name in _SINGULAR for step in steps)


def _counterexample(
    selection: _Operation, inputs: Sequence[_Value], steps: Sequence[_Operation]
) -> float | None:
    """A value of one input that makes the gradient NaN and not the result."""

    def evaluate(values: Sequence[Any]) -> Any:
        known = {id(v): given for v, given in zip(inputs, values, strict=True)}

        def read(operand: _Value) -> Any:
            if operand.literal is None:
                return known[id(operand)]
            # A literal may be a Python number.
            return jnp.asarray(np.asarray(operand.literal, operand.aval.dtype).reshape(-1)[0])

        for step in steps:
            given = [read(v) for v in step.inputs]
            if step.name in _RESHAPES:
                known[id(step.output)] = given[0]
            else:
                known[id(step.output)] = step.equation.primitive.bind(
                    *given, **_scalar(step.equation)
                )
        return known[id(selection.output)]

    differentiable = [i for i, v in enumerate(inputs) if jnp.issubdtype(v.aval.dtype, jnp.floating)]
    if not jnp.issubdtype(selection.output.aval.dtype, jnp.floating):
        return None
    try:
        with _compat.outside():
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


def _probes(variable: _Value) -> list[Any]:
    dtype = variable.aval.dtype
    if jnp.issubdtype(dtype, jnp.bool_):
        return [jnp.asarray(False), jnp.asarray(True)]
    return [jnp.asarray(value, dtype) for value in _ALLOWED[sign(variable)]]


def _scalar(equation: Any) -> dict[str, Any]:
    params = dict(equation.params)
    if "sharding" in params:
        params["sharding"] = None
    return params
