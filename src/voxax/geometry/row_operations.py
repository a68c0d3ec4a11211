"""Operations on rows of features that compile nothing in eager calls on a CPU.

Each is a primitive, so that ``jax.grad`` outside of ``jit`` evaluates it in NumPy too; they are
closed under differentiation. Under ``jit`` they are lowered to ordinary operations, which XLA
fuses; clearing and ReLU, of which a network has many, are one equation each until then, which is
quicker to trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat, _native
from voxax._native import host_products
from voxax._native.eager import HostBody, empty_array, on_host, threads
from voxax._native.on_cpu import library_call
from voxax.geometry.dtypes import accumulator


def clear_rows(x: jax.Array, valid: jax.Array) -> jax.Array:
    """Return ``x [N, C]`` with zeros in the rows where ``valid [N]`` is False; it may be ``x``."""
    return _clear_p.bind(*_compat.vary_alike(x, valid))


def relu(x: jax.Array) -> jax.Array:
    """Return ``max(x, 0)``; the derivative at zero is zero."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jax.nn.relu(x)
    return _relu_p.bind(x)


def add_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a + b`` of arrays ``[N, C]``."""
    same = a.shape == b.shape and a.dtype == b.dtype
    return _call(_add_p, jnp.add, a, b) if same else a + b


def take_rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Return ``x[indices[m, c], c] [M, C]``, zero where the index is -1."""
    return _call(_take_p, _taken, x, indices)


def add_to_rows(x: jax.Array, row: jax.Array) -> jax.Array:
    """Return ``x [N, C] + row [C]`` in the dtype of ``x``.

    The sum is taken in the accumulator's dtype, and so is the gradient of the row, a sum over all
    others. That is made by the library on CPUs, under ``jit`` too: XLA adds in another order.
    """
    return _add_row_p.bind(*_compat.vary_alike(x, row))


def _call(primitive: Any, portable: Callable[..., jax.Array], *args: Any) -> jax.Array:
    if not _compat.is_evaluated(*args):
        return portable(*args)
    return primitive.bind(*_compat.vary_alike(*args))


def _cleared(x: jax.Array, valid: jax.Array) -> jax.Array:
    return jnp.where(valid[:, None], x, jnp.zeros((), x.dtype))


def _cleared_on_host(x: np.ndarray, valid: np.ndarray) -> np.ndarray | None:
    if not x.flags.c_contiguous:
        return None
    count = np.count_nonzero(valid)
    leading = bool(valid[:count].all())
    if leading and not x[count:].view(np.uint8).any():  # a negative zero is not cleared
        return x
    cleared = empty_array(x.shape, x.dtype)
    if leading:
        cleared[:count] = x[:count]
        cleared[count:] = 0
    else:
        cleared[...] = 0
        cleared[valid] = x[valid]
    return cleared


def _relu_on_host(x: np.ndarray) -> np.ndarray:
    found = empty_array(x.shape, x.dtype)
    np.maximum(x, np.zeros((), x.dtype), out=found)
    # The maximum of two zeros may be the negative one, where XLA takes the other.
    return np.add(found, np.zeros((), x.dtype), out=found)


def _positive(x: jax.Array) -> jax.Array:
    return x > 0


def _positive_on_host(x: np.ndarray) -> np.ndarray:
    return np.greater(x, 0, out=empty_array(x.shape, np.dtype(bool)))


def _gated(t: jax.Array, passes: jax.Array) -> jax.Array:
    return jax.lax.select(passes, t, jnp.zeros_like(t))


def _gated_on_host(t: np.ndarray, passes: np.ndarray) -> np.ndarray | None:
    if not t.flags.c_contiguous:
        return None
    found = empty_array(t.shape, t.dtype)
    # Bits times 0 or 1: zero where t is infinite or NaN too, and faster than a choice.
    bits = np.dtype(f"u{t.dtype.itemsize}")
    np.multiply(t.view(bits), passes, out=found.view(bits), casting="unsafe")
    return found


def _added_on_host(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.add(a, b, out=empty_array(a.shape, a.dtype))


def _row_added(x: jax.Array, row: jax.Array) -> jax.Array:
    wide = accumulator(x.dtype)
    return (x.astype(wide) + row.astype(wide)[None, :]).astype(x.dtype)


def _row_added_on_host(x: np.ndarray, row: np.ndarray) -> np.ndarray:
    wide, found = accumulator(x.dtype), empty_array(x.shape, x.dtype)
    if wide == x.dtype:
        return np.add(x, row.astype(wide), out=found)
    found[...] = x.astype(wide) + row.astype(wide)
    return found


def _summed(platform: str, x: jax.Array, *, dtype: Any) -> jax.Array:
    wide = accumulator(x.dtype)
    if platform != "cpu" or wide not in _NATIVE or _native.unavailable() is not None:
        return jnp.sum(x.astype(wide), axis=0).astype(dtype)
    # All rows under one tap from a single one: the product of weights is their sum.
    result = jax.ShapeDtypeStruct((1, 1, 1, x.shape[1]), wide)
    ones, table = jnp.ones((1, 1), wide), jnp.zeros((x.shape[0], 1), jnp.int32)
    rows = x.astype(wide)
    total = library_call("voxax_weight_product", result, ones, rows, table, tile=np.int64(_TILE))
    return total.reshape(-1).astype(dtype)


_NATIVE = (jnp.float32, jnp.float64)
_TILE = 2048


def _summed_on_host(x: np.ndarray, *, dtype: Any) -> np.ndarray | None:
    wide = accumulator(x.dtype)
    if wide not in _NATIVE or _native.unavailable() is not None:
        return None
    total = np.empty((1, 1, x.shape[1]), wide)
    rows, table = np.ascontiguousarray(x, wide), np.zeros((x.shape[0], 1), np.int32)
    host_products.weight_product(np.ones((1, 1), wide), rows, table, total, threads=threads())
    return total.reshape(-1).astype(dtype)


def _repeated(row: jax.Array, *, rows: int, dtype: Any) -> jax.Array:
    return jnp.broadcast_to(row.astype(dtype)[None, :], (rows, row.shape[0]))


def _repeated_on_host(row: np.ndarray, *, rows: int, dtype: Any) -> np.ndarray:
    found = empty_array((rows, len(row)), dtype)
    found[...] = row
    return found


def _taken(x: jax.Array, indices: jax.Array) -> jax.Array:
    taken = jnp.take_along_axis(x, jnp.maximum(indices, 0), axis=0)
    return jnp.where(indices >= 0, taken, jnp.zeros((), x.dtype))


def _taken_on_host(x: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    if not len(x):
        return None
    found = empty_array(indices.shape, x.dtype)
    found[...] = np.take_along_axis(x, np.maximum(indices, 0), axis=0)
    found[indices < 0] = 0
    return found


def _put(ct: jax.Array, indices: jax.Array, *, rows: int) -> jax.Array:
    x = jax.ShapeDtypeStruct((rows, ct.shape[1]), ct.dtype)
    return jax.linear_transpose(lambda x: _taken(x, indices), x)(ct)[0]


def _put_on_host(ct: np.ndarray, indices: np.ndarray, *, rows: int) -> np.ndarray:
    total = empty_array((rows, ct.shape[1]), ct.dtype)
    total[...] = 0
    there = indices >= 0
    channel = np.broadcast_to(np.arange(ct.shape[1]), indices.shape)
    np.add.at(total, (indices[there], channel[there]), ct[there])
    return total


def _like_first(x: Any, *others: Any, **params: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _staged(
    name: str,
    implementation: Callable[..., jax.Array],
    eager: HostBody,
    shape: Callable[..., jax.ShapeDtypeStruct] = _like_first,
) -> Any:
    """A primitive of one result from ``(platform, *arrays, **params)`` and a body for NumPy."""
    return _compat.staged_primitive(name, implementation, shape, many=False, eager=on_host(eager))


def _rules(
    primitive: Any, portable: Callable, jvp: Callable, transpose: Callable | None = None
) -> None:
    """Set the rules of a primitive.

    Args:
      primitive: of one result.
      portable: what it computes; under ``vmap`` this is mapped.
      jvp: ``(*primals, *tangents, **params)`` to the result's tangent; tangents may be Zero.
      transpose: ``(cotangent, *operands, **params)`` to one cotangent, or None, for each operand;
        None where it is not linear.
    """

    def pushed(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        if all(isinstance(t, _compat.Zero) for t in tangents):
            return out, _compat.no_tangent(out)
        return out, jvp(*primals, *tangents, **params)

    def pulled(ct: Any, *operands: Any, **params: Any) -> Any:
        if transpose is None or isinstance(ct, _compat.Zero):
            return [None] * len(operands)
        return transpose(ct, *operands, **params)

    def batch(args: Any, dims: Any, **params: Any) -> tuple[Any, int]:
        return jax.vmap(functools.partial(portable, **params), tuple(dims))(*args), 0

    _compat.set_rules(primitive, pushed, None if transpose is None else pulled, batch)


def _anywhere(portable: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda platform, *args, **params: portable(*args, **params)


_clear_p = _staged("clear_rows", _anywhere(_cleared), _cleared_on_host)
_relu_p = _staged("relu", _anywhere(jax.nn.relu), _relu_on_host)
_positive_p = _staged(
    "relu_passes",
    _anywhere(_positive),
    _positive_on_host,
    lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bool_),
)
_gate_p = _staged("relu_gate", _anywhere(_gated), _gated_on_host)
_add_p = _staged("add_rows", _anywhere(jnp.add), _added_on_host)
_add_row_p = _staged("add_to_rows", _anywhere(_row_added), _row_added_on_host)
_take_p = _staged(
    "take_rows",
    _anywhere(_taken),
    _taken_on_host,
    lambda x, indices: jax.ShapeDtypeStruct(indices.shape, x.dtype),
)
_put_p = _staged(
    "put_rows",
    _anywhere(_put),
    _put_on_host,
    lambda ct, indices, *, rows: jax.ShapeDtypeStruct((rows, ct.shape[1]), ct.dtype),
)
_sum_p = _staged(
    "column_sums",
    _summed,
    _summed_on_host,
    lambda x, *, dtype: jax.ShapeDtypeStruct(x.shape[1:], dtype),
)
_repeat_p = _staged(
    "repeat_row",
    _anywhere(_repeated),
    _repeated_on_host,
    lambda row, *, rows, dtype: jax.ShapeDtypeStruct((rows, *row.shape), dtype),
)


def _sum_of_moving(a: Any, b: Any, ta: Any, tb: Any) -> Any:
    del a, b
    if isinstance(ta, _compat.Zero) or isinstance(tb, _compat.Zero):
        return tb if isinstance(ta, _compat.Zero) else ta
    return _add_p.bind(ta, tb)


def _row_moving(x: Any, row: Any, tx: Any, trow: Any) -> Any:
    if isinstance(trow, _compat.Zero):
        return tx
    if isinstance(tx, _compat.Zero):
        return _repeat_p.bind(trow, rows=x.shape[0], dtype=x.dtype)
    return _add_row_p.bind(tx, trow)


def _row_pulled(ct: Any, x: Any, row: Any) -> list[Any]:
    known = _compat.is_undefined_primal
    dtype = row.aval.dtype if known(row) else None
    total = _sum_p.bind(ct, dtype=dtype) if known(row) else None
    return [ct if known(x) else None, total]


def _both_pulled(ct: Any, a: Any, b: Any) -> list[Any]:
    return [ct if _compat.is_undefined_primal(x) else None for x in (a, b)]


_rules(
    _clear_p,
    _cleared,
    lambda x, valid, tx, _: _clear_p.bind(tx, valid),
    lambda ct, x, valid: [_clear_p.bind(ct, valid), None],
)
# What a derivative keeps is the mask: a quarter of the bytes of x.
_rules(_relu_p, jax.nn.relu, lambda x, tx: _gate_p.bind(tx, _positive_p.bind(x)))
_rules(_positive_p, _positive, lambda x, _: _compat.no_tangent(_positive_p.bind(x)))
_rules(
    _gate_p,
    _gated,
    lambda t, passes, tt, _: _gate_p.bind(tt, passes),
    lambda ct, t, passes: [_gate_p.bind(ct, passes), None],
)
_rules(_add_p, jnp.add, _sum_of_moving, _both_pulled)
_rules(_add_row_p, _row_added, _row_moving, _row_pulled)
_rules(
    _sum_p,
    functools.partial(_summed, "any"),
    lambda x, tx, *, dtype: _sum_p.bind(tx, dtype=dtype),
    lambda ct, x, *, dtype: [_repeat_p.bind(ct, rows=x.aval.shape[0], dtype=x.aval.dtype)],
)
_rules(
    _repeat_p,
    _repeated,
    lambda row, trow, **params: _repeat_p.bind(trow, **params),
    lambda ct, row, *, rows, dtype: [_sum_p.bind(ct, dtype=row.aval.dtype)],
)
_rules(
    _take_p,
    _taken,
    lambda x, indices, tx, _: _take_p.bind(tx, indices),
    lambda ct, x, indices: [_put_p.bind(ct, indices, rows=x.aval.shape[0]), None],
)
_rules(
    _put_p,
    _put,
    lambda ct, indices, tct, _, *, rows: _put_p.bind(tct, indices, rows=rows),
    lambda ct, x, indices, *, rows: [_take_p.bind(ct, indices), None],
)
