"""Pass voxels to two layers, and add the gradients of both layers only in rows that hold voxels.

Where two layers read one array, JAX adds their gradients in all rows. On CPUs a padding row then
costs as much time and memory as a voxel.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax._native.operators import FRACTIONS, differentiable_operator
from voxax.geometry.voxels import Voxels


def branch(voxels: Voxels) -> tuple[Voxels, Voxels]:
    """Return the voxels twice, for two layers to read, such as a residual branch and its shortcut.

    Values and derivatives do not change. But in the backward pass, the gradients of both layers are
    added only in rows that hold voxels. Padding rows, whose gradient is zero, then cost no time on
    CPUs.
    """
    if voxels.features.dtype.name not in FRACTIONS:
        return voxels, voxels
    first, second = _branch_p.bind(*_compat.vary_alike(voxels.features, voxels.valid))
    return (
        dataclasses.replace(voxels, features=first),
        dataclasses.replace(voxels, features=second),
    )


def _twice(x: Any, valid: Any) -> tuple[Any, Any]:
    del valid
    return x, x


def _portable(a: jax.Array, b: jax.Array, valid: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(valid[:, None], a + b, jnp.zeros((), a.dtype)),)


def _value(call: Any, a: Any, b: Any, valid: Any) -> Any:
    result = jax.ShapeDtypeStruct(a.shape, a.dtype)
    return call("add_rows", (result,), a, b, valid, in_place=True)


def _gradients(call: Any, ct: Any, *arrays: Any, moves: tuple[int, ...]) -> None:
    """Return None: the sum has no native gradients, so JAX differentiates :func:`_portable`."""


_sum = differentiable_operator("voxax_add_rows", _value, _portable, _gradients)


def _pushed(primals: Any, tangents: Any) -> tuple[Any, Any]:
    outs = _branch_p.bind(*primals)
    if isinstance(tangents[0], _compat.Zero):
        return outs, [_compat.no_tangent(out) for out in outs]
    return outs, _branch_p.bind(tangents[0], primals[1])


def _pulled(cts: Any, x: Any, valid: Any) -> list[Any]:
    first, second = cts
    if isinstance(first, _compat.Zero):
        return [second, None]
    if isinstance(second, _compat.Zero):
        return [first, None]
    return [*_sum(first, second, valid), None]


def _batched(args: Any, dims: Any) -> tuple[Any, Any]:
    moved = [
        x if dim in (None, 0) else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    return jax.vmap(_twice, [None if dim is None else 0 for dim in dims])(*moved), (0, 0)


_branch_p = _compat.staged_primitive(
    "branch_rows",
    lambda platform, x, valid: _twice(x, valid),
    lambda x, valid: (x, x),
    many=True,
    eager=_twice,
)
_compat.set_rules(_branch_p, _pushed, _pulled, _batched)
