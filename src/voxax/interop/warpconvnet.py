"""Weights from and to WarpConvNet.

Read off the sources of WarpConvNet 1.8.1 (``kernel_map.cuh``, ``torch_discrete.py``,
``nn/modules/sparse_conv.py``); it was not run. A kernel is counted in the order of its axes, last
fastest, and not flipped, as here, and its weight has our shape, with groups and depthwise too. Odd
sizes reach ``-(k // 2)`` to ``k // 2``, even ones ``0`` to ``k - 1``, whatever the stride. A
transposed convolution uses tap k for the same offset as the convolution that it undoes. Batch norm
and linear layers are PyTorch's, in inner modules ``norm`` and ``block``.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

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


def from_warpconvnet(
    state_dict: Mapping[str, Any] | str | os.PathLike[str],
    model: nnx.Module,
    *,
    names: Names = None,
    axes: Sequence[int] | None = None,
) -> dict[str, str]:
    """Set all parameters and statistics of ``model`` to those of a WarpConvNet model.

    Nothing is changed unless everything fits. The model's arrays take the dtypes of the tensors.

    Args:
      state_dict, model, names, axes: as in :func:`from_spconv`. The peer's name of a batch norm or
        linear layer may leave out the inner ``norm`` or ``block``.

    Returns:
      The peer's name by the path of each layer.

    Raises:
      InputError: a layer without tensors, tensors without a layer, another shape, a kernel with
        another reach.
    """
    return load(state_dict, model, _WarpConvNet(axes), names)


def to_warpconvnet(
    model: nnx.Module,
    *,
    names: Names = None,
    axes: Sequence[int] | None = None,
    like: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """The parameters and statistics of ``model`` as a WarpConvNet state dict of NumPy arrays.

    Args:
      model, names, axes: as in :func:`from_warpconvnet`.
      like: as in :func:`to_spconv`.

    Raises:
      InputError: as :func:`from_warpconvnet`.
    """
    return dump(model, _WarpConvNet(axes), names, like)


def warpconvnet_offsets(
    kernel_size: int | Sequence[int], *, ndim: int = 3
) -> tuple[tuple[int, ...], ...]:
    """The offsets of a kernel of WarpConvNet, in its order, for ``kernel_shape=`` of ours.

    Needed where its reach is another: even sizes from 4 on with a stride other than the size, odd
    sizes from 3 on with a stride equal to the size.

    Args:
      kernel_size: an integer, or one per axis.
      ndim: spatial axes.

    Returns:
      ``K`` offsets of ``ndim`` integers.
    """
    size = per_axis(kernel_size, ndim, "kernel_size")
    ranges = [range(k) if k % 2 == 0 else range(-(k // 2), k // 2 + 1) for k in size]
    return tuple(itertools.product(*ranges))


@dataclasses.dataclass(frozen=True)
class _WarpConvNet:
    axes: Sequence[int] | None
    name: str = "WarpConvNet"
    wrappers: tuple[str, ...] = ("norm", "block")
    grouped: bool = True

    def wrapper_of(self, layer: LayerWeights) -> str:
        if layer.kind == "linear":
            return "block"
        return "norm" if layer.kind == "norm" else ""

    def forms(self, layer: LayerWeights) -> dict[Role, list[Form]]:
        found: dict[Role, list[Form]]
        found = {role: vector_forms(layer, role) for role in layer.arrays}
        own = layer.shape("weight") if "weight" in layer.arrays else ()
        if layer.kind == "linear":
            found["weight"] = [linear_form(own), reshaped("weight", (1, *own), own)]
        elif layer.kind != "norm":
            assert layer.spec is not None
            found["weight"] = [self._taps(layer, layer.spec)]
        return found

    def _taps(self, layer: LayerWeights, spec: KernelSpec) -> Form:
        offsets = peer_offsets(spec, check_axes(self.axes, spec.ndim))
        size = (np.ptp(offsets, axis=0) + 1).tolist()
        theirs = np.asarray(warpconvnet_offsets(size, ndim=spec.ndim))
        order = places_of(offsets, theirs)
        if order is None:
            # A layer is built in the order of our axes.
            own = (np.ptp(spec.offsets, axis=0) + 1).tolist()
            fix = f"{own}" if spec.ndim == 3 else f"{own}, ndim={spec.ndim}"
            raise InputError(
                f"{layer} has {len(offsets)} taps at {named_ranges(offsets)}: a kernel of size "
                f"{size} in WarpConvNet has {len(theirs)} at {named_ranges(theirs)}. Build the "
                f"layer with kernel_shape=warpconvnet_offsets({fix})"
            )
        back = np.argsort(order)
        return Form("weight", layer.shape("weight"), lambda x: x[back], lambda x: x[order])
