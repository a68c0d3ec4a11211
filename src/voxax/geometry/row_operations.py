"""Operations on rows of features that compile nothing in eager calls on a CPU.

Each operation is a JAX primitive that eager calls evaluate in NumPy, also within ``jax.grad``
outside ``jit``. Its derivatives are operations of this module too. Under ``jit`` the operations are
lowered to ordinary ones, which XLA fuses. A network calls :func:`clear_rows` and :func:`relu` many
times. Each call is one equation in a trace, so tracing is quick.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat, _native
from voxax._native import host_products
from voxax._native.eager import HostBody, on_host, threads
from voxax._native.host import empty_array
from voxax._native.on_cpu import library_call
from voxax.geometry.dtypes import accumulator, wide_fraction


def clear_rows(x: jax.Array, valid: jax.Array) -> jax.Array:
    """Return ``x [N, C]`` with zeros in the rows where ``valid [N]`` is False.

    The result may be ``x`` itself.
    """
    return _clear_p.bind(*_compat.vary_alike(x, valid))


def relu(x: jax.Array) -> jax.Array:
    """Return ``max(x, 0)``, with derivative zero at zero."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jax.nn.relu(x)
    return _relu_p.bind(x)


def add_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a + b`` for arrays ``[N, C]``, compiling nothing in eager calls."""
    same = a.shape == b.shape and a.dtype == b.dtype
    return _call(_add_p, jnp.add, a, b) if same else a + b


def take_rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Return ``[M, C]``, where entry (m, c) is ``x[indices[m, c], c]``, or 0 if the index is -1.

    ``indices`` are ``int32[M, C]``, and ``x`` has C columns.
    """
    return _call(_take_p, _taken, x, indices)


def add_to_rows(x: jax.Array, row: jax.Array) -> jax.Array:
    """Return ``x [N, C] + row [C]`` in the dtype of ``x``, such as features plus a bias.

    The sum is computed in the dtype of :func:`voxax.geometry.dtypes.accumulator`. So is the
    gradient of ``row``, which is a sum over all N rows. On CPUs the native library computes this
    gradient, also under ``jit``, because XLA would add in another order.
    """
    return _add_row_p.bind(*_compat.vary_alike(x, row))


def put_rows(x: jax.Array, indices: jax.Array, rows: int) -> jax.Array:
    """Return ``[rows, C]``: zeros, to which ``x[m, c]`` is added at entry ``(indices[m, c], c)``.

    Both arrays are ``[M, C]``. An index of -1 adds nothing. This is the transpose of
    :func:`take_rows`.
    """
    return _put_p.bind(*_compat.vary_alike(x, indices), rows=rows)


def read_rows(x: jax.Array, rows: jax.Array | np.ndarray) -> jax.Array:
    """Return ``x[rows]``, zero where an index is -1 or beyond ``x``; for eager calls only."""
    return _read_p.bind(x, rows)


def join_rows(*arrays: jax.Array, axis: int) -> jax.Array:
    """Concatenate arrays ``[N, C]`` of the same dtype along ``axis``; for eager calls only."""
    return _join_p.bind(*arrays, axis=axis)


def mean_rows(total: jax.Array, neighbors: jax.Array, dtype: Any) -> jax.Array:
    """Return means over the neighbors of each row, given the sums over its neighbors.

    Args:
      total: ``[M, C]``, the sums.
      neighbors: ``int32[M, K]``, the row of each neighbor; -1 is no neighbor. The sums of a row
        without neighbors are not divided.
      dtype: dtype of the result.
    """
    return _mean_p.bind(*_compat.vary_alike(total, neighbors), dtype=jnp.dtype(dtype))


def multiply_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a * b`` for arrays ``[N, C]``, compiling nothing in eager calls."""
    same = a.shape == b.shape and a.dtype == b.dtype
    return _call(_multiply_p, jnp.multiply, a, b) if same else a * b


def negative_rows(x: jax.Array) -> jax.Array:
    """Return ``-x``, compiling nothing in eager calls."""
    return _call(_negative_p, jnp.negative, x)


def repeat_row(row: jax.Array | np.ndarray, rows: int) -> jax.Array:
    """Return ``row [C]`` repeated to ``[rows, C]``; for eager calls only."""
    return _repeat_p.bind(row, rows=rows, dtype=row.dtype)


def as_dtype(x: jax.Array, dtype: Any) -> jax.Array:
    """Return ``x`` converted to ``dtype``, compiling nothing in eager calls."""
    dtype = jnp.dtype(dtype)
    if x.dtype == dtype:
        return x
    if not _compat.is_evaluated(x):
        return x.astype(dtype)
    return _convert_p.bind(x, dtype=dtype)


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
    # NumPy's maximum of 0 and -0 may be -0, where XLA returns 0. Adding 0 turns -0 into 0.
    return np.add(found, np.zeros((), x.dtype), out=found)


def _positive_on_host(x: np.ndarray) -> np.ndarray:
    return np.greater(x, 0, out=empty_array(x.shape, np.dtype(bool)))


def _gated(t: jax.Array, passes: jax.Array) -> jax.Array:
    return jax.lax.select(passes, t, jnp.zeros_like(t))


def _gated_on_host(t: np.ndarray, passes: np.ndarray) -> np.ndarray | None:
    if not t.flags.c_contiguous:
        return None
    found = empty_array(t.shape, t.dtype)
    # Bits times 0 or 1: this gives zero for an infinite or NaN t too, and is faster than np.where.
    bits = np.dtype(f"u{t.dtype.itemsize}")
    np.multiply(t.view(bits), passes, out=found.view(bits), casting="unsafe")
    return found


def _by(ufunc: Callable[..., Any]) -> HostBody:
    """Return a function that applies ``ufunc`` to NumPy arrays of one shape and dtype.

    The result has this shape and dtype too.
    """
    return lambda *arrays: ufunc(*arrays, out=empty_array(arrays[0].shape, arrays[0].dtype))


def _own(values: Any, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return a new NumPy array of ``shape`` and ``dtype`` that holds ``values``, broadcast."""
    found = empty_array(shape, dtype)
    found[...] = values
    return found


def _row_added(x: jax.Array, row: jax.Array) -> jax.Array:
    wide = accumulator(x.dtype)
    return (x.astype(wide) + row.astype(wide)[None, :]).astype(x.dtype)


def _row_added_on_host(x: np.ndarray, row: np.ndarray) -> np.ndarray:
    wide = accumulator(x.dtype)
    if wide == x.dtype:
        return np.add(x, row.astype(wide), out=empty_array(x.shape, x.dtype))
    return _own(x.astype(wide) + row.astype(wide), x.shape, x.dtype)


def _summed(x: jax.Array, *, dtype: Any) -> jax.Array:
    return jnp.sum(x.astype(accumulator(x.dtype)), axis=0).astype(dtype)


def _summed_on_cpu(x: jax.Array, *, dtype: Any) -> jax.Array:
    wide = accumulator(x.dtype)
    if wide not in _NATIVE or _native.unavailable() is not None:
        return _summed(x, dtype=dtype)
    # The weight gradient of one tap from a single input row of ones to all rows is their sum.
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


def _taken(x: jax.Array, indices: jax.Array) -> jax.Array:
    taken = jnp.take_along_axis(x, jnp.maximum(indices, 0), axis=0)
    return jnp.where(indices >= 0, taken, jnp.zeros((), x.dtype))


def _taken_on_host(x: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    if not len(x):
        return None
    found = _own(np.take_along_axis(x, np.maximum(indices, 0), axis=0), indices.shape, x.dtype)
    found[indices < 0] = 0
    return found


def _put(ct: jax.Array, indices: jax.Array, *, rows: int) -> jax.Array:
    x = jax.ShapeDtypeStruct((rows, ct.shape[1]), ct.dtype)
    return jax.linear_transpose(lambda x: _taken(x, indices), x)(ct)[0]


def _put_on_host(ct: np.ndarray, indices: np.ndarray, *, rows: int) -> np.ndarray:
    total = _own(0, (rows, ct.shape[1]), ct.dtype)
    there = (indices >= 0) & (indices < rows)
    channel = np.broadcast_to(np.arange(ct.shape[1]), indices.shape)
    np.add.at(total, (indices[there], channel[there]), ct[there])
    return total


def gathered(x: jax.Array, rows: jax.Array) -> jax.Array:
    """Return ``x[rows]`` in ordinary JAX, zero where an index is -1 or beyond ``x``."""
    index = jnp.where(rows < 0, x.shape[0], rows)
    return x.at[index].get(mode="fill", fill_value=0)


def gathered_on_host(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return ``x[rows]`` in NumPy, zero where an index is -1 or beyond ``x``."""
    shape, there = (*rows.shape, *x.shape[1:]), (rows >= 0) & (rows < len(x))
    if not there.any():
        return _own(0, shape, x.dtype)
    found = np.take(x, rows, axis=0, out=empty_array(shape, x.dtype), mode="clip")
    found[~there] = 0
    return found


def _written(ct: jax.Array, rows: jax.Array, *, length: int) -> jax.Array:
    index = jnp.where(rows < 0, length, rows)
    return jnp.zeros((length, ct.shape[-1]), ct.dtype).at[index].add(ct, mode="drop")


def _written_on_host(ct: np.ndarray, rows: np.ndarray, *, length: int) -> np.ndarray:
    total = _own(0, (length, ct.shape[-1]), ct.dtype)
    there = (rows >= 0) & (rows < length)
    targets = rows[there]
    if len(np.unique(targets)) == len(targets):
        total[targets] = ct[there]
        # The sum of zero and a negative zero is zero.
        return np.add(total, np.zeros((), ct.dtype), out=total)
    np.add.at(total, targets, ct[there])
    return total


def _joined_shape(*arrays: Any, axis: int) -> jax.ShapeDtypeStruct:
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    return jax.ShapeDtypeStruct(tuple(shape), arrays[0].dtype)


def _joined_on_host(*arrays: np.ndarray, axis: int) -> np.ndarray:
    result = _joined_shape(*arrays, axis=axis)
    return np.concatenate(arrays, axis, out=empty_array(result.shape, result.dtype))


def _part(x: jax.Array, *, start: int, size: int, axis: int) -> jax.Array:
    return jax.lax.slice_in_dim(x, start, start + size, axis=axis)


def _part_on_host(x: np.ndarray, *, start: int, size: int, axis: int) -> np.ndarray:
    chosen = x[:, start : start + size] if axis == 1 else x[start : start + size]
    return _own(chosen, chosen.shape, x.dtype)


def _mean(total: jax.Array, neighbors: jax.Array, *, dtype: Any) -> jax.Array:
    number = jnp.maximum(jnp.sum(neighbors >= 0, axis=1, dtype=jnp.int32), 1)
    wide = wide_fraction(dtype)
    share = 1 / number.astype(wide)  # XLA does not divide each channel
    return (total.astype(wide) * share[:, None]).astype(dtype)


def _mean_on_host(total: np.ndarray, neighbors: np.ndarray, *, dtype: Any) -> np.ndarray:
    wide = wide_fraction(dtype)
    share = 1 / np.maximum((neighbors >= 0).sum(1), 1).astype(wide)
    return _own((total.astype(wide) * share[:, None]).astype(dtype), total.shape, dtype)


def _converted_on_host(x: np.ndarray, *, dtype: Any) -> np.ndarray | None:
    if not jnp.issubdtype(dtype, jnp.floating) and jnp.issubdtype(x.dtype, jnp.floating):
        return None  # XLA saturates
    return _own(x.astype(dtype), x.shape, dtype)


def _part_shape(x: Any, *, start: int, size: int, axis: int) -> jax.ShapeDtypeStruct:
    del start
    shape = list(x.shape)
    shape[axis] = size
    return jax.ShapeDtypeStruct(tuple(shape), x.dtype)


def _like_first(x: Any, *others: Any, **params: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _primitive(
    name: str,
    portable: Callable[..., jax.Array],
    eager: HostBody,
    shape: Callable[..., jax.ShapeDtypeStruct] = _like_first,
    *,
    on_cpu: Callable[..., jax.Array] | None = None,
    jvp: Callable | None = None,
    transpose: Callable | None = None,
) -> Any:
    """Make a JAX primitive with one result.

    Args:
      name: name of the primitive in a jaxpr.
      portable: function of ``(*arrays, **params)`` in ordinary JAX; ``vmap`` maps this function.
      eager: the same function for NumPy arrays.
      shape: function of ``(*arrays, **params)`` that returns the shape and dtype of the result.
      on_cpu: function that programs for CPUs run instead of ``portable``.
      jvp: function of ``(*primals, *tangents, **params)`` that returns the tangent of the result;
        tangents may be Zero. None if the primitive is linear in the first operand and no other
        operand has a tangent.
      transpose: function of ``(cotangent, *operands, **params)`` that returns a cotangent for each
        linear operand and None for each other operand. None if the primitive is not linear.
    """

    def run(platform: str, *arrays: Any, **params: Any) -> jax.Array:
        body = on_cpu if on_cpu is not None and platform == "cpu" else portable
        return body(*arrays, **params)

    def pushed(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        if all(isinstance(t, _compat.Zero) for t in tangents):
            return out, _compat.no_tangent(out)
        if jvp is not None:
            return out, jvp(*primals, *tangents, **params)
        return out, primitive.bind(tangents[0], *primals[1:], **params)

    def pulled(ct: Any, *operands: Any, **params: Any) -> Any:
        if transpose is None or isinstance(ct, _compat.Zero):
            return [None] * len(operands)
        return transpose(ct, *operands, **params)

    def batch(args: Any, dims: Any, **params: Any) -> tuple[Any, int]:
        return jax.vmap(functools.partial(portable, **params), tuple(dims))(*args), 0

    platforms = () if on_cpu is None else ("cpu",)
    primitive = _compat.staged_primitive(
        name, run, shape, many=False, eager=on_host(eager), platforms=platforms
    )
    _compat.set_rules(primitive, pushed, None if transpose is None else pulled, batch)
    return primitive


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
    unknown = _compat.is_undefined_primal
    total = _sum_p.bind(ct, dtype=row.aval.dtype) if unknown(row) else None
    return [ct if unknown(x) else None, total]


def _product_moving(a: Any, b: Any, ta: Any, tb: Any) -> Any:
    if isinstance(tb, _compat.Zero):
        return _multiply_p.bind(ta, b)
    if isinstance(ta, _compat.Zero):
        return _multiply_p.bind(a, tb)
    return _add_p.bind(_multiply_p.bind(ta, b), _multiply_p.bind(a, tb))


def _product_pulled(ct: Any, a: Any, b: Any) -> list[Any]:
    unknown = _compat.is_undefined_primal
    return [
        _multiply_p.bind(ct, b) if unknown(a) else None,
        _multiply_p.bind(ct, a) if unknown(b) else None,
    ]


def _join_moving(*both: Any, axis: int) -> Any:
    arrays, tangents = both[: len(both) // 2], both[len(both) // 2 :]
    filled = (
        jnp.zeros(a.shape, a.dtype) if isinstance(t, _compat.Zero) else t
        for a, t in zip(arrays, tangents, strict=True)
    )
    return _join_p.bind(*filled, axis=axis)


def _join_pulled(ct: Any, *arrays: Any, axis: int) -> list[Any]:
    result, start = [], 0
    for array in arrays:
        unknown = _compat.is_undefined_primal(array)
        size = (array.aval if unknown else array).shape[axis]
        part = {"start": start, "size": size, "axis": axis}
        result.append(_part_p.bind(ct, **part) if unknown else None)
        start += size
    return result


def _part_pulled(ct: Any, x: Any, *, start: int, size: int, axis: int) -> list[Any]:
    def zeros(length: int) -> np.ndarray:
        shape = list(x.aval.shape)
        shape[axis] = length
        return np.zeros(shape, ct.dtype)

    after = x.aval.shape[axis] - start - size
    return [_join_p.bind(zeros(start), ct, zeros(after), axis=axis)]


def _both_pulled(ct: Any, a: Any, b: Any) -> list[Any]:
    return [ct if _compat.is_undefined_primal(x) else None for x in (a, b)]


_clear_p = _primitive(
    "clear_rows",
    _cleared,
    _cleared_on_host,
    transpose=lambda ct, x, valid: [_clear_p.bind(ct, valid), None],
)
# The derivative keeps the mask, which has a quarter of the bytes of x.
_relu_p = _primitive(
    "relu",
    jax.nn.relu,
    _relu_on_host,
    jvp=lambda x, tx: _gate_p.bind(tx, _positive_p.bind(x)),
)
_positive_p = _primitive(
    "relu_passes",
    lambda x: x > 0,
    _positive_on_host,
    lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bool_),
    jvp=lambda x, _: _compat.no_tangent(_positive_p.bind(x)),
)
_gate_p = _primitive(
    "relu_gate",
    _gated,
    _gated_on_host,
    transpose=lambda ct, t, passes: [_gate_p.bind(ct, passes), None],
)
_add_p = _primitive("add_rows", jnp.add, _by(np.add), jvp=_sum_of_moving, transpose=_both_pulled)
_add_row_p = _primitive(
    "add_to_rows", _row_added, _row_added_on_host, jvp=_row_moving, transpose=_row_pulled
)
_convert_p = _primitive(
    "convert_rows",
    lambda x, *, dtype: x.astype(dtype),
    _converted_on_host,
    lambda x, *, dtype: jax.ShapeDtypeStruct(x.shape, dtype),
    transpose=lambda ct, x, *, dtype: [_convert_p.bind(ct, dtype=x.aval.dtype)],
)
_take_p = _primitive(
    "take_rows",
    _taken,
    _taken_on_host,
    lambda x, indices: jax.ShapeDtypeStruct(indices.shape, x.dtype),
    transpose=lambda ct, x, indices: [_put_p.bind(ct, indices, rows=x.aval.shape[0]), None],
)
_put_p = _primitive(
    "put_rows",
    _put,
    _put_on_host,
    lambda ct, indices, *, rows: jax.ShapeDtypeStruct((rows, ct.shape[1]), ct.dtype),
    transpose=lambda ct, x, indices, *, rows: [_take_p.bind(ct, indices), None],
)
_read_p = _primitive(
    "read_rows",
    gathered,
    gathered_on_host,
    lambda x, rows: jax.ShapeDtypeStruct((*rows.shape, x.shape[1]), x.dtype),
    transpose=lambda ct, x, rows: [_write_p.bind(ct, rows, length=x.aval.shape[0]), None],
)
_write_p = _primitive(
    "write_rows",
    _written,
    _written_on_host,
    lambda ct, rows, *, length: jax.ShapeDtypeStruct((length, ct.shape[-1]), ct.dtype),
    transpose=lambda ct, x, rows, *, length: [_read_p.bind(ct, rows), None],
)
_join_p = _primitive(
    "join_rows",
    lambda *arrays, axis: jnp.concatenate(arrays, axis),
    _joined_on_host,
    _joined_shape,
    jvp=_join_moving,
    transpose=_join_pulled,
)
_part_p = _primitive("part_of_rows", _part, _part_on_host, _part_shape, transpose=_part_pulled)
_mean_p = _primitive(
    "mean_rows",
    _mean,
    _mean_on_host,
    lambda total, neighbors, *, dtype: jax.ShapeDtypeStruct(total.shape, dtype),
    transpose=lambda ct, total, neighbors, *, dtype: [
        _mean_p.bind(ct, neighbors, dtype=total.aval.dtype),
        None,
    ],
)
_multiply_p = _primitive(
    "multiply_rows",
    jnp.multiply,
    _by(np.multiply),
    jvp=_product_moving,
    transpose=_product_pulled,
)
_negative_p = _primitive(
    "negative_rows",
    jnp.negative,
    _by(np.negative),
    transpose=lambda ct, x: [_negative_p.bind(ct)],
)
_sum_p = _primitive(
    "column_sums",
    _summed,
    _summed_on_host,
    lambda x, *, dtype: jax.ShapeDtypeStruct(x.shape[1:], dtype),
    on_cpu=_summed_on_cpu,
    transpose=lambda ct, x, *, dtype: [
        _repeat_p.bind(ct, rows=x.aval.shape[0], dtype=x.aval.dtype)
    ],
)
_repeat_p = _primitive(
    "repeat_row",
    _repeated,
    lambda row, *, rows, dtype: _own(row, (rows, len(row)), dtype),
    lambda row, *, rows, dtype: jax.ShapeDtypeStruct((rows, *row.shape), dtype),
    transpose=lambda ct, row, *, rows, dtype: [_sum_p.bind(ct, dtype=row.aval.dtype)],
)
