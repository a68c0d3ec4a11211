"""Networks by name: variants as they were published, and their weights."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from voxax import _limits
from voxax.errors import InputError, check_known
from voxax.interop.checkpoint_file import Location, write_checkpoint
from voxax.interop.sources import load_weights, weights_of
from voxax.models.centerpoint import CenterPoint
from voxax.models.minkunet import MinkUNet
from voxax.models.minkunet_stages import BLOCKS
from voxax.models.options import check_options
from voxax.models.ptv3 import PTv3
from voxax.models.second import SECOND
from voxax.models.spunet import SpUNet
from voxax.models.voxelnext import VoxelNeXt

Build = Callable[..., nnx.Module]

NUSCENES = ((0,), (1, 2), (3, 4), (5,), (6, 7), (8, 9))
"""Classes of nuScenes that share a head: car; truck, construction vehicle; bus, trailer; barrier;
motorcycle, bicycle; pedestrian, traffic cone."""

VARIANTS: Mapping[str, Build] = {
    "centerpoint": CenterPoint,
    "centerpoint-nuscenes": partial(CenterPoint, groups=NUSCENES),
    "minkunet-14": partial(MinkUNet, blocks=BLOCKS[14]),
    "minkunet-18": partial(MinkUNet, blocks=BLOCKS[18]),
    "minkunet-34": partial(MinkUNet, blocks=BLOCKS[34]),
    "minkunet-34c": partial(MinkUNet, blocks=BLOCKS[34], stem_depth=1, stem_kernel_size=5),
    "ptv3-base": PTv3,
    "second": SECOND,
    "second-residual": partial(SECOND, residual=True),
    "spunet-14": partial(SpUNet, blocks=BLOCKS[14]),
    "spunet-18": partial(SpUNet, blocks=BLOCKS[18]),
    "spunet-34c": partial(SpUNet, blocks=BLOCKS[34]),
    "voxelnext": VoxelNeXt,
    "voxelnext-nuscenes": partial(VoxelNeXt, groups=NUSCENES),
}
"""What makes each network, called with the input's channels and the number of classes."""


def list() -> builtins.list[str]:
    """Return the names that :func:`create` knows, in alphabetical order."""
    return sorted(VARIANTS)


def create(
    name: str,
    *,
    in_channels: int | None = None,
    num_classes: int | None = None,
    **options: Any,
) -> nnx.Module:
    """Return a network by its name, with random weights.

    Args:
      name: one of :func:`list`.
      in_channels: channels of the input's features; required.
      num_classes: channels of the logits; classes of a detector; required.
      **options: other arguments of the network's class, instead of the variant's.

    Raises:
      InputError: an unknown name or option, or what the class refuses.
    """
    check_known("network", name, list())
    sizes = {"in_channels": in_channels, "num_classes": num_classes}
    if missing := [f"{what}=" for what, number in sizes.items() if number is None]:
        raise InputError(
            f"create({name!r}) without {' and '.join(missing)}: give both, such as "
            f"create({name!r}, in_channels=4, num_classes=20)"
        )
    for what, number, limit in (
        ("in_channels", in_channels, _limits.CHANNELS),
        ("num_classes", num_classes, _limits.CLASSES),
    ):
        if not isinstance(number, int | np.integer):
            raise InputError(f"{what}={number!r} must be an integer")
        if number < 1:
            raise InputError(f"{what}={number} must be at least 1")
        limit.check(what, number)
    check_options(name, VARIANTS[name], options)
    try:
        return VARIANTS[name](in_channels, num_classes, **options)
    except TypeError as error:
        given = ", ".join(f"{option}={value!r:.200}" for option, value in options.items())
        raise InputError(f"{name} cannot be built with {given}: {error}") from error


def load(
    model: str | nnx.Module,
    path: Location,
    *,
    source: str | None = None,
    key: str | None = None,
    **options: Any,
) -> nnx.Module:
    """Return a network with the weights of a file.

    Every name must fit. Nothing is changed unless all do. The arrays take the dtypes of the file.

    Args:
      model: a network, changed in place, or a name of :func:`list`.
      path: ``.safetensors``, or a file that ``torch.save`` wrote, which is read with
        ``weights_only=True``; or ``hf://owner/name/file`` of a Hugging Face repository.
      source: the codebase whose names the file has, as ``"pointcept"``; None finds it.
      key: the entry of a PyTorch file that is the state dict; None looks for the usual ones.
      **options: arguments of :func:`create`, with a name: ``in_channels``, ``num_classes``, ...

    Raises:
      InputError: the file of another network or of other sizes: lists the names that are missing,
        unexpected and misshapen. A network without released weights, an unknown source.
      FileFormatError: unreadable, or it needs code to load.
      FileNotFoundError: no such file.
      MissingExtraError: the package that the file needs is not installed.
    """
    if isinstance(model, str):
        if missing := [n for n in ("in_channels", "num_classes") if n not in options]:
            raise InputError(f"load({model!r}, ...) makes a network: give {' and '.join(missing)}=")
        model = create(model, **options)
    elif options:
        raise InputError(f"{', '.join(options)} make a network: give its name, or leave them out")
    load_weights(model, path, source=source, key=key)
    return model


def save(model: nnx.Module, path: str | os.PathLike[str], *, source: str | None = None) -> Path:
    """Write the weights of a network by the names, and in the layouts, of a codebase.

    Args:
      model: one of the networks here.
      path: in an existing folder; ``.safetensors`` by its extension, else as ``torch.save`` does.
      source: the codebase, as ``"pointcept"``; None takes the first that the network has.

    Returns:
      The path.

    Raises:
      InputError: a network without released weights, an unknown source.
      MissingExtraError: the package that the file needs is not installed.
    """
    return write_checkpoint(path, weights_of(model, source))
