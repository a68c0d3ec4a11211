"""Operators of the native library that XLA programs call, and ctypes calls for NumPy arrays.

An operator takes arrays, integers and real numbers, and checks them, see
``native/src/operators.h``. A Python function that calls operators has a parameter ``call``. It is
:func:`by_xla` in JAX programs, and :func:`on_numpy` for NumPy arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from voxax._native.differentiable import Body, differentiable_on_cpu
from voxax._native.eager import threads
from voxax._native.host import call as host_call
from voxax._native.host import empty_array
from voxax._native.on_cpu import library_call

# In the order of Kind in operators.h.
_KINDS = ("float32", "float64", "bfloat16", "float16", "int32", "uint32", "bool")

FRACTIONS = _KINDS[:4]
"""Names of the dtypes of features that the operators support."""


def by_xla(
    name: str,
    results: Sequence[jax.ShapeDtypeStruct],
    *arrays: Any,
    sizes: Sequence[int] = (0,),
    numbers: Sequence[float] = (0.0,),
    in_place: bool = False,
) -> tuple[jax.Array, ...]:
    """Call the operator ``name`` of the native library in a JAX program; return its results.

    Args:
      name: the operator, without the prefix ``voxax_``.
      results: shape and dtype of each result.
      arrays: the operands.
      sizes: integers that the operator reads.
      numbers: real numbers that the operator reads.
      in_place: whether the first result may take the memory of the first array. XLA copies the
        array if it is read again.
    """
    options = {"sizes": np.array(sizes, np.int64), "numbers": np.array(numbers, np.float64)}
    function, aliases = f"voxax_{name}", {0: 0} if in_place else None
    return tuple(library_call(function, tuple(results), *arrays, aliases=aliases, **options))


def on_numpy(
    name: str,
    results: Sequence[jax.ShapeDtypeStruct],
    *arrays: np.ndarray,
    sizes: Sequence[int] = (0,),
    numbers: Sequence[float] = (0.0,),
    in_place: bool = False,
) -> tuple[np.ndarray, ...]:
    """Call the operator ``name`` of the native library for NumPy arrays; return new arrays.

    The arguments are those of :func:`by_xla`; ``in_place`` is ignored, and no operand is changed.

    Raises:
      ValueError: the shapes or dtypes do not match.
    """
    del in_place
    dense = [np.ascontiguousarray(a).reshape(np.shape(a)) for a in arrays]
    found = [empty_array(result.shape, result.dtype) for result in results]
    shapes: list[int] = []
    for array in (*dense, *found):
        shapes += [_KINDS.index(array.dtype.name), array.ndim, *array.shape]
    places = np.array([array.ctypes.data for array in (*dense, *found)], np.uintp)
    lists = np.array(shapes, np.int64), len(dense), len(found)
    whole, real = np.array(sizes, np.int64), np.array(numbers, np.float64)
    host_call(name, places, *lists, whole, len(whole), real, len(real), threads())
    return tuple(found)


def differentiable_operator(
    name: str, value: Callable[..., Any], portable: Body, gradients: Callable[..., Any]
) -> Body:
    """Return a differentiable function: native operators on CPUs, ``portable`` elsewhere.

    The function is made by :func:`voxax._native.differentiable.differentiable_on_cpu`. Eager calls
    on a CPU compile nothing.

    Args:
      name: name of the primitive.
      value: a function of ``(call, *arrays, **static)`` that returns a tuple of arrays; ``call`` is
        :func:`by_xla` or :func:`on_numpy`.
      portable: the same function in ordinary JAX, without ``call``.
      gradients: a function of ``(call, cotangent, *arrays, *results, moves=, **static)`` that
        returns one cotangent for each index in ``moves``, or None to differentiate ``portable``.
    """

    return differentiable_on_cpu(
        name,
        functools.partial(value, by_xla),
        portable,
        functools.partial(gradients, by_xla),
        eager=functools.partial(value, on_numpy),
        eager_gradients=functools.partial(gradients, on_numpy),
    )
