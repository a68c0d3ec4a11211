"""Sparse tensors (features at voxels) and point tensors (features at points)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

from voxax.torch.core.errors import ArgumentError
from voxax.torch.core.features import Features
from voxax.torch.torchsparse.utils.grids import check_integers, make_ntuple, per_axis, to_dense
from voxax.torch.torchsparse.utils.tensor_cache import new_cache

_negative = False


def get_allow_negative_coordinates() -> bool:
    """Return whether layers accept coordinates below 0."""
    return _negative


def set_allow_negative_coordinates(allow_negative_coordinates: bool) -> None:
    """Set whether layers accept coordinates below 0; initially they raise an error instead."""
    global _negative
    _negative = allow_negative_coordinates


class _Parts:
    """Base of sparse and point tensors; ``_parts`` names the attributes with PyTorch tensors."""

    _parts: tuple[str, ...]

    def cuda(self) -> Self:
        """Move this tensor to a GPU; the layers raise an error for tensors there."""
        return self.to("cuda")

    def detach(self) -> Self:
        """Detach the features of this tensor from the autograd graph, in place."""
        return self._each(torch.Tensor.detach)

    def to(self, device: Any, non_blocking: bool = True) -> Self:
        """Move this tensor to a device, in place."""
        return self._each(lambda part: part.to(device, non_blocking=non_blocking))

    def _each(self, function: Callable[[Any], Any]) -> Self:
        for name in self._parts:
            setattr(self, name, function(getattr(self, name)))
        return self


class SparseTensor(_Parts):
    """Sparse tensor: one row of features for each voxel, and the coordinates of the voxels.

    Args:
      feats: features ``[N, C]``.
      coords: ``int32[N, 4]``: batch index, x, y, z, in units of the stride.
      stride: edge length of the voxels, one integer or three.
      spatial_range: number of scenes and the grid's three sizes, which layers update; or None.
    """

    _parts = ("feats", "coords")
    _batch, _axes = 0, slice(1, 4)  # columns of the coords
    _kind: type[SparseTensor]  # class of the results of functions, also for subclasses

    def __init__(
        self, feats: Any, coords: torch.Tensor, stride: Any = 1, spatial_range: Any = None
    ) -> None:
        self.feats, self.coords = feats, coords
        self.stride = per_axis("stride", stride)
        self.spatial_range: tuple[int, ...] | None = None
        if spatial_range is not None:
            self.spatial_range = make_ntuple(spatial_range, ndim=4)
        self._caches = self._new_cache()

    @property
    def feats(self) -> torch.Tensor:
        """The features ``[N, C]``."""
        return self._features.shown()

    @feats.setter
    def feats(self, feats: Any) -> None:
        self._features = feats if isinstance(feats, Features) else Features(feats)

    F = feats

    @property
    def C(self) -> Any:
        """The coordinates ``int32[N, 4]``, another name of ``coords``."""
        return self.coords

    @C.setter
    def C(self, coords: Any) -> None:
        self.coords = coords

    @property
    def s(self) -> tuple[int, ...]:
        """The stride as three integers, another name of ``stride``."""
        return self.stride

    @s.setter
    def s(self, stride: Any) -> None:
        self.stride = make_ntuple(stride, ndim=3)

    def cpu(self) -> Self:
        """Move this tensor to the CPU, in place."""
        return self.to("cpu")

    def half(self) -> Self:
        """Convert the features of this tensor to float16, in place."""
        self.feats = self.feats.half()
        return self

    def dense(self) -> torch.Tensor:
        """Return a dense grid ``[*spatial_range, C]`` with zeros in cells without a voxel.

        Coordinates outside ``spatial_range``, or None as ``spatial_range``, are an error.
        """
        if self.spatial_range is None:
            raise ArgumentError(
                "dense() of a tensor without spatial_range: give SparseTensor(..., "
                "spatial_range=(scenes, x, y, z))"
            )
        return to_dense(self.feats, self.coords, self.spatial_range)

    def __add__(self, other: SparseTensor) -> SparseTensor:
        check_same_voxels("+", self, other)
        feats = self._features.added(other._features)
        if feats is None:
            check_channels("+", self, other)
            feats = self._features.rows() + other._features.rows()
        return with_features(self, feats)

    def _new_cache(self) -> Any:
        return new_cache()

    def _share(self, output: Any) -> Any:
        """Give ``output`` the spatial range and the cache of this tensor, and return ``output``."""
        output.spatial_range, output._caches = self.spatial_range, self._caches
        return output

    def _cells(self) -> torch.Tensor:
        """Return the voxels ``[N, 4]``: batch index first, then coordinates in strides."""
        check_integers("coords", self.coords, 4, ", batch index first")
        return self.coords

    @staticmethod
    def _coords_of(cells: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
        """Convert cells, as from :meth:`_cells`, to the layout that ``coords`` have."""
        del stride
        return cells

    def _made(
        self, feats: Features, cells: torch.Tensor, stride: tuple[int, ...], spatial_range: Any
    ) -> SparseTensor:
        """Return a tensor with ``feats`` at the voxels ``cells``, which shares this tensor's cache.

        It is for the output of a layer. ``cells`` are as from :meth:`_cells`.
        """
        output = SparseTensor(feats, cells, stride, spatial_range)
        output._caches = self._caches
        return output._remembered()

    def _remembered(self) -> SparseTensor:
        """Store the coordinates in the cache under the stride, and return this tensor.

        Coordinates that the cache already has for this stride are not replaced.
        """
        self._caches.cmaps.setdefault(self.stride, (self.coords, self.spatial_range))
        return self


SparseTensor._kind = SparseTensor


def with_features(tensor: SparseTensor, feats: torch.Tensor | Features) -> SparseTensor:
    """Return a tensor with the features ``feats`` at the voxels of ``tensor``.

    It shares the cache of ``tensor``.
    """
    return tensor._share(tensor._kind(feats, tensor.coords, tensor.stride))


def check_tensors(name: str, *tensors: Any) -> None:
    """Raise :class:`ArgumentError` unless ``tensors`` are one or more sparse tensors.

    Their features must be a dense PyTorch tensor ``[N, C]``, and their coordinates a PyTorch
    tensor. ``name``, the operation, begins the text of the error.
    """
    if not tensors:
        raise ArgumentError(f"{name} of no tensors: expected one or more")
    for tensor in tensors:
        if not isinstance(tensor, SparseTensor):
            raise ArgumentError(f"{name} of a {type(tensor).__name__}: expected a SparseTensor")
        if tensor._features.waits:  # after a layer, which has checked them
            continue
        feats, coords = tensor._features.rows(), tensor.coords
        if not (isinstance(feats, torch.Tensor) and isinstance(coords, torch.Tensor)):
            raise ArgumentError(
                f"{name}: feats and coords of {type(feats)} and {type(coords)}: expected tensors. "
                "Convert them with torch.as_tensor, or with sparse_collate"
            )
        if feats.ndim != 2 or feats.layout is not torch.strided:
            raise ArgumentError(
                f"{name}: feats of shape {list(feats.shape)} and {feats.layout}: expected [N, C], "
                "torch.strided"
            )


def check_same_voxels(name: str, *tensors: SparseTensor) -> None:
    """Raise :class:`ArgumentError` unless all tensors have the same coordinates in the same order.

    ``name``, the operation, begins the text of the error.
    """
    check_tensors(name, *tensors)
    first = tensors[0].coords
    for tensor in tensors[1:]:
        if tensor.coords is not first and not torch.equal(tensor.coords, first):
            raise ArgumentError(
                f"{name} of tensors with {len(first)} and {len(tensor.coords)} voxels that differ: "
                "expected the same coords in the same order. Take generative_add for others"
            )


def check_channels(name: str, *tensors: SparseTensor) -> None:
    """Raise :class:`ArgumentError` unless all tensors have the same number of channels.

    ``name``, the operation, begins the text of the error.
    """
    first, *others = [list(tensor._features.rows().shape) for tensor in tensors]
    for shape in others:
        if shape[1:] != first[1:]:
            both = f"feats of shapes {first} and {shape}"
            raise ArgumentError(f"{name} of {both}: expected as many channels")


class PointTensor(_Parts):
    """Point tensor: features at points, with the voxels around each point.

    Args:
      feats, coords: features ``[N, C]`` and coordinates ``[N, 4]`` of the points.
      idx_query: dictionary that the caller fills: for each stride of voxels, the rows of the voxels
        around each point.
      weights: dictionary that the caller fills: for each stride of voxels, the interpolation
        weights of these voxels.
    """

    _parts = ("F", "C")

    def __init__(
        self, feats: torch.Tensor, coords: torch.Tensor, idx_query: Any = None, weights: Any = None
    ) -> None:
        self.F, self.C = feats, coords
        self.idx_query = {} if idx_query is None else idx_query
        self.weights = {} if weights is None else weights
        self.additional_features: dict[str, Any] = {"idx_query": {}, "counts": {}}

    def __add__(self, other: PointTensor) -> PointTensor:
        output = PointTensor(self.F + other.F, self.C, self.idx_query, self.weights)
        output.additional_features = self.additional_features
        return output
