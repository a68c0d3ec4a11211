"""Pixel-adaptive convolution: the likeness of a guide, there and at the center, weights each tap.

Source: Su et al., "Pixel-Adaptive Convolutional Neural Networks", CVPR 2019.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from voxax.nn import functional as F


def neighborhood(x, kernel_size, stride, dilation):
    """[B, *outputs, K, C]: what lies under each tap, zero outside of the grid."""
    pads = [((k - 1) // 2 * d, k // 2 * d) for k, d in zip(kernel_size, dilation, strict=True)]
    padded = jnp.pad(x, [(0, 0), *pads, (0, 0)])
    taps = []
    for tap in itertools.product(*map(range, kernel_size)):
        along = zip(tap, dilation, x.shape[1:-1], stride, strict=True)
        taps.append(padded[(slice(None), *(slice(t * d, t * d + n, s) for t, d, n, s in along))])
    return jnp.stack(taps, axis=-2)


def pixel_adaptive_conv(x, guide, weight, *, bias=None, stride=1, dilation=1, normalize=False):
    """[B, *outputs, C_out]; guide [B, *spatial, F], weight [*T, C, C_out]."""
    ndim = x.ndim - 2
    stride, dilation = (tuple(np.broadcast_to(a, ndim).tolist()) for a in (stride, dilation))
    grid = weight.shape[:ndim], stride, dilation
    guide = guide.astype(jnp.float64 if guide.dtype == jnp.float64 else jnp.float32)
    center = guide[(slice(None), *(slice(None, None, s) for s in stride))]
    apart = neighborhood(guide, *grid) - center[..., None, :]
    affinity = jnp.exp(-jnp.sum(apart**2, axis=-1) / 2)
    if normalize:  # by the sum over the taps inside of the grid
        inside = neighborhood(jnp.ones_like(guide[..., :1]), *grid)[..., 0]
        affinity = affinity / jnp.sum(affinity * inside, axis=-1, keepdims=True)
    return F.dynamic_conv(x, weight, mask=affinity, bias=bias, stride=stride, dilation=dilation)


if __name__ == "__main__":
    guide = jnp.where(jnp.arange(16) < 8, 0.0, 9.0)  # an edge between two halves
    guide = jnp.broadcast_to(guide[None, None, :, None], (2, 16, 16, 1))
    ones = jnp.ones((5, 5, 1, 1))
    smooth = jax.jit(lambda g: pixel_adaptive_conv(g, g, ones, normalize=True))(guide)
    assert jnp.allclose(smooth, guide)  # nothing is mixed across the edge
