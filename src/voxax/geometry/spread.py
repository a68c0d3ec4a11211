"""Growing a set of voxels by sites that each voxel chooses for itself."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from voxax.coords import COORD_LIMIT, PAD
from voxax.errors import InputError
from voxax.geometry.grow import candidates
from voxax.geometry.regroup import (
    gather_rows,
    new_geometry,
    refuse_lost_sites,
    source_rows,
    unique_sites,
)
from voxax.geometry.voxels import Voxels

Taps = tuple[tuple[int, ...], ...]


def spread(
    voxels: Voxels, offsets: Taps, keep: jax.Array, *, capacity: int | None = None
) -> Voxels:
    """Add the sites ``site + offsets[k]`` of every voxel and tap with ``keep[row, k]``.

    Args:
      voxels: the voxels; all are kept.
      offsets: static, K tuples of D integers.
      keep: ``bool[voxels.capacity, K]``; what it says of padding rows does not matter.
      capacity: static rows; None buckets eagerly, and takes K + 1 times the input's capacity under
        ``jax.jit``, which always suffices and is mostly far too much.

    Returns:
      Voxels with the old features, zero at the new sites.

    Raises:
      InputError: a mask of another shape or dtype; eager: sites outside the coordinate range.
      CapacityError: eager, and the voxels do not fit ``capacity``. Traced, lost sites are counted
        in ``num_dropped``; those outside the coordinate range once for every tap.
    """
    if keep.shape != (voxels.capacity, len(offsets)) or keep.dtype != bool:
        raise InputError(
            f"keep must be bool[{voxels.capacity}, {len(offsets)}], one for each row and offset, "
            f"got {keep.dtype}{list(keep.shape)}"
        )
    source = voxels.geometry
    sites, lost = _chosen(source.coords, keep, ((0,) * source.ndim, *offsets))
    refuse_lost_sites(lost, f"growing by up to {len(offsets)} offsets")
    found = unique_sites(sites, capacity)
    # The first candidates are the voxels themselves.
    rows = source_rows(found.inverse[: voxels.capacity], len(found.coords))
    geometry = new_geometry(found, [source], lost=lost)
    return dataclasses.replace(
        voxels, geometry=geometry, features=gather_rows(voxels.features, rows)
    )


@functools.partial(jax.jit, static_argnames="taps")
def _chosen(coords: jax.Array, keep: jax.Array, taps: Taps) -> tuple[jax.Array, jax.Array]:
    """Rows of the voxels and of the sites that they chose, and how many lie out of range."""
    cells = coords[None, :, 1:] + jnp.asarray(taps, jnp.int32)[:, None, :]
    inside = jnp.all((cells >= -COORD_LIMIT) & (cells < COORD_LIMIT), axis=-1)
    chosen = jnp.concatenate([jnp.ones_like(keep[:, :1]), keep], axis=1).T
    rows, lost = candidates(coords, cells, inside | ~chosen)
    return jnp.where(chosen.reshape(-1)[:, None], rows, PAD), lost
