"""Building kernel maps and the coordinates they lead to, in traceable JAX."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax
import jax.monitoring
import jax.numpy as jnp

from voxax import _compat
from voxax.coords import bucket_capacity, coarsen, find_neighbors, is_valid, unique_rows
from voxax.coords.constants import PAD
from voxax.errors import CapacityError, InputError
from voxax.geometry.kernel_map import KernelMap
from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.views import invert_neighbors
from voxax.geometry.voxel_geometry import Level, VoxelGeometry

MAP_BUILT_EVENT = "/voxax/kernel_map/build"
"""``jax.monitoring`` event recorded each time a map is built (once per geometry and map)."""


def kernel_map_of(
    geometry: VoxelGeometry,
    spec: KernelSpec,
    out_geometry: VoxelGeometry | None = None,
    capacity: int | None = None,
) -> KernelMap:
    """The map of ``spec`` on ``geometry``: attached, remembered in this trace, or built now.

    Args:
      geometry: input voxels.
      spec: the relation.
      out_geometry: output voxels where the spec does not determine them.
      capacity: static rows of a new output set; see :func:`output_geometry`.

    Raises:
      InputError: the spec needs ``out_geometry``, or its axes do not match.
      CapacityError: eager, and the new output set does not fit.
    """
    if spec.ndim != geometry.ndim:
        raise InputError(f"a {spec.ndim}-D kernel on {geometry.ndim}-D voxels")
    if spec.keeps_coords and out_geometry is None:
        out_geometry = geometry
    if out_geometry is not None and out_geometry.same_as(geometry):
        # Also for the memo: only arrays that a remembered map holds have a lasting id.
        out_geometry = geometry
    out_key = None if out_geometry is None else (id(out_geometry.coords), out_geometry.stride)

    def attached_or_built() -> KernelMap:
        found = None
        if geometry.attached is not None and capacity is None:
            found = geometry.attached.find(geometry, spec, out_geometry)
        return _build(geometry, spec, out_geometry, capacity) if found is None else found

    kernel_map = geometry.memo.get_or_build(
        (spec, out_key, capacity),
        (geometry.arrays, None if out_geometry is None else out_geometry.arrays),
        attached_or_built,
    )
    recorder = _recorder.get()
    if recorder is not None:
        recorder(geometry, spec, kernel_map)
    return kernel_map


def result_geometry(
    kernel_map: KernelMap, geometry: VoxelGeometry, out_geometry: VoxelGeometry | None = None
) -> VoxelGeometry:
    """The geometry a layer hands on: the map's output, with maps and loss counters kept."""
    if out_geometry is not None:
        return out_geometry.with_drops_of(geometry)
    if kernel_map.out_geometry is kernel_map.in_geometry:
        return geometry
    out = kernel_map.out_geometry.with_drops_of(geometry)
    if geometry.attached is not None and out.level > 0:
        return dataclasses.replace(out, attached=geometry.attached)
    return out


Recorder = Callable[[VoxelGeometry, KernelSpec, KernelMap], None]
_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar(
    "voxax_map_recorder", default=None
)


@contextlib.contextmanager
def recording_maps(recorder: Recorder) -> Iterator[None]:
    """Call ``recorder(geometry, spec, kernel_map)`` for every map asked for inside."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def _build(
    geometry: VoxelGeometry,
    spec: KernelSpec,
    out_geometry: VoxelGeometry | None,
    capacity: int | None,
) -> KernelMap:
    bare = geometry.bare()
    if out_geometry is geometry:
        out = bare
    elif out_geometry is not None:
        if out_geometry.ndim != geometry.ndim:
            raise InputError(
                f"out_voxels are {out_geometry.ndim}-D, the input is {geometry.ndim}-D"
            )
        if out_geometry.batch_size != geometry.batch_size:
            raise InputError(
                f"out_voxels hold {out_geometry.batch_size} scenes, the input "
                f"{geometry.batch_size}: both must be of one batch"
            )
        forward = None
        if spec.transposed:
            # A transposed map onto the voxels that the forward map came from: read that
            # one backwards instead of searching again.
            known = (m for m in out_geometry.memo.values() if m.spec == spec.adjoint())
            forward = next((m for m in known if m.out_geometry.coords is geometry.coords), None)
        if forward is not None:
            return forward.transpose()
        out = out_geometry.bare().with_drops_of(geometry)
    elif spec.transposed and not spec.generative:
        raise InputError(
            "a transposed convolution needs out_voxels= (the voxels to return to, usually a skip "
            "connection), or generative=True to create every site that a tap reaches"
        )
    else:
        out = output_geometry(geometry, spec, capacity)
    jax.monitoring.record_event(MAP_BUILT_EVENT)
    return KernelMap(bare, out, spec, {"neighbors": _neighbors(bare.coords, out.coords, spec)})


# Jitted so that an eager call is one program instead of a hundred small ones.
@functools.partial(jax.jit, static_argnames="spec")
def _neighbors(source: jax.Array, out: jax.Array, spec: KernelSpec) -> jax.Array:
    """``int32[out_capacity, K]`` from the coordinates of both sides."""
    offsets = spec.dilated_offsets
    scale = jnp.asarray([1, *spec.stride], jnp.int32)[None, :]
    if not spec.transposed:
        return find_neighbors(source, out * scale, is_valid(out), offsets)
    # fine = coarse * stride + offset: look the inputs (coarse) up among the outputs (fine),
    # then read the table backwards.
    reached = find_neighbors(out, source * scale, is_valid(source), offsets)
    return invert_neighbors(reached, out.shape[0])


def output_geometry(
    geometry: VoxelGeometry, spec: KernelSpec, capacity: int | None = None
) -> VoxelGeometry:
    """The voxels that a strided or generative spec leads to.

    ``capacity=None`` takes the level's planned capacity, else the input's capacity for
    strided maps (which always suffices); generative maps are counted eagerly and need
    ``capacity=`` under ``jax.jit``.

    Raises:
      CapacityError: eager, and more rows are needed than ``capacity``.
      InputError: a traced generative map without ``capacity``.
    """
    stride = _output_stride(geometry.stride, spec)
    if capacity is None:
        capacity = dict(geometry.level_capacities).get(stride)
    sites = (
        _reached_sites(geometry, spec) if spec.generative else coarsen(geometry.coords, spec.stride)
    )
    if capacity is None and spec.generative:
        if _compat.is_traced(geometry.coords):
            raise InputError(
                f"a generative map ({spec}) under jax.jit needs capacity=: its number of output "
                "voxels depends on the data"
            )
        full = unique_rows(sites, sites.shape[0])
        capacity = bucket_capacity(int(full.count))
    unique = unique_rows(sites, geometry.capacity if capacity is None else capacity)
    check_overflow(unique.count, unique.num_dropped, stride)
    return VoxelGeometry(
        unique.coords,
        unique.count,
        {**geometry.drops, stride: geometry.drops.get(stride, 0) + unique.num_dropped},
        None,
        stride,
        geometry.batch_size,
        -1,
        geometry.level_capacities,
    )


def check_overflow(count: jax.Array, num_dropped: jax.Array, level: Level) -> None:
    """Raise :class:`CapacityError` when rows were lost and that can be known (eagerly)."""
    if _compat.is_traced(num_dropped) or not int(num_dropped):
        return
    given, needed = int(count), int(count) + int(num_dropped)
    raise CapacityError(
        f"{needed} voxels at the level of stride {level} do not fit into capacity {given}: "
        f"give capacity={bucket_capacity(needed)} (vx.bucket_capacity({needed})) or more"
    )


def _output_stride(stride: Level, spec: KernelSpec) -> Level:
    if not spec.transposed:
        return tuple(a * b for a, b in zip(stride, spec.stride, strict=True))
    if any(a % b for a, b in zip(stride, spec.stride, strict=True)):
        raise InputError(
            f"a transposed map of stride {spec.stride} on voxels of stride {stride}: the result "
            "would lie on a finer lattice than the original voxels"
        )
    return tuple(a // b for a, b in zip(stride, spec.stride, strict=True))


def _reached_sites(geometry: VoxelGeometry, spec: KernelSpec) -> jax.Array:
    """``int32[N * K, 1 + D]``: every candidate output site, unsorted, with padding."""
    offsets = jnp.asarray(spec.dilated_offsets, jnp.int32)
    coords, scale = geometry.coords, jnp.asarray(spec.stride, jnp.int32)
    batch = jnp.broadcast_to(coords[:, None, :1], (coords.shape[0], len(offsets), 1))
    if spec.transposed:
        sites = coords[:, None, 1:] * scale[None, None, :] + offsets[None, :, :]
        keep = is_valid(coords)[:, None]
    else:
        shifted = coords[:, None, 1:] - offsets[None, :, :]
        sites = jnp.floor_divide(shifted, scale[None, None, :])
        keep = is_valid(coords)[:, None] & jnp.all(shifted == sites * scale[None, None, :], axis=-1)
    rows = jnp.concatenate([batch, sites], axis=-1)
    return jnp.where(keep[..., None], rows, PAD).reshape(-1, coords.shape[1])
