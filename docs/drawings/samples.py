"""The few voxels that most pictures start from, and what convolutions look like."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import voxax as vx
from voxax.nn.functional import spatially_sparse_conv

from .panel import Panel
from .sites import reads

SITES = ((0, 1), (1, 1), (1, 2), (2, 2), (3, 2), (3, 3), (4, 0), (5, 4), (5, 5))
BOX = ((0, 6), (0, 6))
# One capacity for all pictures, so that they share compiled programs.
CAPACITY = 64


def voxels_at(sites: Any = SITES, values: Any = None, batch_size: int = 1) -> vx.Voxels:
    """Voxels on ``[n, D]`` sites, or ``[n, 1 + D]`` coords; features 1, 2, 3, ... if not given."""
    coords = np.asarray(sites, np.int32)
    if batch_size == 1:
        coords = np.pad(coords, ((0, 0), (1, 0)))
    if values is None:
        values = np.arange(1, len(coords) + 1)
    features = np.asarray(values, np.float32).reshape(len(coords), -1)
    return vx.Voxels.from_coords(coords, features, batch_size, capacity=CAPACITY)


def shown(title: str, voxels: vx.Voxels, **options: Any) -> Panel:
    """A panel with the first channel's numbers on the voxels."""
    return Panel(title, voxels, values="features", labels="values", **options)


def convolution(
    voxels: vx.Voxels,
    site: tuple[int, ...],
    *,
    note: str = "",
    extent: Any = None,
    **relation: Any,
) -> list[Panel]:
    """Input, kernel and output of a convolution whose weights are all one.

    What the output site `site` reads is outlined.
    """
    kmap = vx.kernel_map(voxels, **relation)
    weight = jnp.ones((kmap.num_offsets, 1, 1), jnp.float32)
    out = spatially_sparse_conv(voxels, weight, kernel_map=kmap)
    sites, taps = reads(kmap, site)
    return [
        shown("input", voxels, highlight=sites, extent=extent),
        Panel("kernel", kernel=kmap, highlight=taps, sign="∗"),
        shown("output", out, highlight=[site], sign="→", note=note, extent=extent),
    ]
