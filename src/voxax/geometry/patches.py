"""Patches: groups of a fixed number of voxel rows, for attention inside each group.

The rows of a patch belong to one scene. The number of patches is static, so some may be empty.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from voxax.coords import is_valid
from voxax.errors import InputError, check_known
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.halo import refuse_shard
from voxax.geometry.order import CurveOrder
from voxax.geometry.voxels import Voxels

Fill = Literal["overlap", "cycle", "short"]


class Patches(NamedTuple):
    """P patches of L voxel rows each, the result of :func:`cut_patches`.

    Attributes:
      rows: ``int32[P, L]``, the voxel row in each slot of each patch, -1 in empty slots. Empty
        slots come last in their patch.
      place: ``int32[capacity]``, for each voxel row, the index ``patch * L + slot`` of the slot
        from which the row takes its attention result; -1 for padding. If the row is in other slots
        too, it only serves as key and value there.
    """

    rows: jax.Array
    place: jax.Array


@checked_operator
def cut_patches(
    voxels: Voxels, length: int, order: CurveOrder | None = None, *, fill: Fill = "overlap"
) -> Patches:
    """Cut each scene into patches of ``length`` consecutive rows.

    Args:
      voxels: the voxels; only their coordinates are read.
      length: number of rows of a patch, L; static.
      order: an order of the rows from :func:`voxax.curve_order`; None takes the rows as they are.
      fill: what fills the free slots of a scene's last patch. ``"overlap"``: the rows in the same
        slots of the previous patch; the only patch of a scene with fewer than L rows keeps empty
        slots. ``"cycle"``: the same, but a scene with fewer than L rows repeats its rows until the
        patch is full. ``"short"``: nothing, free slots stay empty.

    Returns:
      :class:`Patches`. The number of patches P is ``(capacity + batch_size * (L - 1)) // L``, and
      at most the capacity.

    Raises:
      InputError: the length is below 1 or above 2**20, the fill is unknown, or the voxels are one
        shard of a scene.
    """
    check_length("patch length", length)
    check_known("fill", fill, get_args(Fill))
    refuse_shard(voxels, "cutting a scene into patches")
    return _cut(voxels.coords, order, batch_size=voxels.batch_size, length=int(length), fill=fill)


LONGEST = 1 << 20  # a patch of this many rows has 10^12 logits


def check_length(name: str, length: int) -> None:
    """Raise :class:`InputError` about ``name`` unless ``length`` is an integer from 1 to 2**20."""
    whole = hasattr(length, "__index__") and not isinstance(length, bool)
    if not whole or not 1 <= length <= LONGEST:
        raise InputError(f"{name} {length!r} must be an integer from 1 to {LONGEST}")


def number_of_patches(capacity: int, batch_size: int, length: int) -> int:
    """Return how many patches suffice for ``batch_size`` scenes with ``capacity`` rows together."""
    return max(1, min(capacity, (capacity + batch_size * (length - 1)) // length))


@functools.partial(jax.jit, static_argnames=("batch_size", "length", "fill"))
def _cut(
    coords: jax.Array, order: CurveOrder | None, batch_size: int, length: int, fill: Fill
) -> Patches:
    capacity = coords.shape[0]
    scenes = jnp.arange(batch_size + 1, dtype=jnp.int32)
    # Rows are sorted by scene, padding last.
    start = jnp.searchsorted(coords[:, 0], scenes).astype(jnp.int32)
    number = start[1:] - start[:-1]
    first = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(-(-number // length))])
    first = first.astype(jnp.int32)  # patch of each scene; the last entry is their number

    total = number_of_patches(capacity, batch_size, length)
    patch = jnp.arange(total, dtype=jnp.int32)
    scene = jnp.searchsorted(first[1:], patch, side="right").astype(jnp.int32)
    exists = scene < batch_size
    scene = jnp.minimum(scene, batch_size - 1)
    own = (patch - first[scene])[:, None]  # the patch's number in its scene
    slot = jnp.arange(length, dtype=jnp.int32)[None, :]
    rows_here = number[scene][:, None]
    at = own * length + slot
    spare = at >= rows_here
    filled = ~spare
    if fill != "short":
        at = jnp.where(spare & (own > 0), at - length, at)
        filled = filled | (own > 0)
    if fill == "cycle":
        at = jnp.where(spare & (own == 0), slot % jnp.maximum(rows_here, 1), at)
        filled = filled | (rows_here > 0)
    source = jnp.clip(start[scene][:, None] + at, 0, capacity - 1)
    rows = source if order is None else order.order[source]
    rows = jnp.where(filled & exists[:, None], rows, -1)

    position = jnp.arange(capacity, dtype=jnp.int32) if order is None else order.inverse
    mine = jnp.minimum(coords[:, 0], batch_size - 1)
    place = first[mine] * length + position - start[mine]
    return Patches(rows, jnp.where(is_valid(coords), place, -1))
