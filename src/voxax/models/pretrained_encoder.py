"""Point features from the released encoders Sonata, Concerto and Utonia.

The preparation of the input, and the copying of coarse features to the points, follow the
demonstrations of these encoders.

Sources: Wu et al., "Sonata: Self-Supervised Learning of Reliable Point Representations", CVPR 2025;
Zhang et al., "Concerto: Joint 2D-3D Self-Supervised Learning Emerges Spatial Representations",
NeurIPS 2025; "Utonia: Toward One Encoder for All Point Clouds", arXiv 2603.03283.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from voxax import _limits
from voxax._array_types import Int32, Num
from voxax.errors import FileFormatError, InputError, listed
from voxax.geometry import Voxels, cat
from voxax.geometry.voxels import from_coords
from voxax.interop.checkpoint_file import Location, read_with_config
from voxax.interop.sources import ENTRIES
from voxax.interop.state_dict import check_names, load
from voxax.models.ptv3 import PTv3, PTv3Encoder
from voxax.nn import functional

# Arguments of PTv3, by their names in the configuration of a released file.
_NAMES = {
    "order": "orders",
    "stride": "strides",
    "enc_depths": "encoder_depths",
    "enc_channels": "encoder_channels",
    "enc_num_head": "encoder_num_heads",
    "mlp_ratio": "mlp_ratio",
    "qkv_bias": "qkv_bias",
    "qk_scale": "scale",
    "proj_drop": "dropout",
    "drop_path": "drop_path",
    "shuffle_orders": "shuffle_orders",
}
# Entries of a configuration for which only these values are supported.
_FIXED = {"layer_scale": None, "pre_norm": True, "enable_rpe": False, "enc_mode": True}
# Entries that do not change the features: they concern the decoder, training or memory.
_UNUSED = {
    "attn_drop", "enable_flash", "upcast_attention", "upcast_softmax", "traceable", "mask_token",
    "freeze_encoder", "shift_coords", "jitter_coords", "rescale_coords", "dec_depths",
    "dec_channels", "dec_num_head", "dec_patch_size",
}  # fmt: skip
_ROTARY = ".attn.rope.inv_freq"


def load_encoder(path: Location, *, size: str = "base", **options: Any) -> PTv3:
    """Return a released encoder with its weights, in evaluation mode.

    The encoder is Sonata, Concerto or Utonia. If the PyTorch file has an entry ``config``, it
    describes the encoder; otherwise ``size`` and ``options`` do.

    Args:
      path: path of the file, as in :func:`voxax.models.load`.
      size: size as in :func:`PTv3Encoder`, for a file without ``config``.
      **options: arguments of :class:`PTv3`, which override those in the file.

    Raises:
      InputError: the file has names or shapes of another network, or entries of ``config`` that are
        not supported; the message lists them.
      FileFormatError: the file is unreadable, needs code to load, or its ``config`` does not match
        its arrays.
      FileNotFoundError: no such file.
      MissingExtraError: the package that the file needs is not installed.
    """
    state, config = read_with_config(path, ENTRIES)
    rotary = any(name.endswith(_ROTARY) for name in state)
    known = _options(path, config, rotary) if config else {}
    if config:
        _check_sizes(path, state, known)
    encoder = PTv3Encoder(**{"size": size, **known, **options})
    form = encoder.sources()["pointcept"]
    named = {name: value for name, value in state.items() if name not in form.unused}
    try:
        check_names(named, encoder, form.peer, form.rename)
        load(named, encoder, form.peer, form.rename)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    form.set_up(encoder)
    encoder.eval()
    return encoder


def _options(path: Location, config: Mapping[str, Any], rotary: bool) -> dict[str, Any]:
    """Convert a weight file's ``config`` to arguments of PTv3; raise InputError if not possible.

    If ``rotary``, the arguments include those for rotary position encoding. ``path`` is the path of
    the file, for the message.
    """
    known = {"in_channels", "enc_patch_size", "rope_base", *_NAMES, *_FIXED, *_UNUSED}
    other = sorted(map(str, set(config) - known))
    other += [f"{k}={config[k]!r}" for k, v in _FIXED.items() if config.get(k, v) != v]
    patches = config.get("enc_patch_size", (1024,))
    patches = patches if isinstance(patches, Sequence) else (patches,)
    if len(set(patches)) != 1:
        other.append(f"enc_patch_size={patches!r}")
    if other:
        raise InputError(f"{path}: its config has what is not supported here: {listed(other)}")
    found = {name: config[theirs] for theirs, name in _NAMES.items() if theirs in config}
    found |= {"in_channels": config.get("in_channels", 6), "patch_size": patches[0]}
    if rotary:
        found |= {"position": "rotary-points", "rotary_base": config.get("rope_base", 10)}
    return found


def _check_sizes(path: Location, state: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise :class:`FileFormatError` unless the arrays in ``state`` have the sizes in ``options``.

    ``state`` is the state dict of the file ``path``, and ``options`` are arguments of PTv3 from
    :func:`_options`. Only arrays of the stem and of the encoder's blocks are compared. This check
    keeps a small file from requesting a huge network.
    """
    try:
        depths, widths = options["encoder_depths"], options["encoder_channels"]
        shapes = {"embedding.stem.linear.weight": (widths[0], options["in_channels"])}
        ratio = options.get("mlp_ratio", 4)
        for level, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            _limits.BLOCKS.check(f"{path}: enc_depths", depth, 1)
            for block in range(depth):
                name = f"enc.enc{level}.block{block}"
                shapes[f"{name}.attn.qkv.weight"] = (3 * width, width)
                shapes[f"{name}.mlp.0.fc1.weight"] = (int(ratio * width), width)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise FileFormatError(
            f"{path}: its config does not say the sizes of an encoder: {error!r}"
        ) from error
    for name, shape in shapes.items():
        found = None if name not in state else tuple(state[name].shape)
        if found != shape:
            raise FileFormatError(
                f"{path}: after its config {name} is {shape}, and the file has {found}"
            )


def encoder_voxels(
    positions: Num[np.ndarray, "N 3"],
    colors: Num[np.ndarray, "N 3"] | None = None,
    normals: Num[np.ndarray, "N 3"] | None = None,
    *,
    voxel_size: float = 0.02,
    scale: float = 1.0,
    center: bool = True,
) -> tuple[Voxels, Int32[Any, " N"]]:
    """Convert the points of one scene to voxels, the input of the encoders.

    The features of a voxel are position, color and normal of its first point. (The encoders' own
    code draws a random point instead.) Voxel coordinates count from 0.

    Args:
      positions: ``[N, 3]`` in meters.
      colors: ``[N, 3]``, integers of 0..255, or floats of 0..1; None is black.
      normals: ``[N, 3]`` of length 1; None is zero.
      voxel_size: edge length of a voxel in meters: 0.02 for Sonata and Concerto, 0.01 for Utonia.
      scale: factor on the positions, applied first; 0.5 in Utonia's demonstration of rooms.
      center: whether to subtract from x and y their middle, and from z its minimum. Utonia's
        demonstration of outdoor scenes does not.

    Returns:
      Voxels of 9 channels, and ``int32[N]``, the voxel row of each point.

    Raises:
      InputError: no points, different shapes, values that are not finite, or colors out of range.
    """
    points = np.asarray(positions, np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or not len(points):
        raise InputError(f"positions of shape {list(points.shape)}: give [N, 3], at least one row")
    parts = {"positions": points}
    for name, given in (("colors", colors), ("normals", normals)):
        part = np.zeros_like(points) if given is None else np.asarray(given)
        if part.shape != points.shape:
            raise InputError(f"{name} of shape {list(part.shape)}: give {list(points.shape)}")
        whole = part.dtype.kind in "iu"
        if name == "colors":
            part = part / 255 if whole else part
            if np.any(part < 0) or np.any(part > 1):
                raise InputError(
                    "colors must be integers of 0..255, or floats of 0..1: divide yours by 255"
                )
        parts[name] = part
    for name, part in parts.items():
        if not np.isfinite(part).all():
            raise InputError(f"{name} are not all finite: leave out such points")
    if not 0 < voxel_size < np.inf or not 0 < scale < np.inf:
        raise InputError(f"voxel_size={voxel_size} and scale={scale} must be positive")
    points = points * scale
    if center:
        low, high = points.min(0), points.max(0)
        points = points - [*((low + high) / 2)[:2], low[2]]
    cells = np.floor(points / voxel_size)
    cells -= cells.min(0)
    if cells.max() >= 2**29:
        raise InputError(
            f"{cells.max():.0f} cells of {voxel_size} m along an axis: give positions in meters"
        )
    coords = np.pad(cells.astype(np.int32), ((0, 0), (1, 0)))
    features = np.concatenate([points, parts["colors"], parts["normals"]], axis=1)
    return from_coords(
        coords,
        features.astype(np.float32),
        reduction="first",
        return_inverse=True,
        voxel_size=voxel_size,
    )


def upcast_features(levels: Sequence[Voxels], joined: int = 2) -> Voxels:
    """Return the finest level's voxels with features copied from the coarser encoder levels.

    Each step copies features to the voxels of the next finer level, from the coarsest level on.

    Args:
      levels: voxels of each level, the finest first, as :meth:`PTv3.levels` returns them.
      joined: number of first steps in which the copied features are appended to the features of the
        finer level. In later steps they replace those features. The demonstrations use 2. For a
        linear probe, use all steps, such as 4.

    Raises:
      InputError: ``levels`` is empty, or ``joined`` is negative.
    """
    if not levels or joined < 0:
        raise InputError(f"{len(levels)} levels and joined={joined}: give one level and 0 at least")
    *finer, found = levels
    for step, fine in enumerate(reversed(finer)):
        stride = [a // b for a, b in zip(found.stride, fine.stride, strict=True)]
        found = functional.unpool(found, fine, kernel_size=stride)
        if step < joined:
            found = cat([fine, found])
    return found
