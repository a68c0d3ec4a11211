"""Spectral stride: the stride of each axis is a real number that is learned (DiffStride).

Source: Riad et al., "Learning Strides in Convolutional Neural Networks", ICLR 2022, whose code
crops to a shape that depends on the stride and does not rescale.
"""

import jax
import jax.numpy as jnp
import numpy as np


def resampling(stride, cells, size, smoothness):
    """float[cells, size] from the cells of one axis to its outputs, and how many these are."""
    dtype = stride.dtype
    frequencies = np.arange(cells // 2 + 1)
    # The frequencies that the outputs can hold; all of the input's if there are as many outputs.
    fits = frequencies <= (cells // 2 if size >= cells else (size - 1) // 2)
    mask = 1 + (cells / (2 * stride) - jnp.asarray(frequencies, dtype)) / smoothness
    mask = jnp.where(fits, jnp.clip(mask, 0, 1), 0)
    last = jnp.max(jnp.where(mask > 0, jnp.asarray(frequencies, jnp.int32), 0))
    extent = jnp.minimum(2 * last + 1, cells).astype(jnp.int32)
    # Each frequency stands for itself and its negative, except zero and half of the cells.
    twice = np.where((frequencies > 0) & (2 * frequencies != cells), 2.0, 1.0)
    weights = mask * jnp.asarray(twice / cells, dtype)
    # Whole turns are dropped in integers, so that float32 keeps the digits of the angle.
    turns = (np.arange(cells)[:, None] * frequencies[None]) % cells * (2 * np.pi / cells)
    number = jnp.arange(size, dtype=jnp.int32)
    whole = (number[None] * jnp.asarray(frequencies, jnp.int32)[:, None]) % extent
    angles = whole.astype(dtype) * (2 * np.pi / extent.astype(dtype))
    waves = [
        jnp.where((number < extent)[None], wave(angles) * weights[:, None], 0)
        for wave in (jnp.cos, jnp.sin)
    ]
    read = jnp.asarray(np.concatenate([np.cos(turns), np.sin(turns)], axis=1), dtype)
    return jnp.matmul(read, jnp.concatenate(waves), precision="highest"), extent


def spectral_stride(x, stride, *, smoothness=4.0, outputs=None):
    """[B, *outputs, C] and int32[D], how many outputs of each axis there are; stride >= 1."""
    ndim, extents = x.ndim - 2, []
    stride = jnp.broadcast_to(jnp.maximum(jnp.asarray(stride, x.dtype), 1), (ndim,))
    sizes = np.broadcast_to(x.shape[1:-1] if outputs is None else outputs, ndim).tolist()
    for axis, size in enumerate(sizes):
        matrix, extent = resampling(stride[axis], x.shape[1 + axis], size, smoothness)
        along = jnp.matmul(jnp.moveaxis(x, 1 + axis, -1), matrix, precision="highest")
        x = jnp.moveaxis(along, -1, 1 + axis)
        extents.append(extent)
    return x, jnp.stack(extents)


if __name__ == "__main__":
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    x = normal(2, 16, 16, 8)

    @jax.jit
    @jax.value_and_grad
    def loss(stride):
        y, _ = spectral_stride(x, stride, smoothness=2.0)
        return jnp.mean(y**2)

    value, slope = loss(jnp.asarray([2.0, 3.0]))
    assert jnp.all(slope != 0)
