"""Weights from and to WarpConvNet.

The layout is read from the sources of WarpConvNet 1.8.1 (``kernel_map.cuh``, ``torch_discrete.py``,
``nn/modules/sparse_conv.py``); the library was not run. As here, the last axis of a kernel is
counted fastest, and kernels are not flipped. Weights have our shapes, also grouped and depthwise
ones. Odd sizes reach ``-(k // 2)`` to ``k // 2``, even sizes ``0`` to ``k - 1``, whatever the
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
    """Set all parameters and statistics of ``model`` to those of a WarpConvNet model.

    Arguments, result and errors are those of :func:`from_spconv`. A kernel that reaches other
    offsets raises InputError too. The peer's name of a batch norm or linear layer may leave out the
    inner ``norm`` or ``block``.
    """
    return load(state_dict, model, _WarpConvNet(axes), names)


def to_warpconvnet(
    model: nnx.Module,
    *,
    names: Names = None,
    axes: peer.Axes = None,
    like: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Return a WarpConvNet state dict with the arrays of ``model``, in NumPy.

    Arguments and errors are those of :func:`to_spconv`.
    """
    return dump(model, _WarpConvNet(axes), names, like)


def warpconvnet_offsets(kernel_size: int | Sequence[int], *, ndim: int = 3) -> peer.Offsets:
    """Return the offsets of a WarpConvNet kernel, in its order, as a ``kernel_shape=`` here.

    A layer needs them where WarpConvNet's kernel reaches other offsets than ours: even sizes from 4
    on with a stride other than the size, odd sizes from 3 on with a stride equal to the size.

    Args:
      kernel_size: an integer, or one per axis.
      ndim: number of spatial axes.

    Returns:
      ``K`` offsets of ``ndim`` integers.
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
