"""Create published networks by name, and load and save their weights."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flax import nnx
from flax.core import FrozenDict

from voxax import _limits
from voxax.errors import InputError, check_known
from voxax.interop.checkpoint_file import Location, write_checkpoint
from voxax.interop.sources import check_settings, load_weights, load_weights_part, weights_of
from voxax.interop.state_dict import PartReport
from voxax.models.centerpoint import CenterPoint
from voxax.models.minkunet import BLOCKS, MinkUNet, SpUNet
from voxax.models.options import check_options
from voxax.models.ptv3 import PTv3
from voxax.models.second import SECOND, MultiHeadSECOND
from voxax.models.voxelnext import VoxelNeXt

Build = Callable[..., nnx.Module]

NUSCENES = ((0,), (1, 2), (3, 4), (5,), (6, 7), (8, 9))
"""Class numbers of each head of nuScenes detectors: car; truck, construction vehicle; bus, trailer;
barrier; motorcycle, bicycle; pedestrian, traffic cone."""

VARIANTS: Mapping[str, Build] = {
    "centerpoint": CenterPoint,
    "centerpoint-mmdetection3d-nuscenes": partial(
        CenterPoint, grid=(1024, 1024, 40), groups=NUSCENES, use_bias=False
    ),
    "centerpoint-nuscenes": partial(CenterPoint, groups=NUSCENES),
    "minkunet-14": partial(MinkUNet, blocks=BLOCKS[14]),
    "minkunet-18": partial(MinkUNet, blocks=BLOCKS[18]),
    "minkunet-34": partial(MinkUNet, blocks=BLOCKS[34]),
    "minkunet-34c": partial(MinkUNet, blocks=BLOCKS[34], stem_depth=1, stem_kernel_size=5),
    "ptv3-base": PTv3,
    "ptv3-base-v1": partial(PTv3, legacy=True),
    "ptv3-base-v1-s3dis": partial(PTv3, legacy=True, position="relative", patch_size=128),
    "second": SECOND,
    "second-nuscenes": partial(MultiHeadSECOND, groups=NUSCENES),
    "second-residual": partial(SECOND, residual=True),
    "spunet-14": partial(SpUNet, blocks=BLOCKS[14]),
    "spunet-18": partial(SpUNet, blocks=BLOCKS[18]),
    "spunet-34c": partial(SpUNet, blocks=BLOCKS[34]),
    "voxelnext": VoxelNeXt,
    "voxelnext-nuscenes": partial(VoxelNeXt, groups=NUSCENES),
    "voxelnext-waymo-large": partial(
        VoxelNeXt,
        grid=(1504, 1504, 40),
        branches=FrozenDict(center=2, center_z=1, dim=3, rot=2, iou=1),
        channels=(32, 64, 128, 256, 256),
        out_channels=256,
        kernel_sizes=(5, 5, 3, 3),
        head_kernel_size=3,
    ),
}
"""Constructor of each network by name; it takes the numbers of input channels and of classes."""


def list() -> builtins.list[str]:
    """Return the names that :func:`create` accepts, in alphabetical order."""
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
      in_channels: number of input features; required.
      num_classes: number of classes; required.
      **options: other arguments of the network's class; they override those of the variant.

    Raises:
      InputError: the name or an option is unknown, or the class rejects an argument.

    Examples:
      >>> model = models.create("minkunet-18", in_channels=4, num_classes=20, width=0.25)
      >>> model(voxels).num_channels
      20
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
    settings: Literal["source", "model"] = "source",
    **options: Any,
) -> nnx.Module:
    """Load a weight file of voxax or another codebase into a network, and return the network.

    All names and shapes must be those of the network; otherwise nothing is changed. The arrays
    take the dtypes of the file. A file does not contain settings: the epsilon and momentum of batch
    norms, and how attention fills its last patch. The network takes these settings from the
    codebase. A warning is issued if the names in the file are common to two codebases, or two
    versions of one, with different settings.

    Args:
      model: a network, changed in place, or a name of :func:`list`.
      path: a ``.safetensors`` file, or a file written by ``torch.save``, which is read with
        ``weights_only=True``; or ``hf://owner/name/file`` of a Hugging Face repository.
      source: codebase whose names the file has, such as ``"pointcept"``; None detects it.
      key: entry of a PyTorch file that is the state dict; None tries the usual ones.
      settings: ``"source"`` takes epsilons, momentums and similar settings from the codebase;
        ``"model"`` leaves them unchanged.
      **options: arguments of :func:`create` if ``model`` is a name: ``in_channels``,
        ``num_classes``, ...

    Raises:
      InputError: the file is of another network or has other sizes; the message lists the names
        that are missing, unexpected and misshapen. Also raised if the network has no released
        weights, or ``source`` is unknown or names a codebase that computes something else.
      FileFormatError: the file is unreadable, or loading it would run code.
      FileNotFoundError: the file does not exist.
      MissingExtraError: the package that the file needs is not installed.

    Examples:
      >>> model = models.MinkUNet14(4, 20, width=0.25, rngs=nnx.Rngs(0))
      >>> path = models.save(model, "weights.safetensors")
      >>> again = models.load("minkunet-14", path, in_channels=4, num_classes=20, width=0.25)
    """
    if isinstance(model, str):
        if missing := [n for n in ("in_channels", "num_classes") if n not in options]:
            raise InputError(f"load({model!r}, ...) makes a network: give {' and '.join(missing)}=")
        model = create(model, **options)
    elif options:
        raise InputError(f"{', '.join(options)} make a network: give its name, or leave them out")
    check_known("settings", settings, ("source", "model"))
    load_weights(model, path, source=source, key=key, set_up=settings == "source")
    return model


def load_part(
    model: nnx.Module, path: Location, *, source: str | None = None, key: str | None = None
) -> PartReport:
    """Load the layers of a file that match the network by name and shape; return a report.

    The other layers of the network keep their weights. A network for other classes or other input
    features can thus start from pretrained weights. The report names the layers that were not
    loaded.

    Args:
      model: a network, changed in place.
      path, source, key: as in :func:`load`.

    Raises:
      InputError: no layer of the file matches, or as in :func:`load`.
      FileFormatError, FileNotFoundError, MissingExtraError: as in :func:`load`.
    """
    return load_weights_part(model, path, source=source, key=key)[1]


def save(model: nnx.Module, path: str | os.PathLike[str], *, source: str | None = None) -> Path:
    """Write the weights of a network to a file, with the names and layouts of a codebase.

    A file does not contain settings such as the epsilon of batch norms. A warning is issued if the
    network's settings differ from those of the codebase.

    Args:
      model: a network of :mod:`voxax.models`.
      path: a file in an existing folder. The extension ``.safetensors`` selects that format; every
        other extension selects the format of ``torch.save``.
      source: codebase, such as ``"pointcept"``; None takes the first one of the network's sources.

    Returns:
      The path.

    Raises:
      InputError: the network has no released weights, or the source is unknown.
      MissingExtraError: the package that the file needs is not installed.

    Examples:
      >>> model = models.MinkUNet14(4, 20, width=0.25, rngs=nnx.Rngs(0))
      >>> models.save(model, "weights.safetensors").name
      'weights.safetensors'
    """
    written = write_checkpoint(path, weights_of(model, source))
    check_settings(model, source)
    return written
