"""Involution: each position computes its kernel from its own features with two linear layers.

Source: Li et al., "Involution: Inverting the Inherence of Convolution for Visual Recognition", CVPR
2021 (there with batch normalization between the layers).
"""

import jax
import jax.numpy as jnp
import numpy as np

from voxax.nn import functional as F


def involution(x, reduce, span, *, kernel_size, groups=1, stride=1):
    """[B, *outputs, C]; reduce [C, R], span [R, K * groups]."""
    steps = (stride,) * (x.ndim - 2) if isinstance(stride, int) else stride
    center = x[(slice(None), *(slice(None, None, s) for s in steps))]
    inner = jax.nn.relu(jnp.matmul(center, reduce, precision="highest"))
    kernels = jnp.matmul(inner, span, precision="highest")
    kernels = kernels.reshape(*center.shape[:-1], -1, groups)
    return F.local_conv(x, kernels, kernel_size=kernel_size, stride=stride)


if __name__ == "__main__":
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    x = normal(2, 16, 16, 8)
    y = jax.jit(lambda x: involution(x, normal(8, 2), normal(2, 49), kernel_size=7))(x)
    assert y.shape == x.shape
