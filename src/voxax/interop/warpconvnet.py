"""Weights from and to WarpConvNet.

Read off the sources of WarpConvNet 1.8.1 (``kernel_map.cuh``, ``torch_discrete.py``,
``nn/modules/sparse_conv.py``); it was not run. A kernel is counted in the order of its axes, last
fastest, and not flipped, as here, and its weight has our shape, with groups and depthwise too. Odd
sizes reach ``-(k // 2)`` to ``k // 2``, even ones ``0`` to ``k - 1``, whatever the stride. A
transposed convolution uses tap k for the same offset as the convolution that it undoes. Batch norm
and linear layers are PyTorch's, in inner modules ``norm`` and ``block``.
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

    Arguments, result and errors are those of :func:`from_spconv`; a kernel with another reach is an
    error too. The peer's name of a batch norm or linear layer may leave out the inner ``norm`` or
    ``block``.
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
    """Return the offsets of a kernel of WarpConvNet, in its order, for ``kernel_shape=`` of ours.

    Needed where its reach is another: even sizes from 4 on with a stride other than the size, odd
    sizes from 3 on with a stride equal to the size.

    Args:
      kernel_size: an integer, or one per axis.
      ndim: spatial axes.

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
