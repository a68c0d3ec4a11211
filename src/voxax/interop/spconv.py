"""Weights from and to spconv.

Read off spconv 2.3.8 and compared with it on CPU: a kernel is counted in the order of its axes,
last fastest, and not flipped, as here; ``SparseInverseConv`` and ``SparseConvTranspose`` use tap k
for the same offset as the convolution that they undo. Batch norm and linear layers are PyTorch's.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from flax import nnx

from voxax.errors import InputError
from voxax.interop.binding import Names
from voxax.interop.convert import dump, load
from voxax.interop.forms import Form, matrix_form
from voxax.interop.kernel_order import box_size, check_axes, last_axis_fastest, peer_offsets
from voxax.interop.layers import Layer

Layout = Literal["KRSC", "RSKC", "RSCK"]
"""K output channels, RS kernel axes, C input channels, in the words of spconv."""


def from_spconv(
    state_dict: Mapping[str, Any] | str | os.PathLike[str],
    model: nnx.Module,
    *,
    names: Names = None,
    axes: Sequence[int] | None = None,
    layout: Layout = "KRSC",
) -> dict[str, str]:
    """Set all parameters and statistics of ``model`` to those of an spconv model.

    A state dict has neither strides nor paddings: that the layers are the same is up to the
    caller; see the page on other libraries. Nothing is changed unless everything fits. The
    model's arrays take the dtypes of the tensors.

    Args:
      state_dict: arrays or PyTorch tensors by name, or the path of a file that holds them
        (:func:`read_checkpoint`).
      model: of convolutions, linear layers and normalisations; changed in place.
      names: which tensors belong to which layer. None: the peer's module has the layer's path
        in ``model``. A dict from paths (of layers, or of what contains them) to the peer's
        names, or a function from one to the other. ``"order"``: the layers in their order of
        definition, for a model as its constructor left it.
      axes: the peer's spatial axis for each axis of the model: ``(2, 1, 0)`` where voxels here
        are x, y, z and the peer was given z, y, x. None is the same order.
      layout: of convolution weights: ``"KRSC"`` in spconv 2.2 and later and in 2.0 and 2.1 with
        implicit gemm; ``"RSKC"`` there with the native algorithm; ``"RSCK"`` in 1.x.

    Returns:
      The peer's name by the path of each layer.

    Raises:
      InputError: a layer without tensors, tensors without a layer, another shape, a layer that
        spconv does not have.
    """
    return load(state_dict, model, _Spconv(axes, layout), names)


def to_spconv(
    model: nnx.Module,
    *,
    names: Names = None,
    axes: Sequence[int] | None = None,
    layout: Layout = "KRSC",
    like: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """The parameters and statistics of ``model`` as an spconv state dict of NumPy arrays.

    ``peer.load_state_dict({k: torch.from_numpy(v) for k, v in result.items()})`` takes it.

    Args:
      model, names, axes, layout: as in :func:`from_spconv`.
      like: the peer's own state dict: its names must be served, and its shapes decide where
        there are several ways to store a layer, such as a linear layer as a 1x1x1
        convolution. ``names="order"`` needs it.

    Raises:
      InputError: as :func:`from_spconv`.
    """
    return dump(model, _Spconv(axes, layout), names, like)


@dataclasses.dataclass(frozen=True)
class _Spconv:
    axes: Sequence[int] | None
    layout: Layout
    name: str = "spconv"
    wrappers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.layout not in ("KRSC", "RSKC", "RSCK"):
            raise InputError(f"unknown layout {self.layout!r}; known: KRSC, RSKC, RSCK")

    def wrapper_of(self, layer: Layer) -> str:
        del layer
        return ""

    def weight_forms(self, layer: Layer) -> list[Form]:
        own = layer.shape("weight")
        if layer.kind == "depthwise":
            raise InputError(
                f"{layer}: spconv has no depthwise convolution; use SpatiallySparseConv, or leave "
                "the layer out"
            )
        if layer.spec is None:
            matrix = (own[0], own[1])
            ones = [self._single_tap(own, (1,) * ndim) for ndim in (3, 2, 1, 4)]
            return [matrix_form(matrix), *ones]
        if len(layer.spec.offsets) == 1 and all(s == 1 for s in layer.spec.stride):
            matrix = (own[1], own[2])
            linear = matrix_form(matrix)
            return [
                self._single_tap(own, (1,) * layer.spec.ndim),
                dataclasses.replace(
                    linear, read=lambda x: np.transpose(x)[None], write=lambda x: np.transpose(x[0])
                ),
            ]
        return [self._box(layer)]

    def _single_tap(self, own: tuple[int, ...], ones: tuple[int, ...]) -> Form:
        """A kernel of one tap without stride is a product with the matrix ``[in, out]`` that lies
        in the weight's memory, whatever its layout says (``torch.mm`` in spconv's conv.py)."""
        c_in, c_out = own[-2:]
        shape = self._shape(ones, c_in, c_out)
        return Form("weight", shape, lambda x: x.reshape(own), lambda x: x.reshape(shape))

    def _box(self, layer: Layer) -> Form:
        spec = layer.spec
        assert spec is not None
        offsets = peer_offsets(spec, check_axes(self.axes, spec.ndim))
        size = box_size(offsets)
        if size is None:
            raise InputError(
                f"{layer} has {len(offsets)} taps in a box of "
                f"{'x'.join(map(str, np.ptp(offsets, axis=0) + 1))}: spconv has box kernels only"
            )
        if spec.keeps_coords and not all(n % 2 for n in size):
            raise InputError(
                f"{layer} keeps its voxels with a kernel of {'x'.join(map(str, size))}: spconv's "
                "SubMConv has odd sizes only; generative=True is its SparseConv"
            )
        c_in, c_out = layer.shape("weight")[1:]
        order = last_axis_fastest(offsets)
        back = np.argsort(order)
        ndim = spec.ndim
        # Axes of the peer's tensor, in the order (taps..., in, out).
        taps_in_out = {
            "KRSC": (*range(1, ndim + 1), ndim + 1, 0),
            "RSKC": (*range(ndim), ndim + 1, ndim),
            "RSCK": tuple(range(ndim + 2)),
        }[self.layout]

        def read(tensor: np.ndarray) -> np.ndarray:
            return tensor.transpose(taps_in_out).reshape(-1, c_in, c_out)[back]

        def write(weight: np.ndarray) -> np.ndarray:
            boxed = weight[order].reshape(*size, c_in, c_out)
            return boxed.transpose(np.argsort(taps_in_out))

        return Form("weight", self._shape(size, c_in, c_out), read, write)

    def _shape(self, size: tuple[int, ...], c_in: int, c_out: int) -> tuple[int, ...]:
        return {
            "KRSC": (c_out, *size, c_in),
            "RSKC": (*size, c_out, c_in),
            "RSCK": (*size, c_in, c_out),
        }[self.layout]
