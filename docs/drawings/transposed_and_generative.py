"""Pictures of docs/operators/transposed-and-generative.md."""

import jax.numpy as jnp

import voxax as vx
from voxax.nn.functional import spatially_sparse_conv

from .panel import Panel
from .samples import BOX, convolution, shown, voxels_at
from .sites import reads

BLOCK = {"kernel_size": 2, "stride": 2}


def _coarse() -> vx.Voxels:
    """The sample's level of stride 2, with features 1, 2, 3, ..."""
    geometry = vx.kernel_map(voxels_at(), **BLOCK).out_geometry
    numbers = jnp.arange(1, geometry.capacity + 1, dtype=jnp.float32)
    return vx.Voxels(geometry, numbers[:, None]).map(lambda features: features)


def transposed() -> list[Panel]:
    """Back onto the voxels of the finer level."""
    fine = voxels_at()
    out = convolution(_coarse(), (3, 2), **BLOCK, transposed=True, out_voxels=fine)
    out.insert(1, Panel("out_voxels", fine, sign=","))
    return out


def overlapping() -> list[Panel]:
    """Kernel 3, stride 2: a fine voxel may read several coarse ones."""
    fine = voxels_at()
    options = {"kernel_size": 3, "stride": 2, "transposed": True, "out_voxels": fine}
    return convolution(_coarse(), (3, 3), **options)


def generative() -> list[Panel]:
    """Stride 1: every site that a tap reaches."""
    voxels = voxels_at([(1, 1), (2, 1), (4, 3)])
    box = ((0, 6), (0, 5))
    return convolution(voxels, (3, 2), kernel_size=3, generative=True, extent=box)


def generative_strided() -> list[Panel]:
    """Draw the effect of generative=True and of spatial_shape."""
    voxels = voxels_at([(0, 1), (1, 2), (3, 0)])
    panels = [shown("input", voxels)]
    for title, options in (
        ("strided", {}),
        ("generative", {"generative": True}),
        ("… within spatial_shape=4", {"generative": True, "spatial_shape": 4}),
    ):
        kmap = vx.kernel_map(voxels, kernel_size=3, stride=2, **options)
        weight = jnp.ones((9, 1, 1), jnp.float32)
        panels.append(shown(title, spatially_sparse_conv(voxels, weight, kernel_map=kmap)))
    return panels


def upsampling() -> list[Panel]:
    """Transposed and generative: all children."""
    voxels = _coarse()
    return convolution(voxels, (3, 3), **BLOCK, transposed=True, generative=True, extent=BOX)


def chosen() -> list[Panel]:
    """A convolution onto voxels of the user's choice."""
    voxels = voxels_at()
    target = voxels_at([(x, 2) for x in range(6)])
    kmap = vx.kernel_map(voxels, kernel_size=3, out_voxels=target)
    weight = jnp.ones((9, 1, 1), jnp.float32)
    out = spatially_sparse_conv(voxels, weight, kernel_map=kmap)
    sites, _ = reads(kmap, (2, 2))
    return [
        shown("input", voxels, highlight=sites),
        Panel("out_voxels", target, sign=","),
        shown("output", out, highlight=[(2, 2)], sign="→"),
    ]


PICTURES = (transposed, overlapping, generative, generative_strided, upsampling, chosen)
