"""What the operations that made a value say about its sign."""

from __future__ import annotations

import enum
from typing import Any

import jax.numpy as jnp
import numpy as np


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
