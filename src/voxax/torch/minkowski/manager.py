"""Coordinate managers, which store the sites (voxels) of tensors by key, and the kernel maps."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from voxax.torch.core.errors import ArgumentError, check_cpu
from voxax.torch.core.kernel_map import KernelMap, distinct_rows, onto_map, unique_rows
from voxax.torch.core.sites import Sites
from voxax.torch.core.uncompiled import untransformed
from voxax.torch.minkowski.arguments import convert_to_int_list, positive
from voxax.torch.minkowski.constants import (
    CoordinateMapType,
    GPUMemoryAllocatorType,
    MinkowskiAlgorithm,
    RegionType,
    SparseTensorOperationMode,
)
from voxax.torch.minkowski.kernel_generator import Kernel, kernel_of
from voxax.torch.minkowski.reduction import grouped

Maps = tuple[torch.Tensor, torch.Tensor]
Name = tuple[tuple[int, ...], str]


class CoordinateMapKey:
    """Key of a set of sites in a coordinate manager: a tensor stride and a string.

    Args:
      size: the tensor stride, D integers; or the number 1 + D for a key that is set later.
      string_id: text that distinguishes keys of the same tensor stride.
    """

    __slots__ = ("_name", "_size")

    def __init__(self, size: int | Sequence[int], string_id: str = "") -> None:
        self._name: Name | None = None
        self._size = size if isinstance(size, int) else len(size) + 1
        if not isinstance(size, int):
            self.set_key(size, string_id)

    def is_key_set(self) -> bool:
        """Return True if the tensor stride and the string are set."""
        return self._name is not None

    def get_coordinate_size(self) -> int:
        """Return 1 + D: the number of columns of coordinates, with the batch index."""
        return self._size

    def set_key(self, tensor_stride: Any, string_id: str | None = None) -> None:
        """Set the tensor stride and the string, given as two arguments or as one pair."""
        if string_id is None:
            tensor_stride, string_id = tensor_stride
        if len(tensor_stride) != self._size - 1:
            raise ArgumentError(
                f"tensor stride {list(tensor_stride)} in a key of {self._size - 1} axes"
            )
        self._name = tuple(int(step) for step in tensor_stride), str(string_id)

    @property
    def name(self) -> Name:
        """The tensor stride and the string as a tuple; raises ArgumentError if they are not set."""
        if self._name is None:
            raise ArgumentError("this coordinate map key is not set: no layer has filled it yet")
        return self._name

    def get_key(self) -> tuple[list[int], str]:
        """Return the tensor stride as a list, and the string."""
        return list(self.name[0]), self.name[1]

    def get_tensor_stride(self) -> list[int]:
        """Return the tensor stride as a list of D integers."""
        return list(self.name[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CoordinateMapKey):
            return NotImplemented
        return self._name is not None and self._name == other._name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        stride, string_id = self.get_key()
        return f"coordinate map key:{stride}" + (f":{string_id}" if string_id else "")


Key = CoordinateMapKey


class CoordinateManager:
    """Store of sites (voxels) by key, and of the kernel maps between the sites of two keys.

    Each kernel map is built once. Sites that a caller inserts are in the order of their first rows.
    Sites that layers make are in lexicographic order, but those of generative layers are in the
    order of their inputs. Pickles and copies have no kernel maps. In all methods, a stride is one
    integer for all axes, or one per axis.

    Args:
      D: number of spatial axes.
      coordinate_map_type: ``CoordinateMapType.CPU`` or None.
      num_threads, allocator_type, minkowski_algorithm: without effect; PyTorch's threads are used.

    Raises:
      ArgumentError: D is below 1, or coordinates are on a GPU. All methods raise this error for
        unknown keys, and for tensors of a wrong shape or dtype.
    """

    def __init__(
        self,
        D: int = 0,
        num_threads: int = -1,
        coordinate_map_type: CoordinateMapType | None = None,
        allocator_type: GPUMemoryAllocatorType | None = None,
        minkowski_algorithm: MinkowskiAlgorithm | None = None,
    ) -> None:
        if D < 1:
            raise ArgumentError(f"D={D}: give the number of spatial axes, 1 or more")
        if coordinate_map_type is CoordinateMapType.CUDA:
            raise ArgumentError("coordinates on a GPU: voxax.torch runs on the CPU")
        self.D = D
        self.minkowski_algorithm = minkowski_algorithm or MinkowskiAlgorithm.DEFAULT
        self._sites: dict[Name, Sites] = {}
        self._fields: dict[Name, torch.Tensor] = {}
        self._field_maps: dict[tuple[Name, Name], Maps] = {}
        self._scenes = np.empty(0, np.int64)
        self._maps: dict[tuple[Any, ...], Any] = {}
        self._count = itertools.count()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}

    # Keys and coordinates.

    @untransformed
    def insert_and_map(
        self, coordinates: torch.Tensor, tensor_stride: Any = 1, string_id: str = ""
    ) -> tuple[Key, Maps]:
        """Insert the distinct rows of ``coordinates int32[N, 1 + D]`` as a new set of M sites.

        Returns:
          The key of the sites, and a pair: the first row of each site, ``int64[M]``, and the site
            of each row, ``int64[N]``. ``string_id`` gets a suffix if the key exists already.
        """
        stride = convert_to_int_list(tensor_stride, self.D)
        rows = _checked_rows(coordinates, self.D)
        first, places = distinct_rows(unique_rows(rows))
        key = self._insert(rows[first], stride, string_id)
        return key, (torch.from_numpy(first), torch.from_numpy(places).long())

    def insert_field(
        self, coordinates: torch.Tensor, tensor_stride: Any, string_id: str = ""
    ) -> Key:
        """Insert points ``[N, 1 + D]``, batch index first, and return their key.

        The key has the given tensor stride and ``string_id``, with a suffix if it exists already.
        """
        stride = convert_to_int_list(tensor_stride, self.D)
        points = _checked_shape(coordinates, self.D).detach().float()
        if points.numel() and not bool(points.abs().max() < 2**31):
            raise ArgumentError("points whose coordinates are not finite, or beyond 32 bits")
        scenes = np.rint(points[:, 0].numpy()).astype(np.int64)
        _check_scenes(scenes)
        name = self._free_name(self._fields, stride, string_id)
        self._fields[name] = points
        self._scenes = np.union1d(self._scenes, scenes)
        return Key(*name)

    @untransformed
    def field_to_sparse_insert_and_map(
        self, field_map_key: Key, sparse_tensor_stride: Any, sparse_tensor_string_id: str = ""
    ) -> tuple[Key, Maps]:
        """Insert the M sites that contain the N points of a field.

        The last two arguments are the tensor stride and the string of the key of the sites.

        Returns:
          The key of the sites, and a pair: the first point of each site, ``int64[M]``, and the site
            of each point, ``int64[N]``.
        """
        stride = positive("tensor_stride", sparse_tensor_stride, self.D)
        rows = torch.from_numpy(_floored(self._field(field_map_key).numpy(), stride))
        key, maps = self.insert_and_map(rows, stride, sparse_tensor_string_id)
        self._field_maps[field_map_key.name, key.name] = maps
        return key, maps

    def exists_field_to_sparse(self, field_map_key: Key, sparse_map_key: Key) -> bool:
        """Return whether the manager has stored a map from a field's points to a key's sites."""
        return (field_map_key.name, sparse_map_key.name) in self._field_maps

    def field_to_sparse_keys(self, field_map_key: Key) -> list[Key]:
        """Return the keys of all sites to which a map from a field's points is stored."""
        return [Key(*to) for field, to in self._field_maps if field == field_map_key.name]

    def get_field_to_sparse_map(self, field_map_key: Key, sparse_map_key: Key) -> Maps:
        """Return the maps that :meth:`field_to_sparse_insert_and_map` stored for two keys.

        They are the first point of each site, ``int64[M]``, and the site of each point,
        ``int64[N]``.
        """
        if not self.exists_field_to_sparse(field_map_key, sparse_map_key):
            raise ArgumentError(f"no map from the points of {field_map_key} to {sparse_map_key}")
        return self._field_maps[field_map_key.name, sparse_map_key.name]

    @untransformed
    def field_to_sparse_map(self, field_map_key: Key, sparse_map_key: Key) -> Maps:
        """Return pairs ``(int32[n] site, int32[n] point)`` of the n points that lie in a site.

        A pair has the row of the site and the row of the point. Points outside all sites are left
        out.
        """
        stride = sparse_map_key.get_tensor_stride()
        rows = _floored(self._field(field_map_key).numpy(), stride)
        found = _find(self._at(sparse_map_key), rows)
        inside = torch.nonzero(found >= 0).flatten()
        return found[inside].int(), inside.int()

    def stride(self, coordinate_map_key: Key, stride: Any, string_id: str = "") -> Key:
        """Return the key of the coarser sites that contain a key's sites; make them if needed.

        The tensor stride of the coarser sites is that of the key, times ``stride``. Their string is
        ``string_id``, or that of the key if ``string_id`` is empty.
        """
        steps = positive("stride", stride, self.D)
        fine = coordinate_map_key.name
        name = tuple(np.multiply(fine[0], steps).tolist()), string_id or fine[1]
        if name not in self._sites:
            rows = _floored(self._at(coordinate_map_key).rows, name[0])
            self._keep(name, unique_rows(rows)[0])
        return Key(*name)

    def origin(self) -> Key:
        """Return the key of the scenes: one site at 0 for each batch index, in ascending order.

        Batch indices that are inserted after the first call get no such site.
        """
        key = Key([0] * self.D)
        if key.name not in self._sites:
            if not (self._sites or self._fields):
                raise ArgumentError("a manager without coordinates has no scenes")
            rows = np.zeros((len(self._scenes), self.D + 1), np.int32)
            rows[:, 0] = self._scenes
            self._keep(key.name, rows)
        return key

    origin_field = origin

    def size(self, coordinate_map_key: Key) -> int:
        """Return the number of sites or points of a key."""
        sites = self._sites.get(coordinate_map_key.name)
        return len(self._field(coordinate_map_key) if sites is None else sites.rows)

    def get_coordinates(self, coords_key_or_tensor_strides: Any) -> torch.Tensor:
        """Return a copy of a key's sites, ``int32[N, 1 + D]``.

        The argument is a key, or a tensor stride, which means the first key with that stride.
        """
        key = self._get_coordinate_map_key(coords_key_or_tensor_strides)
        return torch.from_numpy(self._at(key).rows.copy())

    def get_coordinate_field(self, coords_key_or_tensor_strides: Any) -> torch.Tensor:
        """Return a copy of a key's points, ``float32[N, 1 + D]``.

        The argument must be a key; a tensor stride is not accepted.
        """
        return self._field(coords_key_or_tensor_strides).clone()

    def number_of_unique_batch_indices(self) -> int:
        """Return the number of scenes, which is the number of sites of :meth:`origin`."""
        return self.size(self.origin())

    def get_unique_coordinate_map_key(self, tensor_stride: Any) -> tuple[list[int], str]:
        """Return the tensor stride, as a list, and a string that together make an unused key."""
        stride = convert_to_int_list(tensor_stride, self.D)
        return stride, self._free_name(self._sites, stride, "", True)[1]

    def _get_coordinate_map_key(self, key_or_tensor_strides: Any) -> Key:
        if isinstance(key_or_tensor_strides, Key):
            return key_or_tensor_strides
        stride = tuple(convert_to_int_list(key_or_tensor_strides, self.D))
        for name in self._sites:
            if name[0] == stride:
                return Key(*name)
        raise ArgumentError(f"no sites of tensor stride {list(stride)} in this manager")

    # Maps.

    def kernel_map(
        self,
        in_key: Any,
        out_key: Any,
        stride: Any = 1,
        kernel_size: Any = 3,
        dilation: Any = 1,
        region_type: RegionType = RegionType.HYPER_CUBE,
        region_offset: torch.Tensor | None = None,
        is_transpose: bool = False,
        is_pool: bool = False,
    ) -> dict[int, torch.Tensor]:
        """Return a kernel map as a dict from the index of a tap to its pairs, ``int32[2, n]``.

        Row 0 of the pairs is input rows, row 1 is output rows. A tap without pairs is left out.
        ``in_key`` and ``out_key`` are keys or tensor strides. The sizes and region are as in
        :class:`KernelGenerator`. ``is_transpose`` and ``is_pool`` are ``transposed`` and ``pooled``
        of :meth:`relation`.
        """
        size, steps = (positive("sizes", v, self.D) for v in (kernel_size, stride))
        spread = positive("dilation", dilation, self.D)
        kernel = kernel_of(size, steps, spread, region_type, region_offset)
        source, target = (self._get_coordinate_map_key(key) for key in (in_key, out_key))
        found = self.relation(source, target, kernel, is_transpose, is_pool)
        return {tap: torch.stack([ins, outs]).int() for outs, ins, tap in found.by_tap()}

    def get_kernel_map(self, *args: Any, **named: Any) -> dict[int, torch.Tensor]:
        """Return the result of :meth:`kernel_map`, and warn that this method is its older name."""
        warnings.warn("get_kernel_map is the older name of kernel_map", stacklevel=2)
        return self.kernel_map(*args, **named)

    @untransformed
    def relation(
        self,
        in_key: Key,
        out_key: Key,
        kernel: Kernel,
        transposed: bool = False,
        pooled: bool = False,
        expand: bool = False,
    ) -> KernelMap:
        """Return a layer's kernel map. If ``out_key`` is not set, set it to the output sites.

        Args:
          in_key, out_key, kernel: key of the input sites, key of the output sites, and the kernel.
          transposed: whether the layer goes from coarse to fine sites.
          pooled: whether the layer is a pooling. If kernel size and stride are equal too, a coarse
            site is connected with all fine sites inside it.
          expand: whether outputs are at all sites that read an input through a tap.
        """
        if len(kernel.size) != self.D:
            raise ArgumentError(f"a {len(kernel.size)}-D kernel on coordinates of {self.D} axes")
        if not out_key.is_key_set():
            out_key.set_key(self._reached(in_key, kernel, transposed, expand))
        windows = pooled and kernel.is_window
        name = in_key.name, out_key.name, kernel, transposed, windows
        if name not in self._maps:
            if transposed:
                found = self.relation(out_key, in_key, kernel, False, pooled).transpose()
            elif windows:
                found = grouped(self._coarse_rows(in_key, out_key), self.size(out_key))
            else:
                source, target = self._at(in_key), self._at(out_key)
                offsets = kernel.offsets(in_key.name[0])
                found = source.kept(offsets) if source is target else source.onto(target, offsets)
            self._maps[name] = found
        return self._maps[name]

    def _reached(self, key: Key, kernel: Kernel, transposed: bool, expand: bool) -> Name:
        """Return the name of a layer's output sites: their tensor stride and string.

        ``key`` is that of the input sites, and ``kernel`` that of the layer. Sites that the manager
        does not have yet are added to it. If ``expand``, the output sites are all multiples of the
        output's stride that the kernel reaches from the input.
        """
        if not (transposed or expand):
            return self.stride(key, kernel.stride).name
        stride = key.get_tensor_stride()
        if transposed:
            if any(wide % step for wide, step in zip(stride, kernel.stride, strict=True)):
                raise ArgumentError(
                    f"a transposed layer of stride {list(kernel.stride)} on sites of tensor stride "
                    f"{stride}: it divides that"
                )
            out = [wide // step for wide, step in zip(stride, kernel.stride, strict=True)]
            name = tuple(out), ""
            if name in self._sites and not expand:
                return name
            kernel_map, grown = self._at(key).expanded(kernel.offsets(out))
            name = self._insert(grown.rows, out, "").name
            self._maps[key.name, name, kernel, True, False] = kernel_map
            return name
        out = np.multiply(stride, kernel.stride)
        rows = self._at(key).expanded(kernel.offsets(stride))[1].rows
        rows = rows[(rows[:, 1:] % out == 0).all(1)]
        return self._insert(unique_rows(rows)[0], out.tolist(), "").name

    def prune(self, key: Key, kept: np.ndarray) -> Key:
        """Insert the sites of ``key`` where ``kept bool[N]`` is True, and return their key."""
        return self._insert(self._at(key).rows[kept], key.name[0], "pruned")

    def stride_map(self, in_key: Key, stride_key: Key) -> Maps:
        """Return for each of N fine sites its row, and the row of the coarse site that contains it.

        Both are ``int64[N]``. ``in_key`` is the key of the fine sites, and ``stride_key`` that of
        the coarse sites.
        """
        places = self._coarse_rows(in_key, stride_key)
        return torch.arange(len(places)), places

    @untransformed
    def _coarse_rows(self, fine: Key, coarse: Key) -> torch.Tensor:
        places = _find(self._at(coarse), _floored(self._at(fine).rows, coarse.name[0]))
        if bool((places < 0).any()):
            row = self._at(fine).rows[int(torch.nonzero(places < 0)[0])].tolist()
            raise ArgumentError(f"site {row} of {fine} lies in none of {coarse}")
        return places

    def origin_map(self, key: Key) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the B batch indices, ``int64[B]``, and a list with the rows of each scene.

        The rows are those of the sites or points of ``key``. The list has one ``int64[n]`` tensor
        per batch index from 0 to the largest.
        """
        places = self.scene_rows(key)
        indices = torch.from_numpy(self._at(self.origin()).rows[:, 0].astype(np.int64))
        scenes = range(int(indices.max()) + 1 if len(indices) else 0)
        rows = [torch.empty(0, dtype=torch.int64) for _ in scenes]
        order = torch.argsort(places, stable=True)
        counts = torch.bincount(places, minlength=len(indices)).tolist()
        for index, part in zip(indices.tolist(), order.split(counts), strict=True):
            rows[index] = part
        return indices, rows

    origin_field_map = origin_map

    @untransformed
    def scene_rows(self, key: Key) -> torch.Tensor:
        """Return the scene of each site or point, ``int64[N]``, as a row of :meth:`origin`.

        Raises:
          ArgumentError: a batch index of ``key`` was inserted after the first call of
            :meth:`origin`.
        """
        name = "scene", key.name
        if name not in self._maps:
            if key.name in self._sites:
                batch = self._at(key).rows[:, 0]
            else:
                batch = np.rint(self._field(key)[:, 0].numpy())
            known = self._at(self.origin()).rows[:, 0]
            places = np.searchsorted(known, batch).clip(max=max(len(known) - 1, 0))
            if len(batch) and not np.array_equal(known[places], batch):
                raise ArgumentError(
                    f"batch index {batch[known[places] != batch][0]} came into this manager after "
                    f"its scenes were asked for ({known.tolist()}): insert all coordinates first"
                )
            self._maps[name] = torch.from_numpy(places.astype(np.int64))
        return self._maps[name]

    @untransformed
    def union_map(self, in_keys: Sequence[Key], out_key: Key) -> list[torch.Tensor]:
        """Insert the union of the sites of several keys, and set ``out_key`` to the union.

        Returns:
          For each key ``int64[2, N]``: the rows of the key's sites, and their rows in the union.
        """
        if len(in_keys) < 2 or out_key.is_key_set():
            raise ArgumentError("a union is of two keys or more, into a key that is not set")
        parts = [self._at(key).rows for key in in_keys]
        rows, places = unique_rows(np.concatenate(parts))
        stride = np.min([key.name[0] for key in in_keys], axis=0).tolist()
        out_key.set_key(*self._free_name(self._sites, stride, "merge", True))
        self._keep(out_key.name, rows)
        found = torch.from_numpy(places).long().split([len(part) for part in parts])
        return [torch.stack([torch.arange(len(part)), part]) for part in found]

    @untransformed
    def interpolation_map_weight(self, key: Key, samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the sites around each of P points, with the weights of a linear interpolation.

        ``samples float[P, 1 + D]`` are the points, batch index first.

        Returns:
          ``(int32[n] site, int32[n] point, float[n] weight)`` of n pairs, ordered by the ``2**D``
          corners around each point. Corners without a site are left out.
        """
        stride, sites = np.asarray(key.name[0]), self._at(key)
        points = samples.detach().numpy()
        low, places = unique_rows(_floored(points, stride))
        corners = np.asarray(list(itertools.product((0, 1), repeat=self.D)), np.int32)
        table = _find(sites, low, corners * stride.astype(np.int32)).numpy()[places].T
        corner, point = np.nonzero(table >= 0)
        at = low[places[point], 1:] + corners[corner] * stride
        weights = np.prod(1 - np.abs(points[point, 1:] - at) / stride, axis=1)
        maps = (torch.from_numpy(part.astype(np.int32)) for part in (table[corner, point], point))
        return *maps, torch.from_numpy(weights).to(samples.dtype)

    # The sites and points of keys.

    def _at(self, key: Key) -> Sites:
        if key.name not in self._sites:
            raise ArgumentError(f"no sites of {key} in this manager")
        return self._sites[key.name]

    def _field(self, key: Key) -> torch.Tensor:
        if key.name not in self._fields:
            raise ArgumentError(f"no points of {key} in this manager")
        return self._fields[key.name]

    def _insert(self, rows: np.ndarray, stride: Sequence[int], string_id: str) -> Key:
        name = self._free_name(self._sites, stride, string_id)
        self._keep(name, rows)
        return Key(*name)

    def _keep(self, name: Name, rows: np.ndarray) -> None:
        self._sites[name] = Sites(torch.from_numpy(np.ascontiguousarray(rows)), None, 0, made=True)
        self._scenes = np.union1d(self._scenes, rows[:, 0])

    def _free_name(
        self, taken: dict[Name, Any], stride: Sequence[int], string_id: str, suffix: bool = False
    ) -> Name:
        name = tuple(stride), string_id
        while suffix or name in taken:
            end = f"{next(self._count):05}"
            name, suffix = (tuple(stride), f"{string_id}-{end}" if string_id else end), False
        return name

    def __repr__(self) -> str:
        sites = (f"\t{Key(*name)}: {len(one.rows)} sites" for name, one in self._sites.items())
        return "\n".join([f"{type(self).__name__}(", *sites, f"\tD={self.D})"])


def given(manager: CoordinateManager | None) -> CoordinateManager:
    """Return ``manager`` itself; raise ArgumentError if it is None."""
    if manager is None:
        raise ArgumentError("no coordinate_manager: give that of the keys")
    return manager


def key_or_new(key: Key | None, like: Key) -> Key:
    """Return ``key``, or if it is None an unset key with as many axes as ``like``."""
    return Key(like.get_coordinate_size()) if key is None else key


class CoordsManager:
    """Old name of :class:`CoordinateManager`; the constructor raises ``DeprecationWarning``."""

    def __init__(self, *args: Any, **named: Any) -> None:
        raise DeprecationWarning("CoordsManager is CoordinateManager since MinkowskiEngine 0.5")


def set_gpu_allocator(backend: GPUMemoryAllocatorType) -> None:
    """Raise ArgumentError unless ``backend`` is a GPUMemoryAllocatorType; do nothing else.

    There is no GPU memory here.
    """
    if not isinstance(backend, GPUMemoryAllocatorType):
        raise ArgumentError(f"backend={backend!r}: expected a GPUMemoryAllocatorType")


set_memory_manager_backend = set_gpu_allocator

_mode = SparseTensorOperationMode.SEPARATE_COORDINATE_MANAGER
_manager: CoordinateManager | None = None


def set_sparse_tensor_operation_mode(operation_mode: SparseTensorOperationMode) -> None:
    """Choose whether new tensors share one coordinate manager or have one manager each."""
    global _mode
    if not isinstance(operation_mode, SparseTensorOperationMode):
        raise ArgumentError(f"{operation_mode!r}: expected a SparseTensorOperationMode")
    _mode = operation_mode


def sparse_tensor_operation_mode() -> SparseTensorOperationMode:
    """Return the mode that :func:`set_sparse_tensor_operation_mode` set."""
    return _mode


def global_coordinate_manager() -> CoordinateManager | None:
    """Return the manager that new tensors share; None if no tensor has used one yet."""
    return _manager


def set_global_coordinate_manager(coordinate_manager: CoordinateManager | None) -> None:
    """Set the manager that new tensors share in ``SHARE_COORDINATE_MANAGER`` mode."""
    global _manager
    _manager = coordinate_manager


def clear_global_coordinate_manager() -> None:
    """Drop the shared manager, so that its memory is freed with the last tensor that uses it."""
    set_global_coordinate_manager(None)


def new_manager(dimension: int) -> CoordinateManager:
    """Return the coordinate manager for a new tensor: a new one, or the one that all tensors share.

    :func:`set_sparse_tensor_operation_mode` decides which. A shared manager with another number of
    axes than ``dimension`` is an error.
    """
    if _mode is SparseTensorOperationMode.SEPARATE_COORDINATE_MANAGER:
        return CoordinateManager(D=dimension)
    if _manager is None:
        set_global_coordinate_manager(CoordinateManager(D=dimension))
    assert _manager is not None
    if dimension != _manager.D:
        raise ArgumentError(
            f"coordinates of {dimension} axes for the shared manager of {_manager.D}: call "
            "clear_global_coordinate_manager() first"
        )
    return _manager


def _checked_shape(rows: torch.Tensor, dimension: int) -> torch.Tensor:
    check_cpu(rows, "coordinates")
    if rows.ndim != 2 or rows.shape[1] != dimension + 1:
        shape = f"{tuple(rows.shape)}: expected [N, {dimension + 1}]"
        raise ArgumentError(f"coordinates of shape {shape}, batch index first")
    return rows


def _checked_rows(rows: torch.Tensor, dimension: int) -> np.ndarray:
    if rows.dtype is not torch.int32:
        raise ArgumentError(f"coordinates of {rows.dtype}: expected int32; convert with .int()")
    found = np.ascontiguousarray(_checked_shape(rows, dimension).numpy())
    _check_scenes(found[:, 0])
    return found


def _check_scenes(scenes: np.ndarray) -> None:
    if len(scenes) and scenes.min() < 0:
        raise ArgumentError(f"batch index {scenes.min()} in coordinates: it is 0 or more")


def _floored(rows: np.ndarray, stride: Sequence[int] | np.ndarray) -> np.ndarray:
    """Round coordinates ``[N, 1 + D]`` down to multiples of ``stride``, as ``int32``."""
    out, stride = np.empty(rows.shape, np.int32), np.asarray(stride)
    out[:, 0] = np.rint(rows[:, 0])
    if rows.dtype.kind == "f":
        out[:, 1:] = np.floor(rows[:, 1:] / stride.astype(rows.dtype)) * stride
    else:
        out[:, 1:] = rows[:, 1:] // stride * stride
    return out


def _find(sites: Sites, rows: np.ndarray, offsets: np.ndarray | None = None) -> torch.Tensor:
    """Return the row in ``sites`` of each coordinate in ``rows``, ``int64[N]``; -1 if absent.

    With ``offsets [K, D]``, find ``rows + offsets`` instead and return ``int64[N, K]``.
    """
    taps = np.zeros((1, rows.shape[1] - 1), np.int32) if offsets is None else offsets
    given = rows, np.arange(len(rows), dtype=np.int32)
    found = onto_map(sites.unique(), given, taps).neighbors.long()
    return found[:, 0] if offsets is None else found
