"""Compute the output voxels of layers, and the kernel maps from input to output voxels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from voxax.torch.core.errors import ArgumentError
from voxax.torch.core.kernel_map import KernelMap, reached_map, unique_rows
from voxax.torch.core.sites import Sites
from voxax.torch.core.uncompiled import untransformed
from voxax.torch.torchsparse import tensor
from voxax.torch.torchsparse.nn.functional.conv_config import DOWNSAMPLE_MODES
from voxax.torch.torchsparse.tensor import SparseTensor
from voxax.torch.torchsparse.utils.grids import check_integers, per_axis

Size = int | Sequence[int]
Sizes = tuple[int, ...]


class Relation(NamedTuple):
    """Kernel map of a layer, with its input voxels (``source``) and output voxels (``target``).

    ``source_range`` and ``target_range`` are the spatial ranges of the input and output tensors:
    the number of scenes and three sizes, or None. ``settings`` are the padding, ``kmap_mode`` and
    ``downsample_mode`` of the layer.
    """

    kernel_map: KernelMap
    source: Sites
    target: Sites
    settings: tuple[Any, ...]  # settings of the layer that are not in its key in a cache
    source_range: Sizes | None
    target_range: Sizes | None

    def transpose(self) -> Relation:
        """Return the relation with inputs and outputs exchanged."""
        sides = self.target, self.source, self.settings, self.target_range, self.source_range
        return Relation(self.kernel_map.transpose(), *sides)


@functools.lru_cache(maxsize=256)
def taps(kernel_size: Sizes, low: Sizes) -> np.ndarray:
    """Return the K kernel offsets of a box, ``int32[K, 3]``, in the order of the weights.

    Along each axis, the offsets are the integers from ``low`` to ``low + kernel_size - 1``. The
    first axis varies fastest if K is odd, else the last axis.
    """
    axes = [range(at, at + size) for at, size in zip(low, kernel_size, strict=True)]
    offsets = list(itertools.product(*axes))
    if len(offsets) % 2:
        offsets = [tap[::-1] for tap in itertools.product(*axes[::-1])]
    found = np.asarray(offsets, np.int32)
    found.flags.writeable = False  # all calls get this array
    return found


def centered(kernel_size: Sizes) -> np.ndarray:
    """Return the K kernel offsets of a box around offset 0, ``int32[K, 3]``, as :func:`taps` does.

    Along an axis of size s, the offsets begin at ``-((s - 1) // 2)``.
    """
    return taps(kernel_size, tuple(-((size - 1) // 2) for size in kernel_size))


def get_kernel_offsets(
    size: Size, stride: Size = 1, dilation: Size = 1, device: Any = "cpu"
) -> torch.Tensor:
    """Return the K offsets of a box kernel around offset 0, ``int32[K, 3]``.

    They are the offsets of :func:`centered`, times ``stride`` and ``dilation``. ``size``,
    ``stride`` and ``dilation`` are one integer, or one per axis.
    """
    steps = np.multiply(per_axis("stride", stride), per_axis("dilation", dilation))
    offsets = centered(per_axis("size", size)) * steps
    return torch.from_numpy(offsets.astype(np.int32)).to(device)


def sites_of(input: SparseTensor) -> Sites:
    """Check a tensor's coordinates, and return its voxels with the kernel maps built from them.

    The result is stored in the tensor's cache, and reused while the coordinates are unchanged.
    """
    cells, known = input._cells(), input._caches.sites.get(input.stride)
    if known is None or not known.hold(cells):
        scenes = int(cells[:, 0].max()) + 1 if len(cells) else 0
        if scenes >= 2**31:
            raise ArgumentError(f"a batch index of {scenes - 1}: expected less than {2**31 - 1}")
        known = input._caches.sites[input.stride] = Sites(cells, None, scenes)
    return known


@untransformed
def build_kernel_map(
    input: SparseTensor, sizes: tuple[Sizes, ...], modes: tuple[str, str], generative: bool
) -> Relation:
    """Return the kernel map and output voxels of a generative, strided or submanifold layer.

    ``sizes`` are kernel size, stride, padding; ``modes`` are ``kmap_mode`` and ``downsample_mode``.
    If ``generative`` is False, the layer is submanifold for stride 1, else strided.
    """
    (kernel_size, stride, padding), out_range = sizes, None
    source, spatial_range = sites_of(input), input.spatial_range
    if spatial_range is not None:
        axes = zip(spatial_range[1:], *sizes, strict=False)
        out_range = (spatial_range[0], *((n + 2 * p - k) // s + 1 for n, k, s, p in axes))
    on_the_fly = modes[0] == "hashmap_on_the_fly"
    if on_the_fly and generative:
        raise ArgumentError(
            'a generative layer with kmap_mode="hashmap_on_the_fly": set kmap_mode="hashmap" in '
            "its config, or in that of F.set_global_conv_config"
        )
    if on_the_fly:
        _check_range(source.rows, spatial_range)
    source.duplicates()  # raises if there are any
    target = source
    if generative:
        coords = spupsample_generative(source.indices, stride, kernel_size, padding, out_range)
        target = _made(coords.numpy(), source)
        spread = source.rows * np.asarray([1, *stride], np.int32)
        kernel_map = _made(spread, source).onto(target, centered(kernel_size))
    elif stride == (1, 1, 1):
        low = (0, 0, 0)  # of an even kernel
        odd = np.prod(kernel_size) % 2 or not on_the_fly
        kernel_map = source.kept(centered(kernel_size) if odd else taps(kernel_size, low))
    else:
        if on_the_fly:
            rows = _reached(source.rows, sizes, out_range)
            offsets = taps(kernel_size, tuple(-pad for pad in padding))
        else:
            args = source.indices, stride, kernel_size, padding, out_range, modes[1]
            rows, offsets = spdownsample(*args).numpy(), centered(kernel_size)
        target = _made(rows, source)
        kernel_map = source.onto(target, offsets, stride)
    return Relation(kernel_map, source, target, (padding, *modes), spatial_range, out_range)


def _made(rows: np.ndarray, source: Sites) -> Sites:
    return Sites(torch.from_numpy(rows), None, source.batch_size, made=True)


def _check_range(rows: np.ndarray, spatial_range: Sizes | None) -> None:
    if not len(rows):
        return
    low, high = rows[:, 1:].min(0).tolist(), rows[:, 1:].max(0).tolist()
    if min(low) < 0 and not tensor.get_allow_negative_coordinates():
        raise ArgumentError(
            f'a coordinate of {min(low)} with kmap_mode="hashmap_on_the_fly": it is 0 or more. '
            "Move the coordinates, or call voxax.torch.torchsparse.tensor."
            "set_allow_negative_coordinates(True)"
        )
    if spatial_range is not None and np.any(np.greater_equal(high, spatial_range[1:4])):
        raise ArgumentError(
            f"coordinates up to {high} outside spatial_range {spatial_range}: enlarge it, or drop "
            "these rows"
        )


def _reached(rows: np.ndarray, sizes: tuple[Sizes, ...], out_range: Sizes | None) -> np.ndarray:
    """Return the sorted voxels at which a strided layer has outputs, ``int32[M, 4]``.

    These are all voxels inside ``out_range`` that read at least one input voxel. ``rows
    int32[N, 4]`` are the input voxels, and ``sizes`` are kernel size, stride and padding. If
    ``out_range``, which is the spatial range of the outputs, is None, it follows from ``rows``.
    """
    at = rows[:, 1:].astype(np.int64) if len(rows) else np.zeros((1, 3), np.int64)
    (size, step, pad), low = np.asarray(sizes), np.zeros(3, np.int64)
    if tensor.get_allow_negative_coordinates():  # cut towards 0, as TorchSparse does
        low = np.trunc((at.min(0) - 2 * pad + size - 1) / step).astype(np.int64)
    if out_range is None:
        shape = (at.max(0) + 2 * pad - size + 1) // step - low + 1
    else:
        shape = np.asarray(out_range[1:4]) - low
    if len(rows) and shape.min() <= 0:
        raise ArgumentError(
            f"no output for coordinates from {at.min(0).tolist()} to {at.max(0).tolist()}: "
            f"kernel_size, stride and padding {sizes}, spatial range of outputs {out_range}. "
            "Enlarge the padding or spatial_range"
        )
    moved = rows - np.asarray([0, *(low * step)], np.int32)
    args = (1, 1, 1), np.maximum(shape, 1).tolist(), False
    _, out = reached_map(moved, *sizes, *args)  # type: ignore[call-arg]
    return unique_rows(out)[0] + np.asarray([0, *low], np.int32)


def spdownsample(
    _coords: torch.Tensor,
    stride: Size = 2,
    kernel_size: Size = 2,
    padding: Size = 0,
    spatial_range: Sequence[int] | None = None,
    downsample_mode: str = "spconv",
) -> torch.Tensor:
    """Return the output voxels of a strided layer, ``int32[M, 4]``, in lexicographic order.

    Args:
      _coords: voxels of the input, ``int32[N, 4]``, batch index first.
      stride, kernel_size, padding: one integer, or one per axis.
      spatial_range: number of scenes and three sizes of the output's grid; None has no bounds.
      downsample_mode: ``"minkowski"`` divides the inputs' coordinates by the stride. ``"spconv"``
        does the same if each stride is the kernel size or 1, and otherwise takes all voxels in the
        range that read an input. ``"1.4"`` is ``"spconv"`` with taps around the center, and
        without voxels below the lowest input coordinates.

    Raises:
      ArgumentError: the mode is unknown.
    """
    if downsample_mode not in DOWNSAMPLE_MODES:
        raise ArgumentError(f"downsample_mode={downsample_mode!r}: expected {DOWNSAMPLE_MODES}")
    check_integers("coords", _coords, 4, ", batch index first")
    steps, size = per_axis("stride", stride), per_axis("kernel_size", kernel_size)
    rows = _coords.numpy()
    cells = all(step in (1, of) for step, of in zip(steps, size, strict=True))
    if cells or downsample_mode == "minkowski":
        out = unique_rows(rows // np.asarray([1, *steps], np.int32))[0]
    elif downsample_mode == "1.4":
        out = _from_the_lowest(rows, size, steps)
    else:
        out_range = None if spatial_range is None else tuple(spatial_range)
        out = _reached(rows, (size, steps, per_axis("padding", padding, 0)), out_range)
    return torch.from_numpy(out)


def _from_the_lowest(rows: np.ndarray, size: Sizes, steps: Sizes) -> np.ndarray:
    """Return the distinct output voxels of a strided layer, as TorchSparse 1.4 chooses them.

    These are the quotients ``(row + offset) / steps`` that are integers, for input voxels ``rows``
    ``int32[N, 4]`` and the offsets of a centered kernel of ``size``. Sums ``row + offset`` below
    the lowest coordinates ``rows.min(0)`` are left out.
    """
    stride = np.asarray([1, *steps], np.int32)
    low, reached = rows.min(0, initial=2**31 - 1), [rows[:0]]
    for offset in np.pad(centered(size), ((0, 0), (1, 0))):
        moved = rows + offset
        reached.append(moved[((moved % stride == 0) & (moved >= low)).all(1)] // stride)
    return unique_rows(np.concatenate(reached))[0]


def spupsample_generative(
    _coords: torch.Tensor,
    stride: Size = 2,
    kernel_size: Size = 2,
    padding: Size = 0,
    spatial_range: Sequence[int] | None = None,
) -> torch.Tensor:
    """Return the output voxels of a generative layer, ``int32[M, 4]``, in lexicographic order.

    Args:
      _coords: voxels of the input, ``int32[N, 4]``, batch index first.
      stride, kernel_size: one integer, or one per axis.
      padding: accepted but without effect.
      spatial_range: number of scenes and three sizes of the output's grid; outputs outside the
        grid move to its border.

    Raises:
      ArgumentError: ``spatial_range`` is None.
    """
    del padding
    if spatial_range is None:
        raise ArgumentError(
            "a generative layer on a tensor without spatial_range: give SparseTensor(..., "
            "spatial_range=(scenes, x, y, z))"
        )
    check_integers("coords", _coords, 4, ", batch index first")
    steps = torch.tensor([1, *per_axis("stride", stride)], dtype=torch.int32)
    offsets = torch.nn.functional.pad(get_kernel_offsets(kernel_size), (1, 0))
    coords = (_coords * steps)[:, None] + offsets
    last = torch.tensor(spatial_range[1:4], dtype=torch.int32) - 1
    coords[..., 1:] = coords[..., 1:].clamp(min=0).minimum(last)
    return torch.from_numpy(unique_rows(coords.reshape(-1, 4).numpy())[0])
