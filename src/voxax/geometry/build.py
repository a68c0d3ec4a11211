"""Get the kernel map of a convolution: attached by a plan, built by an earlier call, or new.

:func:`kernel_map` is the public function; layers call :func:`kernel_map_of`. Maps are built in
traceable JAX. Building a strided or generative map also finds its output voxels.
"""

from __future__ import annotations

import bisect
import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._fork import check_process
from voxax._native.eager import threads
from voxax._native.on_cpu import natively_on_cpu
from voxax.coords import (
    COORD_LIMIT,
    PAD,
    UniqueRows,
    find_neighbors,
    floor_divide,
    host,
    in_range,
    is_valid,
    unique_cells,
    unique_rows,
)
from voxax.coords.coarse import place_in_cell
from voxax.errors import InputError
from voxax.geometry.call_checks import axes_hint, checked_operator
from voxax.geometry.default_capacity import default_capacity
from voxax.geometry.eager import eagerly
from voxax.geometry.host import neighbor_table, reached_sites
from voxax.geometry.host_merge import merge_rows
from voxax.geometry.input_checks import check_candidates, check_capacity
from voxax.geometry.kernel_maps import KernelMap, invert_neighbors, note_cells
from voxax.geometry.kernel_spec import KernelShape, KernelSpec
from voxax.geometry.lost_rows import Level
from voxax.geometry.voxel_geometry import (
    AttachedMaps,
    Held,
    ShardMaps,
    VoxelGeometry,
    check_fit,
    check_overflow,
)
from voxax.geometry.voxels import Voxels, differing_rows

MAP_BUILT_EVENT = "/voxax/kernel_map/build"
"""Name of the ``jax.monitoring`` event that is recorded each time a kernel map is built."""


@checked_operator
def kernel_map(
    voxels: Voxels,
    kernel_size: int | Sequence[int] = 3,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    transposed: bool = False,
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    *,
    kernel_shape: KernelShape = "box",
    spatial_shape: int | Sequence[int] | None = None,
) -> KernelMap:
    """Return the kernel map of a convolution: the input row of each output row and kernel offset.

    If :func:`voxax.plan` attached the map to the voxels, the attached map is returned. Otherwise a
    map is built once and remembered, so later calls with the same voxels and arguments are fast.
    Arguments as in :func:`voxax.nn.functional.spatially_sparse_conv`.

    Raises:
      InputError, CapacityError: as in :func:`voxax.nn.functional.spatially_sparse_conv`.

    Examples:
      >>> kmap = vx.kernel_map(voxels, kernel_size=2, stride=2)
      >>> kmap.num_offsets, kmap.out_geometry.stride
      (8, (2, 2, 2))
    """
    spec = KernelSpec.make(
        voxels.geometry.ndim,
        kernel_size,
        stride,
        dilation,
        transposed,
        generative,
        kernel_shape=kernel_shape,
        spatial_shape=spatial_shape,
    )
    out = None if out_voxels is None else out_voxels.geometry
    return kernel_map_of(voxels.geometry, spec, out, capacity)


def kernel_map_of(
    geometry: VoxelGeometry,
    spec: KernelSpec,
    out_geometry: VoxelGeometry | None = None,
    capacity: int | None = None,
) -> KernelMap:
    """Return the kernel map of ``spec`` on ``geometry``; build it if no plan or call has built it.

    Args:
      geometry: the input voxels.
      spec: the kernel's taps and stride.
      out_geometry: the output voxels, if the caller gives them. None finds them from the spec.
      capacity: static number of rows of the output voxels, if they are found from the spec; see
        :func:`output_geometry`.

    Raises:
      InputError: ``spec`` or ``out_geometry`` does not match the axes, stride or batch size of
        ``geometry``; a transposed spec has no ``out_geometry``, or a generative one has one; or
        ``geometry`` is one shard of a split scene that has no such map attached.
      CapacityError: in an eager call, the new output voxels do not fit their capacity.
    """
    check_process()
    if spec.ndim != geometry.ndim:
        hint = axes_hint(spec.ndim, geometry.ndim)
        raise InputError(f"a {spec.ndim}-D kernel on {geometry.ndim}-D voxels{hint}")
    capacity = None if capacity is None else check_capacity(capacity)
    if out_geometry is not None:
        if spec.generative:
            raise InputError(
                "generative=True finds the output voxels, out_voxels= gives them: use one of them"
            )
        if out_geometry.ndim != geometry.ndim:
            raise InputError(
                f"out_voxels are {out_geometry.ndim}-D, the input is {geometry.ndim}-D"
                f"{axes_hint(out_geometry.ndim, geometry.ndim)}"
            )
        check_target_stride(geometry.stride, spec, out_geometry.stride)
    elif spec.keeps_coords:
        out_geometry = geometry
    if out_geometry is not None:
        capacity = None  # no new output set
        if out_geometry.same_as(geometry):
            out_geometry = geometry
    out_key = None if out_geometry is None else (Held(out_geometry.coords), out_geometry.stride)

    def attached_or_built() -> KernelMap:
        found = None
        if geometry.attached is not None:
            found = _attached_map(geometry.attached, geometry, spec, out_geometry, capacity)
        if found is None and geometry.split_over is not None:
            raise InputError(
                f"one shard of a scene split over {geometry.split_over!r} has no map of {spec} at "
                f"stride {geometry.stride}: neighbors on other shards could not be found here. "
                "Record the split with the function that is called (SceneSplit.record)"
            )
        return _build(geometry, spec, out_geometry, capacity) if found is None else found

    kernel_map = geometry.memo.get_or_build(
        (spec, out_key, capacity),
        (geometry.arrays, None if out_geometry is None else out_geometry.arrays),
        attached_or_built,
    )
    recorder = _recorder.get()
    if recorder is None:
        return kernel_map
    return recorder(MapRequest(geometry, spec, out_geometry, capacity), kernel_map)


def _attached_map(
    attached: AttachedMaps,
    geometry: VoxelGeometry,
    spec: KernelSpec,
    out_geometry: VoxelGeometry | None,
    capacity: int | None,
) -> KernelMap | None:
    """Return the kernel map of ``spec`` in ``attached``, the maps of a plan, or None if absent.

    The map must lead from ``geometry`` to ``out_geometry``; None accepts any output voxels. If
    ``capacity`` is given, the output must have exactly that many rows. For one shard of a split
    scene, ``capacity`` is ignored, because the split has set it.
    """
    # Only levels of this plan are known. The same level index in another plan means other voxels.
    other = None if out_geometry in (None, geometry) else out_geometry.attached
    is_known = out_geometry in (None, geometry) or attached.same_as(other)
    if not is_known and not (isinstance(attached, ShardMaps) and attached.may_be(other)):
        return None
    out_level = None if out_geometry is None else out_geometry.level
    for index, record in enumerate(attached.records):
        arrays = map(_compat.without_tangent, attached.views[index])
        views = dict(zip(record.views, arrays, strict=True))
        if record.in_level == geometry.level and record.spec == spec:
            if out_level not in (None, record.out_level):
                continue
            source = out = geometry.bare()
            if record.out_level != record.in_level:
                out = attached.levels[record.out_level - 1] if record.out_level else None
                out = out if out_geometry is None else out_geometry.bare()
            if out is None:
                continue
            if isinstance(attached, ShardMaps):
                if not is_known and other is not None:
                    # A shard cannot build the map again, so rows that differ count as lost.
                    pairs = zip(attached.views[index], other.views[index], strict=True)
                    numbers = [differing_rows(ours, theirs)[1] for ours, theirs in pairs]
                    lost = functools.reduce(jnp.maximum, numbers)
                    out = dataclasses.replace(out, drops=out.drops.add(out.stride, lost))
                source, halo = attached.sources[index], attached.halos[index]
                return KernelMap(source, out, spec, views, halo=halo, check=False)
            if capacity in (None, out.capacity):
                return KernelMap(source, out, spec, views, check=False)
        elif (
            out_geometry is not None
            and not isinstance(attached, ShardMaps)
            and record.spec.relation == spec.adjoint().relation
            and record.in_level == out_level
            and record.out_level == geometry.level
        ):
            ends = out_geometry.bare(), geometry.bare()
            return KernelMap(*ends, record.spec, views, check=False).transpose()
    return None


def result_geometry(
    kernel_map: KernelMap, geometry: VoxelGeometry, out_geometry: VoxelGeometry | None = None
) -> VoxelGeometry:
    """Return the geometry of a layer's output voxels, which the next layer reads.

    Its ``drops`` also count the rows that earlier layers lost because of a capacity. If the layer
    finds its output voxels by itself, and they are a level of the plan of ``geometry``, the kernel
    maps of this plan are attached to them too.

    Args:
      kernel_map: the map of the layer.
      geometry: the input of the layer.
      out_geometry: the output voxels that the caller gave; None takes those of the map.
    """
    if out_geometry is not None:
        out = out_geometry.with_drops_of(geometry)
        return out if kernel_map.halo is None else out.with_drops_of(kernel_map.out_geometry)
    kept = kernel_map.halo is not None and kernel_map.spec.keeps_coords
    if kept or kernel_map.out_geometry is kernel_map.in_geometry:
        return geometry
    out = kernel_map.out_geometry.with_drops_of(geometry)
    if out.level == 0:
        return out
    if geometry.attached is None:  # the map is of a plan that these voxels do not have
        return dataclasses.replace(out, level=0)
    return dataclasses.replace(out, attached=geometry.attached)


@dataclasses.dataclass(frozen=True, eq=False)
class MapRequest:
    """The arguments of a call of :func:`kernel_map_of`, as :func:`recording_maps` reports them."""

    geometry: VoxelGeometry
    spec: KernelSpec
    out_geometry: VoxelGeometry | None
    capacity: int | None


Recorder = Callable[[MapRequest, KernelMap], KernelMap]
_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar(
    "voxax_map_recorder", default=None
)


@contextlib.contextmanager
def recording_maps(recorder: Recorder) -> Iterator[None]:
    """Return a context in which ``recorder`` chooses the kernel map that each layer gets.

    In the context, :func:`kernel_map_of` returns ``recorder(request, kernel_map)``. ``request`` has
    the arguments of the call, and ``kernel_map`` is the map that was found or built for them.
    """
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
        if out_geometry.batch_size != geometry.batch_size:
            raise InputError(
                f"out_voxels hold {out_geometry.batch_size} scenes, the input "
                f"{geometry.batch_size}: both must be of one batch"
            )
        forward = None
        if spec.transposed:
            # If the forward map from these output voxels is known, read it backwards instead of
            # searching again.
            wanted = spec.adjoint().relation
            maps = (m for m in out_geometry.memo.values() if isinstance(m, KernelMap))
            known = (m for m in maps if m.spec.relation == wanted)
            here = _compat.origin(geometry.coords)
            forward = next((m for m in known if m.out_geometry.coords is here), None)
        if forward is not None:
            # The memo of this geometry refers to this map, so the map must not refer to the memo.
            return dataclasses.replace(forward.transpose(), in_geometry=bare, check=False)
        out = out_geometry.bare().with_drops_of(geometry)
    elif spec.transposed and not spec.generative:
        raise InputError(
            "a transposed convolution needs out_voxels= (the voxels to return to, usually a skip "
            "connection), or generative=True to create every site that a tap reaches"
        )
    else:
        out, place = output_geometry(geometry, spec, capacity)
        if spec.partitions and not spec.generative:
            jax.monitoring.record_event(MAP_BUILT_EVENT)
            table = _neighbors_of_cells(bare.coords, out.coords, place, spec)
            return note_cells(KernelMap(bare, out, spec, {"neighbors": table}, check=False))
    jax.monitoring.record_event(MAP_BUILT_EVENT)
    views = {"neighbors": _neighbors(bare.coords, out.coords, spec)}
    return KernelMap(bare, out, spec, views, check=False)


def _without_padding(coords: np.ndarray) -> np.ndarray:
    return coords[: bisect.bisect_left(coords[:, 0], PAD)]


def _neighbors_on_host(source: np.ndarray, out: np.ndarray, spec: KernelSpec) -> np.ndarray:
    rows, sites = _without_padding(source), _without_padding(out)
    return neighbor_table(rows, sites, spec, len(out), threads())


def _cells_on_host(coords: np.ndarray, stride: tuple[int, ...], capacity: int) -> UniqueRows:
    cells = host.coarsen(_without_padding(coords), stride)
    return merge_rows(host.pad_rows(cells, len(coords)), capacity)


_unique_cells = eagerly(_cells_on_host, native=True)(unique_cells)
_unique_rows = eagerly(merge_rows, native=True)(unique_rows)


# Jitted so that an eager call on an accelerator is one program instead of a hundred small ones.
@eagerly(_neighbors_on_host, native=True)
@functools.partial(jax.jit, static_argnames="spec")
def _neighbors(source: jax.Array, out: jax.Array, spec: KernelSpec) -> jax.Array:
    """Return ``int32[M, K]``, the input row of each output row under each of K kernel offsets.

    Entries are -1 where the input has no such voxel. ``source int32[N, 1 + D]`` are the input
    coordinates, and ``out int32[M, 1 + D]`` the output coordinates.
    """
    if not spec.transposed:
        return find_neighbors(source, *_scaled(out, spec), spec.dilated_offsets, ordered=True)
    # fine = coarse * stride + offset: look the inputs (coarse) up among the outputs (fine),
    # then read the table backwards.
    reached = find_neighbors(out, *_scaled(source, spec), spec.dilated_offsets, ordered=True)
    return invert_neighbors(reached, out.shape[0])


@eagerly(lambda source, out, place, spec: _neighbors_on_host(source, out, spec), native=True)
@functools.partial(jax.jit, static_argnames="spec")
def _neighbors_of_cells(
    source: jax.Array, out: jax.Array, place: jax.Array, spec: KernelSpec
) -> jax.Array:
    """Return the neighbor table ``int32[M, K]`` of a kernel as large as its stride.

    The K sites that an output voxel reads are a cell. Each input voxel is in one cell.

    Args:
      source: ``int32[N, 1 + D]``, coordinates of the input voxels.
      out: ``int32[M, 1 + D]``, coordinates of the output voxels.
      place: ``int32[N]``, the output row of each input's cell; -1 for padding and dropped cells.
      spec: a spec for which :attr:`KernelSpec.partitions` is True.
    """
    return _members(source, out, place, spec=spec)[0]


def _searched_members(
    source: jax.Array, out: jax.Array, place: jax.Array, spec: KernelSpec
) -> tuple[jax.Array]:
    del place
    return (_neighbors(source, out, spec),)


def _listed_members(
    source: jax.Array, out: jax.Array, place: jax.Array, spec: KernelSpec
) -> tuple[jax.Array]:
    """Return the result of :func:`_neighbors_of_cells` in a tuple, computed by a scatter."""
    tap = place_in_cell(source, spec.stride)
    empty = jnp.full((out.shape[0], spec.num_offsets), -1, jnp.int32)
    rows = jnp.arange(source.shape[0], dtype=jnp.int32)
    target = jnp.where(place < 0, out.shape[0] + rows, place)
    return (empty.at[target, tap].set(rows, mode="drop", unique_indices=True),)


# On CPUs the native search takes no longer, and TPUs scatter row after row.
_members = natively_on_cpu("members", _searched_members, _listed_members, _searched_members)


def _scaled(coarse: jax.Array, spec: KernelSpec) -> tuple[jax.Array, jax.Array]:
    """Return ``coarse int32[N, 1 + D]`` times the stride of ``spec``, and a mask ``bool[N]``.

    The mask tells which rows to look up. It is False for padding, and for rows so far outside the
    coordinate range that no tap leads back into the range: their product could overflow 32 bits.
    """
    if set(spec.stride) == {1}:  # rows inside the range stay within 32 bits
        return coarse, is_valid(coarse)
    reach = int(abs(spec.dilated_offsets).max())
    bound = jnp.asarray([(COORD_LIMIT + reach) // s + 1 for s in spec.stride], jnp.int32)
    near = is_valid(coarse) & jnp.all(jnp.abs(coarse[:, 1:]) <= bound[None, :], axis=1)
    return coarse * jnp.asarray([1, *spec.stride], jnp.int32)[None, :], near


def output_geometry(
    geometry: VoxelGeometry, spec: KernelSpec, capacity: int | None = None
) -> tuple[VoxelGeometry, jax.Array]:
    """Find the output voxels of a strided or generative convolution.

    ``capacity`` is the number of output rows. None takes the capacity that a plan chose for the
    output's stride. Without a plan, a strided convolution takes the capacity of the input, which
    always suffices. A generative one counts its output voxels, which works only in eager calls.

    Returns:
      The output geometry, and the output rows that the inputs lead to, -1 for none. For a strided
      spec these are ``int32[N]``, one for each of N input rows. For a generative spec they are
      ``int32[N * K]``, one for each input row and kernel offset, with the offsets fastest.

    Raises:
      CapacityError: in an eager call, more rows are needed than ``capacity``.
      InputError: a generative spec reaches more than 2**31 - 1 sites, or than fit into memory on a
        CPU; or it has no ``capacity`` under ``jax.jit``; or, in an eager call, it reaches sites
        outside the coordinate range.
    """
    stride = output_stride(geometry.stride, spec)
    if capacity is None:
        capacity = dict(geometry.level_capacities).get(stride)
    sites = outside = None
    if spec.generative:
        whole = spec.output_shape is None and (spec.transposed or set(spec.stride) == {1})
        if whole and capacity is not None and not _compat.is_traced(geometry.count):
            # A sum of two sets in a lattice has at least as many sites as both together, minus one.
            least = int(geometry.count) and int(geometry.count) + spec.num_offsets - 1
            check_fit(least, capacity, stride, at_least=True)
        sites, outside = _reached_sites(geometry.coords, spec)
        if not _compat.is_traced(outside) and int(outside):
            raise InputError(
                f"{int(outside)} sites that the map ({spec}) reaches have coordinates outside "
                "[-2**30, 2**30): shift the scene towards its own origin, or clip with "
                "spatial_shape="
            )
    if capacity is None and sites is not None:
        if _recorder.get() is not None:  # a plan counts each level by itself
            capacity = geometry.capacity
        elif _compat.is_traced(sites):
            raise InputError(
                f"a generative map ({spec}) under jax.jit needs capacity=: its number of output "
                "voxels depends on the data. vx.plan(model, voxels) counts them ahead"
            )
        else:
            full = _unique_rows(sites, sites.shape[0])
            capacity = default_capacity(int(full.count))
    capacity = geometry.capacity if capacity is None else capacity
    if sites is None:
        unique = _unique_cells(geometry.coords, spec.stride, capacity)
    else:
        unique = _unique_rows(sites, capacity)
    check_overflow(unique.count, unique.num_dropped, stride)
    lost = unique.num_dropped if outside is None else unique.num_dropped + outside
    out = VoxelGeometry(
        unique.coords,
        unique.count,
        geometry.drops.add(stride, lost),
        None,
        stride,
        geometry.batch_size,
        level_capacities=geometry.level_capacities,
    )
    return out, unique.inverse


def output_stride(stride: Level, spec: KernelSpec) -> Level:
    """Return the total stride of a layer's output, given its input's total ``stride``.

    A total stride is relative to the voxels of stride 1. ``spec`` is the kernel of the layer.

    Raises:
      InputError: ``spec`` is transposed, and its stride does not divide ``stride``.
    """
    if not spec.transposed:
        return tuple(a * b for a, b in zip(stride, spec.stride, strict=True))
    if any(a % b for a, b in zip(stride, spec.stride, strict=True)):
        raise InputError(
            f"a transposed map of stride {spec.stride} on voxels of stride {stride}: the result "
            "would lie on a finer lattice than the original voxels; voxels that start at a coarse "
            "level are made with Voxels.from_coords(..., stride=...)"
        )
    return tuple(a // b for a, b in zip(stride, spec.stride, strict=True))


def check_target_stride(stride: Level, spec: KernelSpec, given: Level) -> None:
    """Raise :class:`InputError` unless the output of a layer has the total stride ``given``.

    ``spec`` is the kernel of the layer, and ``stride`` the total stride of its input.
    """
    expected = output_stride(stride, spec)
    if given == expected:
        return
    way = "a transposed convolution" if spec.transposed else "a convolution"
    raise InputError(
        f"out_voxels have stride {given}, but {way} of stride {spec.stride} leads from voxels of "
        f"stride {stride} to stride {expected}: give the stride that joins the two, or make the "
        f"target with Voxels.from_coords(..., stride={expected})"
    )


@eagerly(reached_sites, native=True)
@functools.partial(jax.jit, static_argnames="spec")
def _reached_sites(coords: jax.Array, spec: KernelSpec) -> tuple[jax.Array, jax.Array]:
    """Return the results of :func:`voxax.geometry.host.reached_sites`, computed by JAX."""
    check_candidates(f"the map ({spec})", coords, spec.num_offsets)
    offsets = jnp.asarray(spec.dilated_offsets, jnp.int32)[None, :, :]
    scale = jnp.asarray(spec.stride, jnp.int32)
    rows, taps, width = coords.shape[0], spec.num_offsets, coords.shape[1]
    batch = jnp.broadcast_to(coords[:, None, :1], (rows, taps, 1))
    keep = jnp.broadcast_to(is_valid(coords)[:, None], (rows, taps))
    if spec.transposed:
        scaled, near = _scaled(coords, spec)
        sites = scaled[:, None, 1:] + offsets
        inside = near[:, None] & in_range(sites)
    else:
        shifted = coords[:, None, 1:] - offsets
        sites = floor_divide(shifted, spec.stride)
        keep &= jnp.all(shifted == sites * scale[None, None, :], axis=-1)
        inside = in_range(sites)
    if spec.output_shape is not None:
        bound = jnp.asarray(spec.output_shape, jnp.int32)[None, None, :]
        keep &= inside & jnp.all((sites >= 0) & (sites < bound), axis=-1)
    outside = jnp.sum(keep & ~inside, dtype=jnp.int32)
    sites = jnp.where((keep & inside)[..., None], jnp.concatenate([batch, sites], axis=-1), PAD)
    return sites.reshape(-1, width), outside
