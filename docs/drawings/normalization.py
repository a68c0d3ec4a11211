"""Picture of docs/operators/normalization.md."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import voxax as vx
from voxax.nn.functional import (
    group_norm,
    instance_norm,
    layer_norm,
    masked_moments,
    normalize,
    rms_norm,
)

from .panel import Panel

SCENES = np.array([0, 0, 0, 1, 1])
CHANNELS = 4


def statistics() -> list[Panel]:
    """Entries of one group share a statistic, as the functions' derivatives tell."""
    return [
        _panel("BatchNorm", _batch_norm),
        _panel("layer_norm", layer_norm),
        _panel("rms_norm", rms_norm),
        _panel("instance_norm", instance_norm),
        _panel("group_norm, 2 groups", lambda voxels: group_norm(voxels, 2)),
    ]


def _batch_norm(voxels: vx.Voxels) -> vx.Voxels:
    mean, variance, _ = masked_moments(voxels.features, voxels.valid)
    return normalize(voxels, mean, variance)


def _panel(title: str, norm: Callable[[vx.Voxels], vx.Voxels]) -> Panel:
    """Channels to the right, voxels of each scene downwards."""
    rows = len(SCENES)
    coords = np.stack([SCENES, np.arange(rows)], axis=1).astype(np.int32)
    x = np.random.default_rng(0).normal(size=(rows, CHANNELS)).astype(np.float32)
    voxels = vx.Voxels.from_coords(coords, x, 2, capacity=rows)
    slope = jax.jacfwd(lambda f: norm(voxels.replace_features(f)).features)(jnp.asarray(x))
    touched = np.asarray(slope != 0).reshape(rows * CHANNELS, rows * CHANNELS)
    # Entries that depend on each other share a group, named after its first entry.
    _, groups = np.unique(touched.argmax(axis=1), return_inverse=True)
    index, channel = np.divmod(np.arange(rows * CHANNELS), CHANNELS)
    below = np.array([2, 1, 0, 2, 1])
    cells = np.stack([SCENES[index], channel, below[index]], axis=1)
    order = np.lexsort(cells.T[::-1])
    return Panel(
        title,
        cells[order],
        groups=groups[order],
        labels=["abcdefgh"[group] for group in groups[order]],
        note="→ channels   ↓ voxels",
        extent=((0, CHANNELS), (0, 3)),
    )


PICTURES = (statistics,)
