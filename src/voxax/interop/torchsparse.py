"""Convert weights from and to TorchSparse.

The layout is read from the sources of TorchSparse 2.1.0 (``sparsemapping_cuda.cu``,
``nn/modules/conv.py``); the library was not run. A kernel with an odd number of taps is counted
with the first axis fastest, one with an even number with the last axis fastest. At stride 1 a
kernel with an odd number of taps is centered, one with an even number reaches 0 to k-1 along every
axis. Strided kernels begin at ``-padding``. Kernels are not flipped, and a transposed convolution
uses tap k for the same offset as the convolution that it undoes. Maps are built without dilation.
Batch norm is PyTorch's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.kernel_spec import per_axis
from voxax.interop import peer
from voxax.interop.state_dict import Names, StateDict, dump, load


def from_torchsparse(
    state_dict: StateDict,
    model: nnx.Module,
    *,
    names: Names = None,
    axes: peer.Axes = None,
) -> dict[str, str]:
    """Load all parameters and statistics of a TorchSparse model into ``model``.

    Arguments and errors are as in :func:`from_spconv`. Return TorchSparse's name of each layer, by
    path in ``model``. InputError is raised too if a kernel has other offsets in TorchSparse.
    """
    return load(state_dict, model, TorchSparse(axes), names)


def to_torchsparse(
    model: nnx.Module,
    *,
    names: Names = None,
    axes: peer.Axes = None,
    like: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Return a TorchSparse state dict with the arrays of ``model``, as NumPy arrays by name.

    Arguments and errors are as in :func:`to_spconv`.
    """
    return dump(model, TorchSparse(axes), names, like)


def torchsparse_offsets(
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
) -> peer.Offsets:
    """Return the tap offsets of a TorchSparse kernel, for ``kernel_shape=`` of a voxax layer.

    A layer needs them where TorchSparse's kernel has other offsets than voxax's. This is so for
    strided kernels of size k whose padding is not ``(k - 1) // 2`` (or not 0, if stride and size
    are equal), and at stride 1 for an even number of taps and a size above 2.

    Args:
      kernel_size, stride: integers, or one per axis.
      padding: padding of a strided layer; ignored at stride 1, as in TorchSparse.

    Returns:
      ``K`` offsets of three integers, in TorchSparse's order.
    """
    size, step = per_axis(kernel_size, 3, "kernel_size"), per_axis(stride, 3, "stride")
    low = peer.paddings(padding, 3)
    if all(s == 1 for s in step):
        low = tuple((k - 1) // 2 for k in size) if np.prod(size) % 2 else (0, 0, 0)
    return _counted([range(-p, k - p) for k, p in zip(size, low, strict=True)])


def _counted(ranges: Sequence[Sequence[int]]) -> peer.Offsets:
    """Return the kernel offsets of a box in TorchSparse's order.

    ``ranges`` has the offsets along each axis.
    """
    if np.prod([len(r) for r in ranges]) % 2 == 0:
        return tuple(itertools.product(*ranges))
    return peer.first_axis_fastest(ranges)


class TorchSparse(peer.Peer):
    """Description of how TorchSparse stores layers in state dicts; arguments as in ``Peer``."""

    name = "TorchSparse"
    depthwise = False

    def weight_forms(self, layer: peer.LayerWeights) -> list[peer.Form]:
        own = layer.shape("weight")
        if layer.is_product:
            matrix, linear = peer.reshaped("kernel", own[-2:], own), peer.linear_form(own)
            return [linear, matrix] if layer.kind == "linear" else [matrix, linear]
        spec, offsets = layer.convolution, self.peer_offsets(layer)
        size = peer.grid_size(offsets)
        if spec.ndim != 3 or size is None:
            raise InputError(
                f"{layer} has the kernel {spec}: TorchSparse has boxes along three axes only"
            )
        _check_kind(layer, spec)
        _check_places(layer, spec, offsets, size)
        ranges = [np.unique(column).tolist() for column in offsets.T]
        order = peer.places_of(offsets, np.asarray(_counted(ranges)))
        assert order is not None
        return [peer.reordered("kernel", layer, order)]


def _check_kind(layer: peer.LayerWeights, spec: KernelSpec) -> None:
    if spec.generative and spec.transposed:
        raise InputError(
            f"{layer} is generative and transposed: TorchSparse looks such a kernel up from its "
            "outputs, which turns it around. Use out_voxels= (generative=False)"
        )
    if spec.generative and all(s == 1 for s in spec.stride):
        raise InputError(
            f"{layer} is generative at stride 1: TorchSparse keeps the voxels there. Use SubMConv3d"
        )
    if any(d != 1 for d in spec.dilation):
        raise InputError(
            f"{layer} has dilation {spec.dilation}: TorchSparse builds its maps without dilation"
        )


def _check_places(
    layer: peer.LayerWeights, spec: KernelSpec, offsets: np.ndarray, size: tuple[int, ...]
) -> None:
    """Raise :class:`InputError` if no TorchSparse layer of this kernel size has these offsets.

    ``offsets`` ``[K, D]`` and ``size`` are those of ``layer``, with the axes in TorchSparse's
    order, and ``spec`` is the layer's kernel.
    """
    low = offsets.min(0)
    wanted = np.asarray(torchsparse_offsets(size)).min(0)
    kept = spec.keeps_coords
    spaced = all(
        k == 1 or s == 1 for k, s in zip(size, peer.grid_steps(offsets) or (2, 2, 2), strict=True)
    )
    if spaced and (np.array_equal(low, wanted) if kept else (low <= 0).all()):
        return
    if kept:
        theirs = peer.named_ranges(np.asarray(torchsparse_offsets(size)))
        theirs = f"at stride 1 a kernel of {len(offsets)} taps has them at {theirs} there"
    else:
        theirs = "they follow one another from -padding on there"
    raise InputError(
        f"{layer} has taps at {peer.named_ranges(offsets)}: {theirs}. Build the layer with "
        "kernel_shape=torchsparse_offsets(kernel_size, stride, padding) of the peer's layer"
    )
