"""Store the voxels of a tensor, which are checked once, and the kernel maps built from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from voxax.torch.core.duplicates import Duplicates
from voxax.torch.core.errors import ArgumentError, check_cpu, whole
from voxax.torch.core.kernel_map import (
    KernelMap,
    Sizes,
    Unique,
    box,
    distinct_rows,
    expanded_map,
    kept_map,
    onto_map,
    reached_map,
    unique_rows,
)
from voxax.torch.core.uncompiled import untransformed


class Sites:
    """Voxels of a tensor, with the kernel maps that layers built from them.

    Tensors with the same indices share one object, so each map is built only once. Copies and
    pickles contain no maps.

    If code writes to the indices, the maps become invalid. Each layer therefore compares the
    indices with a copy. PyTorch's version counter would miss writes through ``.data`` and
    ``.numpy()``. On one core of an EPYC, the comparison takes 0.04 ms for 76,556 voxels with NumPy,
    and would take 0.2 ms with PyTorch.

    Args:
      indices: ``int32[N, 1 + D]``: batch index, then D coordinates; rows in any order.
      spatial_shape: D sizes of the grid; None allows any coordinates.
      batch_size: number of scenes.
      made: whether a layer computed the indices. Then they are taken as distinct and inside the
        grid without a check.

    Raises:
      ArgumentError: indices that are not on the CPU, or outside ``spatial_shape`` or
        ``batch_size``.
    """

    @untransformed
    def __init__(
        self, indices: Tensor, spatial_shape: Sizes | None, batch_size: int, made: bool = False
    ) -> None:
        self.indices, self._made = indices, made
        self.spatial_shape = [whole("spatial_shape", size) for size in spatial_shape or ()]
        self.batch_size = whole("batch_size", batch_size)
        if not made:
            _check_indices(indices, self.spatial_shape, self.batch_size)
        self._begin()

    def _begin(self) -> None:
        self.rows = self.indices.numpy().copy(order="C")
        self._duplicates: Duplicates | None = None
        self._sorted: Unique | None = None
        self._maps: dict[bytes, KernelMap] = {}
        # Maps with other output voxels, and these voxels. ``self`` must not be among them, because
        # the reference cycle would keep all of them until Python's garbage collection.
        self._reached: dict[tuple, tuple[KernelMap, Self]] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("indices", "spatial_shape", "batch_size", "_made")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def are_of(self, indices: Tensor, spatial_shape: Sizes, batch_size: int) -> bool:
        """Return whether this object was made from these arguments and ``indices`` is unchanged."""
        same = self.indices is indices and self.batch_size == batch_size
        return same and self.spatial_shape == list(spatial_shape) and self.hold(indices)

    @untransformed
    def hold(self, indices: Tensor) -> bool:
        """Return whether ``indices`` equals the voxels from which the kernel maps were built."""
        return np.array_equal(self.rows, indices.numpy())

    def submanifold(self, kernel_size: Sizes, dilation: Sizes) -> KernelMap:
        """Return the kernel map of a submanifold layer: outputs are at the input voxels.

        The last axis varies fastest in the order of the taps.

        Args:
          kernel_size, dilation: one integer per axis; kernel sizes are odd.

        Raises:
          ArgumentError: even kernel sizes, or errors of :meth:`duplicates`.
        """
        if any(size % 2 == 0 for size in kernel_size):
            raise ArgumentError(
                f"a submanifold kernel of size {list(kernel_size)}: only odd sizes have a center"
            )
        return self.kept(box(tuple(kernel_size), tuple(dilation)))

    @untransformed
    def kept(self, offsets: np.ndarray) -> KernelMap:
        """Return the kernel map of a layer whose outputs are at the input voxels.

        Tap k of the output at voxel v reads ``v + offsets[k]``. ``offsets`` is ``int32[K, D]``, in
        the order of the taps. Raises the errors of :meth:`duplicates`.
        """
        key, several = offsets.tobytes(), self.duplicates()
        if key not in self._maps:
            if several is None:
                self._maps[key] = kept_map(self.rows, offsets, self.unique())
            else:
                self._maps[key] = several.kept(self.rows, offsets)
        return self._maps[key]

    @untransformed
    def onto(self, out: Sites, offsets: np.ndarray, stride: Sizes | None = None) -> KernelMap:
        """Return the kernel map of a layer whose outputs are at the voxels of ``out``.

        Tap k of the output at voxel v reads ``v * stride + offsets[k]``. ``offsets`` is
        ``int32[K, D]``. The map is not stored. For a transposed layer, build the map from the
        layer's outputs to its inputs and transpose the map.

        Raises:
          ArgumentError: inputs or outputs that occur several times.
        """
        self._refuse_duplicates()
        out._refuse_duplicates()
        return onto_map(self.unique(), out.unique(), offsets, stride)

    @untransformed
    def expanded(self, offsets: np.ndarray) -> tuple[KernelMap, Self]:
        """Return the kernel map and output voxels of a layer with outputs at ``row + offsets[k]``.

        Every input voxel ``row`` and tap k has such an output. ``offsets`` is ``int32[K, D]``.

        Raises:
          ArgumentError: voxels that occur several times, or errors of
            :func:`~voxax.torch.core.kernel_map.expanded_map`.
        """
        key = ("expanded", offsets.tobytes())
        self._refuse_duplicates()
        known = self._reached.get(key)
        if known is None or not known[1].hold(known[1].indices):
            kernel_map, out = expanded_map(self.rows, offsets)
            self._reached[key] = kernel_map, self._sites(out, None)
        return self._reached[key]

    @untransformed
    def reached(self, *sizes: Sizes, transposed: bool = False) -> tuple[KernelMap, Self]:
        """Return the kernel map of a strided or transposed layer, and its output voxels.

        The output voxels are all that read an input through a tap. ``sizes`` are kernel size,
        stride, padding, dilation and output shape, as in
        :func:`voxax.torch.core.kernel_map.reached_map`.

        Raises:
          ArgumentError: errors of :meth:`duplicates`, no output voxel for any input, or an output
            shape without cells.
        """
        key = (transposed, *map(tuple, sizes))
        known, several = self._reached.get(key), self.duplicates()
        if known is None or not known[1].hold(known[1].indices):  # layers hand these tensors out
            names = "kernel_size", "stride", "padding", "dilation"
            said = [f"{name} {list(size)}" for name, size in zip(names, sizes, strict=False)]
            described = ", ".join([f"spatial_shape {self.spatial_shape}", *said])
            if min(sizes[-1]) <= 0:
                shape = list(sizes[-1])
                raise ArgumentError(f"an output of spatial shape {shape} has no cells: {described}")
            make = reached_map if several is None else several.reached
            kernel_map, out = make(self.rows, *sizes, transposed)  # type: ignore[misc]
            if not len(out) and len(self.rows):
                found = f"no output for any of {len(self.rows)} inputs: {described}"
                raise ArgumentError(f"{found}. Enlarge the spatial shape or the padding")
            self._reached[key] = kernel_map, self._sites(out, sizes[-1])
        return self._reached[key]

    def _sites(self, rows: np.ndarray, spatial_shape: Sizes | None) -> Self:
        return type(self)(torch.from_numpy(rows), spatial_shape, self.batch_size, made=True)

    def duplicates(self) -> Duplicates | None:
        """Return the groups of rows that have the same voxel; None if all voxels are distinct.

        If a voxel is in several rows, this method calls :meth:`accept`, which may raise an error.
        """
        if self._made:
            return None
        if self._duplicates is None:
            ordered, places = unique = self.unique()
            self._made = len(ordered) == len(places)
            if self._made:
                return None
            self._duplicates = Duplicates(*distinct_rows(unique))
        self.accept(self._duplicates)
        return self._duplicates

    def accept(self, duplicates: Duplicates) -> None:
        """Raise :class:`ArgumentError` for repeated voxels; subclasses may allow them instead."""
        raise ArgumentError(
            f"{duplicates.described(self.rows)}: voxels are distinct. Merge them, for example with "
            "torch.unique(indices, dim=0, return_inverse=True)"
        )

    def _refuse_duplicates(self) -> None:
        if (several := self.duplicates()) is not None:
            Sites.accept(self, several)

    def unique(self) -> Unique:
        """Return the distinct voxels in lexicographic order, and the position of each row's voxel.

        The result is that of :func:`~voxax.torch.core.kernel_map.unique_rows`, computed only once.
        """
        if self._sorted is None:
            self._sorted = unique_rows(self.rows)
        return self._sorted


def _check_indices(indices: Tensor, spatial_shape: Sequence[int], batch_size: int) -> None:
    check_cpu(indices, "indices")
    if indices.shape[0] == 0:
        return
    low, high = (bound.tolist() for bound in torch.aminmax(indices, dim=0))
    limits = [batch_size, *spatial_shape]
    for axis, (smallest, largest, limit) in enumerate(zip(low, high, limits, strict=False)):
        if smallest < 0 or largest >= limit:
            name = f"coordinate of axis {axis - 1}" if axis else "batch index"
            bound, sizes = ("spatial_shape", spatial_shape) if axis else ("batch_size", batch_size)
            raise ArgumentError(
                f"a {name} of {smallest if smallest < 0 else largest} in indices: with {bound} "
                f"{sizes} it is 0 to {limit - 1}. Drop these rows, or enlarge {bound}"
            )
    cells = math.prod(limits)
    if cells >= 2**63:
        raise ArgumentError(f"{cells} cells of batch_size and spatial_shape {limits}: at most 2^63")
