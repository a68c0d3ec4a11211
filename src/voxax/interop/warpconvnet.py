"""Convert weights from and to WarpConvNet.

The layout is read from the sources of WarpConvNet 1.8.1 (``kernel_map.cuh``, ``torch_discrete.py``,
``nn/modules/sparse_conv.py``); the library was not run. As in voxax, the last axis of a kernel is
counted fastest, and kernels are not flipped. Weights, also grouped and depthwise ones, have the
same shapes. Odd sizes reach ``-(k // 2)`` to ``k // 2``, even sizes ``0`` to ``k - 1``, for every
stride. A transposed convolution uses tap k for the same offset as the convolution that it undoes.
Batch norm and linear layers are PyTorch's, in inner modules ``norm`` and ``block``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flax import nnx

from voxax.geometry.kernel_spec import per_axis
from voxax.interop import peer
from voxax.interop.state_dict import Names, StateDict, dump, load


def from_warpconvnet(
    state_dict: StateDict,
    model: nnx.Module,
    *,
    names: Names = None,
    axes: peer.Axes = None,
) -> dict[str, str]:
    """Load all parameters and statistics of a WarpConvNet model into ``model``.

    Arguments and errors are as in :func:`from_spconv`. Return WarpConvNet's name of each layer, by
    path in ``model``. InputError is raised too if a kernel of ``model`` has other offsets than
    WarpConvNet's. ``names`` of batch norms and linear layers may omit ``norm`` or ``block``.
    """
    return load(state_dict, model, _WarpConvNet(axes), names)


def to_warpconvnet(
    model: nnx.Module,
    *,
    names: Names = None,
    axes: peer.Axes = None,
    like: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Return a WarpConvNet state dict with the arrays of ``model``, as NumPy arrays by name.

    Arguments and errors are as in :func:`to_spconv`.
    """
    return dump(model, _WarpConvNet(axes), names, like)


def warpconvnet_offsets(kernel_size: int | Sequence[int], *, ndim: int = 3) -> peer.Offsets:
    """Return the tap offsets of a WarpConvNet kernel, for ``kernel_shape=`` of a voxax layer.

    A layer needs them where WarpConvNet's kernel has other offsets than voxax's: even sizes from 4
    on with a stride other than the size, odd sizes from 3 on with a stride equal to the size.

    Args:
      kernel_size: an integer, or one per axis.
      ndim: number of spatial axes.

    Returns:
      ``K`` offsets of ``ndim`` integers, in WarpConvNet's order.
    """
    size = per_axis(kernel_size, ndim, "kernel_size")
    return tuple(itertools.product(*peer.ranges_by_parity(size)))


class _WarpConvNet(peer.Peer):
    name = "WarpConvNet"
    wrappers: ClassVar = {"norm": "norm", "linear": "block"}
    grouped = True

    def weight_forms(self, layer: peer.LayerWeights) -> list[peer.Form]:
        if layer.kind == "linear":
            own = layer.shape("weight")
            return [peer.linear_form(own), peer.reshaped("weight", (1, *own), own)]
        offsets = self.peer_offsets(layer)
        size = (np.ptp(offsets, axis=0) + 1).tolist()
        theirs = np.asarray(warpconvnet_offsets(size, ndim=len(size)))
        order = peer.places_of(offsets, theirs)
        if order is None:
            raise self.other_reach(layer, offsets, warpconvnet_offsets)
        return [peer.reordered("weight", layer, order)]
