"""Convert weights from and to MinkowskiEngine.

The layout is read from the sources of MinkowskiEngine 0.5.4 (``kernel_region.hpp``,
``MinkowskiConvolution.py``); the library was not run. A box kernel counts its taps with the first
axis fastest. An odd size reaches ``-(k // 2)`` to ``k // 2``, an even size ``0`` to ``k - 1``,
for every stride. A cross begins with its center; each axis follows, first its positive offsets,
then its negative ones. Kernels are not flipped, and a transposed convolution uses tap k for the
same offset as the convolution that it undoes. Batch norm and linear layers are PyTorch's, in inner
modules ``bn`` and ``linear``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from flax import nnx

from voxax.errors import InputError
from voxax.geometry.kernel_spec import per_axis
from voxax.interop import peer
from voxax.interop.state_dict import Names, StateDict, dump, load


def from_minkowski(
    state_dict: StateDict,
    model: nnx.Module,
    *,
    names: Names = None,
    axes: peer.Axes = None,
) -> dict[str, str]:
    """Load all parameters and statistics of a MinkowskiEngine model into ``model``.

    Arguments and errors are as in :func:`from_spconv`. Return MinkowskiEngine's name of each layer,
    by path in ``model``. InputError is raised too if a kernel of ``model`` has other offsets than
    MinkowskiEngine's. ``names`` of batch norms and linear layers may omit ``bn`` or ``linear``.
    """
    return load(state_dict, model, Minkowski(axes), names)


def to_minkowski(
    model: nnx.Module,
    *,
    names: Names = None,
    axes: peer.Axes = None,
    like: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Return a MinkowskiEngine state dict with the arrays of ``model``, as NumPy arrays by name.

    Arguments and errors are as in :func:`to_spconv`. Without ``like``, a ``Linear`` is written as a
    ``MinkowskiLinear``. With ``like``, it may also be written as a convolution of kernel size 1,
    which many networks use in place of a linear layer.
    """
    return dump(model, Minkowski(axes), names, like)


def minkowski_offsets(
    kernel_size: int | Sequence[int],
    kernel_shape: Literal["box", "cross"] = "box",
    *,
    ndim: int = 3,
) -> peer.Offsets:
    """Return the tap offsets of a MinkowskiEngine kernel, for ``kernel_shape=`` of a voxax layer.

    A layer needs them where the kernel of MinkowskiEngine has other offsets than that of voxax:
    even sizes from 4 on with a stride other than the size, odd sizes from 3 on with a stride equal
    to the size.

    Args:
      kernel_size: an integer, or one per axis; odd for a cross.
      kernel_shape: ``"box"`` for ``HYPER_CUBE``, ``"cross"`` for ``HYPER_CROSS``.
      ndim: number of spatial axes.

    Returns:
      ``K`` offsets of ``ndim`` integers, in MinkowskiEngine's order.
    """
    size = per_axis(kernel_size, ndim, "kernel_size")
    if kernel_shape == "box":
        return peer.first_axis_fastest(peer.ranges_by_parity(size))
    if kernel_shape != "cross":
        raise InputError(f"unknown kernel_shape {kernel_shape!r}; known: box, cross")
    if not all(k % 2 for k in size):
        raise InputError(f"kernel_size={size} must be odd along every axis for a cross")
    taps = [(0,) * ndim]
    for axis, k in enumerate(size):
        reach = k // 2
        for step in (*range(1, reach + 1), *range(-reach, 0)):
            taps.append(tuple(step if a == axis else 0 for a in range(ndim)))
    return tuple(taps)


class Minkowski(peer.Peer):
    """Description of how MinkowskiEngine stores layers in state dicts; arguments as in ``Peer``."""

    name = "MinkowskiEngine"
    wrappers: ClassVar = {"norm": "bn", "linear": "linear"}

    def wrapper_of(self, layer: peer.LayerWeights) -> str:
        if (layer.kind == "norm" and "mean" not in layer.arrays) or self.is_pointwise(layer):
            return ""
        return super().wrapper_of(layer)

    def forms(self, layer: peer.LayerWeights) -> dict[peer.Role, list[peer.Form]]:
        found = super().forms(layer)
        convolves = layer.kind in ("conv", "depthwise") or self.is_pointwise(layer)
        if convolves and "bias" in found:
            found["bias"].reverse()  # convolutions store it as a row
        return found

    def weight_forms(self, layer: peer.LayerWeights) -> list[peer.Form]:
        own = layer.shape("weight")
        if layer.is_product:
            matrix, stacked = (peer.reshaped("kernel", s, own) for s in (own[-2:], (1, *own[-2:])))
            linear = peer.linear_form(own)
            if layer.kind == "linear":
                return [linear, matrix, stacked]
            return [matrix, stacked, linear]
        offsets = self.peer_offsets(layer)
        order = _order(offsets, layer.is_cross)
        if order is None:
            note = ", a cross has odd sizes"
            raise self.other_reach(layer, offsets, minkowski_offsets, note)
        return [peer.reordered("kernel", layer, order)]


def _order(offsets: np.ndarray, is_cross: bool) -> np.ndarray | None:
    """Return ``int[K]``, the index of voxax's offset for each kernel offset of MinkowskiEngine.

    ``offsets`` ``[K, D]`` are those of voxax. The result is None if MinkowskiEngine has no kernel
    with this set of offsets. With one axis, boxes and crosses have the same offsets in different
    orders. Custom offsets then count as a cross if they are in the order of a cross.
    """
    size = (np.ptp(offsets, axis=0) + 1).tolist()
    candidates = [minkowski_offsets(size, ndim=len(size))]
    if all(k % 2 for k in size):
        cross = minkowski_offsets(size, "cross", ndim=len(size))
        is_cross |= np.array_equal(offsets, cross)
        candidates.insert(0 if is_cross else 1, cross)
    places = (peer.places_of(offsets, np.asarray(candidate)) for candidate in candidates)
    return next((order for order in places if order is not None), None)
