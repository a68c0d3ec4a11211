"""Weights from and to MinkowskiEngine.

Read off the sources of MinkowskiEngine 0.5.4 (``kernel_region.hpp``, ``MinkowskiConvolution.py``);
it was not run. A box kernel counts its taps with the first axis fastest. An odd size reaches
``-(k // 2)`` to ``k // 2``, an even one ``0`` to ``k - 1``, whatever the stride. A cross begins
with its centre; each axis follows, first the positive offsets, then the negative ones. Nothing is
flipped, and a transposed convolution uses tap k for the same offset as the convolution that it
undoes. Batch norm and linear layers are PyTorch's, in inner modules ``bn`` and ``linear``.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.kernel_spec import per_axis
from voxax.interop.peer import (
    Form,
    LayerWeights,
    Role,
    check_axes,
    linear_form,
    named_ranges,
    peer_offsets,
    places_of,
    reshaped,
    vector_forms,
)
from voxax.interop.state_dict import Names, dump, load


def from_minkowski(
    state_dict: Mapping[str, Any] | str | os.PathLike[str],
    model: nnx.Module,
    *,
    names: Names = None,
    axes: Sequence[int] | None = None,
) -> dict[str, str]:
    """Set all parameters and statistics of ``model`` to those of a MinkowskiEngine model.

    Nothing is changed unless everything fits. The model's arrays take the dtypes of the tensors.

    Args:
      state_dict, model, names, axes: as in :func:`from_spconv`. The peer's name of a batch norm or
        linear layer may leave out the inner ``bn`` or ``linear``.

    Returns:
      The peer's name by the path of each layer.

    Raises:
      InputError: a layer without tensors, tensors without a layer, another shape, a layer that
        MinkowskiEngine does not have, a kernel with another reach.
    """
    return load(state_dict, model, _Minkowski(axes), names)


def to_minkowski(
    model: nnx.Module,
    *,
    names: Names = None,
    axes: Sequence[int] | None = None,
    like: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """The parameters and statistics of ``model`` as a MinkowskiEngine state dict of NumPy arrays.

    Args:
      model, names, axes: as in :func:`from_minkowski`.
      like: as in :func:`to_spconv`. Without it a ``Linear`` is written for ``MinkowskiLinear``;
        with it also for the convolution of kernel size 1 that networks often have in its place.

    Raises:
      InputError: as :func:`from_minkowski`.
    """
    return dump(model, _Minkowski(axes), names, like)


def minkowski_offsets(
    kernel_size: int | Sequence[int],
    kernel_shape: Literal["box", "cross"] = "box",
    *,
    ndim: int = 3,
) -> tuple[tuple[int, ...], ...]:
    """The offsets of a kernel of MinkowskiEngine, in its order, for ``kernel_shape=`` of ours.

    Needed where its reach is another: even sizes from 4 on with a stride other than the size, odd
    sizes from 3 on with a stride equal to the size.

    Args:
      kernel_size: an integer, or one per axis; odd for a cross.
      kernel_shape: ``HYPER_CUBE`` is ``"box"``, ``HYPER_CROSS`` is ``"cross"``.
      ndim: spatial axes.

    Returns:
      ``K`` offsets of ``ndim`` integers.
    """
    size = per_axis(kernel_size, ndim, "kernel_size")
    if kernel_shape == "box":
        ranges = [range(k) if k % 2 == 0 else range(-(k // 2), k // 2 + 1) for k in size]
        # product() has its last factor fastest.
        return tuple(taps[::-1] for taps in itertools.product(*ranges[::-1]))
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


@dataclasses.dataclass(frozen=True)
class _Minkowski:
    axes: Sequence[int] | None
    name: str = "MinkowskiEngine"
    wrappers: tuple[str, ...] = ("bn", "linear")
    grouped: bool = False

    def wrapper_of(self, layer: LayerWeights) -> str:
        if layer.kind == "linear":
            return "linear"
        return "bn" if "mean" in layer.arrays else ""

    def forms(self, layer: LayerWeights) -> dict[Role, list[Form]]:
        convolves = layer.kind in ("conv", "depthwise")
        found: dict[Role, list[Form]]
        found = {role: vector_forms(layer, role, as_row=convolves) for role in layer.arrays}
        if layer.kind != "norm":
            found["weight"] = self._weight(layer)
        return found

    def _weight(self, layer: LayerWeights) -> list[Form]:
        own = layer.shape("weight")
        if not layer.is_product:
            assert layer.spec is not None
            return [self._taps(layer, layer.spec)]
        matrix, stacked = (reshaped("kernel", s, own) for s in (own[-2:], (1, *own[-2:])))
        linear = linear_form(own)
        return [linear, matrix, stacked] if layer.kind == "linear" else [matrix, stacked, linear]

    def _taps(self, layer: LayerWeights, spec: KernelSpec) -> Form:
        offsets = peer_offsets(spec, check_axes(self.axes, spec.ndim))
        order = _order(offsets, layer.is_cross)
        if order is None:
            size = (np.ptp(offsets, axis=0) + 1).tolist()
            theirs = np.asarray(minkowski_offsets(size, ndim=spec.ndim))
            # A layer is built in the order of our axes.
            own = (np.ptp(spec.offsets, axis=0) + 1).tolist()
            fix = f"{own}" if spec.ndim == 3 else f"{own}, ndim={spec.ndim}"
            raise InputError(
                f"{layer} has {len(offsets)} taps at {named_ranges(offsets)}: a box of size {size} "
                f"in MinkowskiEngine has {len(theirs)} at {named_ranges(theirs)}, a cross has odd "
                f"sizes. Build the layer with kernel_shape=minkowski_offsets({fix})"
            )
        back = np.argsort(order)
        return Form("kernel", layer.shape("weight"), lambda x: x[back], lambda x: x[order])


def _order(offsets: np.ndarray, is_cross: bool) -> np.ndarray | None:
    """``int[K]``: the number of our tap at each of MinkowskiEngine's places; None without any.

    Along a line, boxes and crosses have the same offsets in another order. Custom offsets are
    then a cross if they are in its order.
    """
    size = (np.ptp(offsets, axis=0) + 1).tolist()
    candidates = [minkowski_offsets(size, ndim=len(size))]
    if all(k % 2 for k in size):
        cross = minkowski_offsets(size, "cross", ndim=len(size))
        is_cross |= np.array_equal(offsets, cross)
        candidates.insert(0 if is_cross else 1, cross)
    places = (places_of(offsets, np.asarray(candidate)) for candidate in candidates)
    return next((order for order in places if order is not None), None)
