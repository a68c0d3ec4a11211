"""Gaussian blur with a width for each output position.

Source: Shelhamer, Wang, Darrell, "Blurring the Line Between Structure and Learning to Optimize and
Adapt Receptive Fields", 2019 (its dynamic Gaussian filters).
"""

import jax
import jax.numpy as jnp
import numpy as np

from voxax.nn import functional as F


def gaussian_blur(x, sigma, *, radius, normalize_edges=False):
    """[B, *spatial, C]; sigma, in cells, broadcasts to [B, *spatial, D]; zero copies."""
    radius = np.broadcast_to(radius, x.ndim - 2)
    size = tuple((2 * radius + 1).tolist())
    sigma = jnp.asarray(sigma, jnp.float64 if x.dtype == jnp.float64 else jnp.float32)
    sigma = jnp.broadcast_to(sigma, (*x.shape[:-1], len(size)))
    # At this width the weights of all neighbors are zero, even in float64.
    sigma = jnp.maximum(sigma, 0.025)[..., None, :]
    offsets = np.indices(size).reshape(len(size), -1).T - radius
    lead = (1,) * (x.ndim - 1)
    offsets = jnp.asarray(offsets, sigma.dtype).reshape(*lead, *offsets.shape)
    weights = jnp.exp(-jnp.sum((offsets / sigma) ** 2, axis=-1) / 2)
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    y = F.local_conv(x.astype(sigma.dtype), weights, kernel_size=size)
    if normalize_edges:  # weights inside of the grid sum to one
        y = y / F.local_conv(jnp.ones_like(y[..., :1]), weights, kernel_size=size)
    return y.astype(x.dtype)


if __name__ == "__main__":
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 16, 16, 8)), jnp.float32)
    depth = jnp.broadcast_to(jnp.linspace(0.0, 2.0, 16)[None, None, :, None], (2, 16, 16, 1))
    y = jax.jit(lambda x, sigma: gaussian_blur(x, sigma, radius=6))(x, depth)
    assert jnp.allclose(y[:, :, 0], x[:, :, 0])  # zero width, no blur
