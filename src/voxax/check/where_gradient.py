"""Find calls of ``where`` that have a finite value and a NaN gradient.

``jnp.where(x > 0, jnp.sqrt(x), 0.0)`` has the value 0 at ``x = 0`` and the gradient ``0 * inf``.
Every ``where`` of a program is tested: the elementwise operations before it are evaluated and
differentiated at a few values of their inputs. Zero is one of these values unless the input is
known to be positive; the sign of an input is inferred from the operations that computed it. A
finding is a combination of values for which the result is finite and the derivative is NaN. The
tested values may never occur together in the program, so a finding is evidence, not a proof.
Functions with a custom derivative (``custom_jvp``, ``custom_vjp``) are not differentiated.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat_tracing
from voxax._compat import CUSTOM_CALLS, PLAIN_CALLS, programs_in, scope_in
from voxax.check.advice import ADVICE
from voxax.check.findings import Finding
from voxax.check.hazards import equations
from voxax.check.source import Place, place_of
from voxax.check.subject import module_of_scope


class Sign(enum.IntEnum):
    """What is known about the sign of a value, in increasing order of knowledge."""

    ANY = 0
    NOT_NEGATIVE = 1
    POSITIVE = 2

    @property
    def probes(self) -> tuple[float, ...]:
        """The values to test for an input with this sign."""
        return {0: (0.0, 1.0, -1.0, 0.5), 1: (0.0, 1.0, 0.5), 2: (1.0, 0.5)}[self]


NAN = "the value is finite and its gradient is NaN where an operand is {:g}"
# The most inputs and the most operations of an expression that is tested.
MOST_INPUTS = 3
_MOST_OPERATIONS = 64
# The most operations that are followed backward to infer the sign of a value.
_DEPTH = 40

# Operations of JAX and PyTorch whose slope is infinite or NaN somewhere. Only expressions with such
# an operation are tested.
SINGULAR = {
    "sqrt", "rsqrt", "cbrt", "log", "log1p", "log2", "log10", "div", "reciprocal", "pow",
    "integer_pow", "acos", "asin", "atanh", "acosh", "atan2", "xlogy",
}  # fmt: skip
ELEMENTWISE = SINGULAR | {
    "add", "sub", "mul", "neg", "abs", "sign", "exp", "expm1", "tanh", "sin", "cos", "tan",
    "square", "clamp", "eq", "ne", "lt", "le", "gt", "ge", "erf", "sinh", "cosh", "asinh", "atan",
    "floor", "ceil", "round",
}  # fmt: skip
_ELEMENTWISE_JAX = ELEMENTWISE | {
    "max", "min", "logistic", "select_n", "and", "or", "not", "is_finite", "convert_element_type",
    "stop_gradient", "copy", "add_any",
}  # fmt: skip
# These operations change only shapes, so they do nothing to single values.
_RESHAPES = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy"}

_RULES_OF_SIGNS = {
    "positive": {
        "exp", "exp2", "logistic", "sigmoid", "softmax", "softplus", "cosh", "rsqrt", "ones",
        "ones_like",
    },
    "not negative": {
        "abs", "relu", "square", "sqrt", "iota", "arange", "argmax", "argmin", "population_count",
        "clz", "norm", "linalg_vector_norm", "linalg_norm", "var", "std", "zeros", "zeros_like",
    },
    # These move, choose, convert or sum values of their first operand.
    "first": {
        "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy", "transpose", "rev",
        "slice", "dynamic_slice", "convert_element_type", "stop_gradient", "reduce_sum",
        "reduce_max", "reduce_min", "reduce_prod", "cumsum", "cummax", "cummin", "cumprod", "psum",
        "pmax", "pmin", "all_gather", "reduce_precision", "optimization_barrier", "name", "sign",
        "pow", "integer_pow", "expand", "unsqueeze", "view", "alias", "contiguous", "detach_",
        "sum", "mean", "amax", "amin", "select", "permute", "clone", "to", "_to_copy",
        "index_select", "t", "flatten", "detach", "getitem",
    },
    # The result has the least known sign of all operands.
    "least": {
        "add_any", "mul", "div", "min", "minimum", "concatenate", "cat", "stack", "pad",
        "dot_general", "mm", "matmul", "bmm",
    },
    "most": {"max", "maximum", "clamp_min"},
    "add": {"add"},
    "clamp": {"clamp"},  # operands: the least value, the value, the largest value
}  # fmt: skip
_RULE_OF_SIGN = {name: rule for rule, names in _RULES_OF_SIGNS.items() for name in names}


def sign_of(value: Any, made_by: Callable[[Any], Sign | tuple[str, Sequence[Any]]]) -> Sign:
    """Infer the sign of a value from the operations that computed it.

    `made_by` is a function of a value. It returns the value's sign if that is known, or else
    ``(operation, operands)``, by which the value was computed. The operation is a name of JAX or
    PyTorch, such as ``exp``, or the name of a rule: a key of ``_RULES_OF_SIGNS``, ``even power`` or
    ``rounded``. Other names give `Sign.ANY`.
    """
    known: dict[int, Sign] = {}

    def follow(value: Any, depth: int) -> Sign:
        # Follow each value once: along every path, a chain of `x = x * x + x` takes 2**depth steps.
        if id(value) not in known:
            known[id(value)] = find(value, depth)
        return known[id(value)]

    def find(value: Any, depth: int) -> Sign:
        made = made_by(value)
        if isinstance(made, Sign):
            return made
        if depth == 0:
            return Sign.ANY
        name, operands = made
        rule = _RULE_OF_SIGN.get(name, name)

        def of(i: int) -> Sign:
            return follow(operands[i], depth - 1)

        if rule in ("positive", "not negative"):
            return Sign.POSITIVE if rule == "positive" else Sign.NOT_NEGATIVE
        if rule == "first":
            return of(0)
        if rule == "even power":
            return max(of(0), Sign.NOT_NEGATIVE)
        if rule == "rounded":  # 0.5 becomes 0
            return min(of(0), Sign.NOT_NEGATIVE)
        if rule == "clamp":
            return min(max(of(0), of(1)), of(2))
        if rule not in ("least", "most", "add"):
            return Sign.ANY
        signs = [of(i) for i in range(len(operands))]
        if rule == "add":
            return max(signs) if min(signs) > Sign.ANY else Sign.ANY
        return min(signs) if rule == "least" else max(signs)

    return follow(value, _DEPTH)


def expression(
    root: Any, is_followed: Callable[[Any], bool], operands: Callable[[Any], Sequence[Any]]
) -> tuple[list[Any], list[Any]]:
    """Return ``(inputs, operations)`` of the elementwise expression that ends with a ``where``.

    `root` is the result of the ``where``. `is_followed` returns whether an elementwise operation
    computed a value, and `operands` returns the operands of that operation. `inputs` are the values
    at which the expression begins. An operation is given by its result. The operations are in the
    order of evaluation.
    """
    inputs: list[Any] = []
    steps: list[Any] = []
    done: set[int] = set()

    def visit(value: Any) -> None:
        if id(value) in done:
            return
        done.add(id(value))
        if not is_followed(value) or len(done) > _MOST_OPERATIONS:
            inputs.append(value)
            return
        for operand in operands(value):
            visit(operand)
        steps.append(value)

    visit(root)
    return inputs, steps


@dataclasses.dataclass(eq=False)
class _Value:
    """A value in a jaxpr, as if all calls were inlined.

    `made` is the operation that computed the value. `literal` is the number, if the value is a
    constant. Both are None for an input of the program. `inside` is set for a result of a call with
    a custom derivative: it is the value that the body of the call computes for this result.
    """

    aval: Any
    made: _Operation | None = None
    literal: Any = None
    # The same value inside of the body of a call with a custom derivative.
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
    """Report each ``where`` of a closed jaxpr that can have a finite value and a NaN gradient.

    Code of the library `own`, if any, counts as the user's.
    """
    found = []
    selections: list[_Operation] = []
    inputs = [_Value(v.aval) for v in (*closed.jaxpr.constvars, *closed.jaxpr.invars)]
    _follow(closed.jaxpr, inputs, "", None, own, selections)
    if any(_is_differentiated(scope) for _, scope, _, _ in equations(closed.jaxpr, own)):
        # The program is a training step, whose part after the gradients is not differentiated.
        selections = [s for s in selections if _is_differentiated(s.scope)]
    for selection in selections:
        values, made = expression(selection.output, _is_followed, _operands)
        inputs, steps = values, [value.made for value in made]
        if selection.where is None or not _worth_trying(inputs, steps):
            continue
        bad = _counterexample(selection, inputs, steps)
        if bad is None:
            continue
        text, module = NAN.format(bad), module_of_scope(selection.scope)
        found.append(Finding.at(selection.where, "VX307", text, ADVICE["VX307"], module))
    return found


def _is_differentiated(scope: str) -> bool:
    """Return True for a name scope that shows that JAX differentiates the operation."""
    return "jvp(" in scope or "transpose(" in scope


def _follow(
    jaxpr: Any,
    inputs: Sequence[_Value],
    scope: str,
    call: Place | None,
    own: str | None,
    selections: list[_Operation],
) -> list[_Value]:
    """Return the results of a jaxpr as :class:`_Value`; add each ``select_n`` to ``selections``.

    `inputs` are the values of the jaxpr's constants and arguments. `scope` and `call` are the name
    scope and the place of the call of the jaxpr.
    """
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True))

    def read(atom: Any) -> _Value:
        return _Value(atom.aval, literal=atom.val) if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        operands = [read(v) for v in equation.invars]
        where = place_of(equation, call, own)
        inner_scope = scope_in(equation, scope)
        results: list[_Value] | None = None
        bodies: list[_Value] = []
        for item in programs_in(equation):
            body = getattr(item, "jaxpr", item)
            variables = [*body.constvars, *body.invars]
            is_rule = equation.primitive.name in CUSTOM_CALLS
            is_call = is_rule or equation.primitive.name in PLAIN_CALLS
            is_call = is_call and len(variables) == len(operands)
            given = operands if is_call else [_Value(v.aval) for v in variables]
            made = _follow(body, given, inner_scope, where, own, [] if is_rule else selections)
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


def _is_followed(value: _Value) -> bool:
    return value.made is not None and value.made.name in _ELEMENTWISE_JAX | _RESHAPES


def _operands(value: _Value) -> list[_Value]:
    return [v for v in value.made.inputs if v.literal is None] if value.made is not None else []


def _worth_trying(inputs: Sequence[_Value], steps: Sequence[_Operation]) -> bool:
    if not inputs or len(inputs) > MOST_INPUTS:
        return False
    floats = any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in inputs)
    return floats and any(step.name in SINGULAR for step in steps)


def _counterexample(
    selection: _Operation, inputs: Sequence[_Value], steps: Sequence[_Operation]
) -> float | None:
    """Return a value of one input at which `selection` is finite with a NaN gradient, or None.

    `selection` is a ``select_n``, and `steps` are the operations that compute its result from the
    values `inputs`.
    """

    def evaluate(*values: Any) -> Any:
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

    floats = [i for i, v in enumerate(inputs) if jnp.issubdtype(v.aval.dtype, jnp.floating)]
    if not jnp.issubdtype(selection.output.aval.dtype, jnp.floating):
        return None
    try:
        with _compat_tracing.outside():
            for probe in itertools.product(*(_probes(v) for v in inputs)):
                if not math.isfinite(float(evaluate(*probe))):
                    continue
                slopes = jax.grad(evaluate, argnums=tuple(floats))(*probe)
                for i, slope in zip(floats, slopes, strict=True):
                    if math.isnan(float(slope)):
                        return float(probe[i])
    except (TypeError, ValueError, NotImplementedError, KeyError, IndexError):
        return None  # an operation that cannot be applied to single values
    return None


def _probes(variable: _Value) -> list[Any]:
    dtype = variable.aval.dtype
    if jnp.issubdtype(dtype, jnp.bool_):
        return [jnp.asarray(False), jnp.asarray(True)]
    return [jnp.asarray(value, dtype) for value in sign_of(variable, _made_by).probes]


def _made_by(value: _Value) -> Sign | tuple[str, Sequence[_Value]]:
    dtype = value.aval.dtype
    if jnp.issubdtype(dtype, jnp.bool_) or jnp.issubdtype(dtype, jnp.unsignedinteger):
        return Sign.NOT_NEGATIVE
    if not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)):
        return Sign.ANY  # complex numbers and random keys
    if value.literal is not None:
        least = np.min(np.asarray(value.literal, np.float64), initial=np.inf)
        if not least >= 0:  # NaN too
            return Sign.ANY
        return Sign.POSITIVE if least > 0 else Sign.NOT_NEGATIVE
    if value.inside is not None:
        return "first", [value.inside]
    if value.made is None:
        return Sign.ANY
    name, params, inputs = value.made.name, value.made.equation.params, value.made.inputs
    if name == "convert_element_type" and not jnp.issubdtype(params["new_dtype"], jnp.inexact):
        return "rounded", inputs
    if name == "gather":  # rows out of range may be filled with zeros
        return "rounded", inputs
    if name == "mul" and inputs[0] is inputs[1]:
        return "even power", inputs
    if name == "integer_pow" and params["y"] % 2 == 0:
        return "even power", inputs
    if name == "select_n":
        return "least", inputs[1:]
    if name == "dynamic_update_slice":
        return "least", inputs[:2]
    if name in ("scatter", "scatter-add", "scatter_add", "scatter-max", "scatter-min"):
        return "least", [inputs[0], inputs[2]]
    return name, inputs


def _scalar(equation: Any) -> dict[str, Any]:
    params = dict(equation.params)
    if "sharding" in params:
        params["sharding"] = None
    return params
