"""Errors for arguments of other libraries, such as spconv's ``indice_key``, that voxax lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from voxax.errors import InputError

_FOREIGN = {
    "padding": "leave it out. Kernels are centered, and coordinates have no bounds; "
    "generative=True with spatial_shape= makes the output sites of spconv's strided layers",
    "padding_mode": "leave it out: voxels that do not exist count as zero",
    "output_padding": "leave it out: a transposed layer returns to out_voxels=",
    "indice_key": "leave it out. Layers on the same voxels share one kernel map; an inverse layer "
    "is transposed=True, called with out_voxels=",
    "bias": "give use_bias=True or use_bias=False",
    "algo": "give fwd_algo= and bwd_algo=",
    "algorithm": "give fwd_algo= and bwd_algo=",
    "strides": "give stride=",
    "kernel_dilation": "give dilation=",
    "feature_group_count": "give groups=",
    "dimension": "give ndim=, or take a class such as SparseConv3d",
    "subm": "leave it out. Stride 1 keeps the voxels, unless generative=True",
    "inverse": "give transposed=True, and call the layer with out_voxels=",
    "inplace": "leave it out: arrays are immutable",
    "eps": "give epsilon=",
    "affine": "give use_scale= and use_bias=",
    "in_features": "give in_channels=",
    "out_features": "give out_channels=",
    "device": "leave it out. jax.device_put moves a layer's parameters",
}


def refuse_foreign(name: str, options: Mapping[str, Any], own: Collection[str] = ()) -> None:
    """Raise :class:`InputError` if an option is an argument of another library but not of voxax.

    The message says what to give instead in voxax.

    Args:
      name: name of the module or function, for the message.
      options: names and values of the keyword arguments that the caller gave.
      own: names of the arguments that the module or function really has.
    """
    for option in options:
        if option in _FOREIGN and option not in own:
            raise InputError(
                f"{name} has no argument {option}={options[option]!r}: {_FOREIGN[option]}. The "
                "pages docs/spconv.md, docs/minkowski.md, docs/torchsparse.md and "
                "docs/warpconvnet.md name the counterpart of each argument"
            )
