"""Convert weights from and to spconv.

The layout is read from spconv 2.3.8, and results were compared with it on CPU. As in voxax, the
last axis of a kernel is counted fastest, and kernels are not flipped. ``SparseInverseConv`` and
``SparseConvTranspose`` use tap k for the same offset as the convolution that they undo. Batch norm
and linear layers are PyTorch's.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.kernel_spec import per_axis
from voxax.interop import peer
from voxax.interop.state_dict import Names, StateDict, dump, load

Layout = Literal["KRSC", "RSKC", "RSCK"]
"""Order of a weight's axes in spconv's terms: K output channels, RS kernel, C input channels."""


def from_spconv(
    state_dict: StateDict,
    model: nnx.Module,
    *,
    names: Names = None,
    axes: peer.Axes = None,
    layout: Layout = "KRSC",
) -> dict[str, str]:
    """Load all parameters and statistics of an spconv model (the peer) into ``model``.

    A state dict has neither strides nor paddings, so you must make sure that the layers are the
    same; see the page on other libraries. The model changes only if all names and shapes match. Its
    arrays take the dtypes of the tensors.

    Args:
      state_dict: arrays or PyTorch tensors by name, or the path of a file that holds them
        (:func:`read_checkpoint`).
      model: model of convolutions, linear layers and normalizations; changed in place.
      names: the peer's name of each layer. None: the same as the layer's path in ``model``. A dict
        from paths (of layers, or of modules that contain them) to the peer's names, or a function
        from a path to the peer's name. ``"order"``: both models define their layers in the same
        order, and ``model`` is as its constructor left it.
      axes: the peer's spatial axis for each axis of the model: ``(2, 1, 0)`` if voxels are x, y, z
        in ``model`` and z, y, x in the peer, or ``"reversed"`` for layers of any number of axes.
        None is the same order.
      layout: order of the axes of convolution weights: ``"KRSC"`` in spconv 2.2 and later, and in
        2.0 and 2.1 with implicit gemm; ``"RSKC"`` in 2.0 and 2.1 with the native algorithm;
        ``"RSCK"`` in 1.x.

    Returns:
      A dict from the path of each layer to the peer's name.

    Raises:
      InputError: a layer has no tensors, a tensor has no layer, a shape differs, or spconv has no
        such layer.
    """
    return load(state_dict, model, Spconv(axes, layout=layout), names)


def to_spconv(
    model: nnx.Module,
    *,
    names: Names = None,
    axes: peer.Axes = None,
    layout: Layout = "KRSC",
    like: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Return an spconv state dict with the arrays of ``model``, as NumPy arrays by name.

    ``peer.load_state_dict({k: torch.from_numpy(v) for k, v in result.items()})`` loads it.

    Args:
      model, names, axes, layout: as in :func:`from_spconv`.
      like: state dict of the spconv model that will load the result, or None. The result has the
        names in ``like``, except counters such as ``num_batches_tracked``. The shapes in ``like``
        decide between several ways to store a layer, such as a linear layer as a 1x1x1 convolution.
        ``names="order"`` requires ``like``.

    Raises:
      InputError: as in :func:`from_spconv`.
    """
    return dump(model, Spconv(axes, layout=layout), names, like)


def spconv_offsets(
    kernel_size: int | Sequence[int],
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    *,
    ndim: int = 3,
) -> peer.Offsets:
    """Return the tap offsets of a strided spconv layer, for ``kernel_shape=`` of a voxax layer.

    A ``SparseConv`` reads the input at ``out * stride - padding + tap * dilation``; ``tap`` is from
    0 to ``kernel_size - 1`` along each axis. Without ``kernel_shape``, a voxax layer has
    ``padding = dilation * ((kernel_size - 1) // 2)``, or 0 if stride and kernel size are equal.
    Give the layer no ``dilation``, since the offsets contain it.

    Args:
      kernel_size, padding, dilation: integers, or one per axis.
      ndim: number of spatial axes.

    Returns:
      ``K`` offsets of ``ndim`` integers.
    """
    size, step = per_axis(kernel_size, ndim, "kernel_size"), per_axis(dilation, ndim, "dilation")
    low = peer.paddings(padding, ndim)
    ranges = [range(-p, -p + k * d, d) for k, p, d in zip(size, low, step, strict=True)]
    return tuple(itertools.product(*ranges))


@dataclasses.dataclass(frozen=True)
class Spconv(peer.Peer):
    """Description of how spconv stores layers in state dicts; other arguments as in ``Peer``.

    Attributes:
      layout: as in :func:`from_spconv`.
    """

    layout: Layout = "KRSC"

    name = "spconv"
    depthwise = False

    def __post_init__(self) -> None:
        if self.layout not in ("KRSC", "RSKC", "RSCK"):
            raise InputError(f"unknown layout {self.layout!r}; known: KRSC, RSKC, RSCK")

    def others(self) -> tuple[peer.Peer, ...]:
        return tuple(
            dataclasses.replace(self, layout=layout)
            for layout in get_args(Layout)
            if layout != self.layout
        )

    def weight_forms(self, layer: peer.LayerWeights) -> list[peer.Form]:
        own = layer.shape("weight")
        if layer.spec is None:
            return [peer.linear_form(own), *(self._single_tap(own, ndim) for ndim in (3, 2, 1, 4))]
        if layer.is_product:
            return [self._single_tap(own, layer.spec.ndim), peer.linear_form(own)]
        return [self._box(layer, layer.spec)]

    def _single_tap(self, own: tuple[int, ...], ndim: int) -> peer.Form:
        """Return how spconv stores a weight of a kernel of size 1 on ``ndim`` axes.

        ``own`` is the weight's shape in voxax, ``[in, out]`` or ``[1, in, out]``. spconv reads the
        memory of such a weight as a matrix ``[in, out]``, in every layout.
        """
        return peer.reshaped("weight", self._shape((1,) * ndim, *own[-2:]), own)

    def _box(self, layer: peer.LayerWeights, spec: KernelSpec) -> peer.Form:
        offsets = self.peer_offsets(layer)
        size = peer.grid_size(offsets)
        if size is None:
            raise InputError(f"{layer} has the kernel {spec}: spconv has box kernels only")
        _check_places(layer, spec)
        c_in, c_out = layer.shape("weight")[1:]
        order = np.lexsort(offsets.T[::-1])  # the last axis fastest
        back, ndim = np.argsort(order), spec.ndim
        taps_in_out = self._axes(ndim)

        def read(tensor: np.ndarray) -> np.ndarray:
            return tensor.transpose(taps_in_out).reshape(-1, c_in, c_out)[back]

        def write(weight: np.ndarray) -> np.ndarray:
            boxed = weight[order].reshape(*size, c_in, c_out)
            return boxed.transpose(np.argsort(taps_in_out))

        return peer.Form("weight", self._shape(size, c_in, c_out), read, write)

    def _axes(self, ndim: int) -> tuple[int, ...]:
        """Return the axes of spconv's weight: the ``ndim`` kernel axes, the inputs, the outputs."""
        return {
            "KRSC": (*range(1, ndim + 1), ndim + 1, 0),
            "RSKC": (*range(ndim), ndim + 1, ndim),
            "RSCK": tuple(range(ndim + 2)),
        }[self.layout]

    def _shape(self, size: tuple[int, ...], c_in: int, c_out: int) -> tuple[int, ...]:
        own = (*size, c_in, c_out)
        return tuple(own[axis] for axis in np.argsort(self._axes(len(size))))


def _check_places(layer: peer.LayerWeights, spec: KernelSpec) -> None:
    """Raise :class:`InputError` if no spconv layer has the offsets of ``spec``.

    State dicts contain no offsets, so the names and shapes of tensors could not show this.
    """
    # The axes are in the model's order, because the message proposes arguments of the layer.
    offsets = np.asarray(spec.offsets)
    steps = peer.grid_steps(offsets)
    if steps is None:
        columns = (np.unique(column).tolist() for column in offsets.T)
        places = " x ".join(",".join(map(str, column)) for column in columns)
        raise InputError(
            f"{layer} has taps at {places}: spconv's are evenly spaced, at tap * dilation - "
            "padding. Build the layer with kernel_shape=spconv_offsets(kernel_size, padding, "
            "dilation) of the peer's layer"
        )
    if not spec.keeps_coords:
        return
    size = peer.grid_size(offsets)
    assert size is not None
    if not all(n % 2 for n in size):
        raise InputError(
            f"{layer} keeps its voxels with a kernel of {'x'.join(map(str, size))}: spconv's "
            "SubMConv has odd sizes only; generative=True is its SparseConv"
        )
    if (offsets.min(0) + offsets.max(0)).any():
        dilation = tuple(s * d for s, d in zip(steps, spec.dilation, strict=True))
        raise InputError(
            f"{layer} keeps its voxels with taps at {peer.named_ranges(offsets)}: spconv's "
            "SubMConv is centered at 0, whatever its padding. Build the layer with "
            f"kernel_size={size}, dilation={dilation} and no kernel_shape; generative=True is its "
            "SparseConv"
        )
