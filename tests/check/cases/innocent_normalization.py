"""Masked normalization and softmax: what is divided by cannot be zero or negative."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "static"


@jax.custom_jvp
def root(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)


@root.defjvp
def _root(primals, tangents):
    (x,), (t,) = primals, tangents
    safe = jnp.where(x > 0, x, 1.0)
    return root(x), jnp.where(x > 0, t / (2 * jnp.sqrt(safe)), 0.0)


def model(x, mask):
    rows = mask[:, None]
    mean_square = jnp.mean(x**2, axis=1, keepdims=True)
    rms_norm = jnp.where(rows, x * jax.lax.rsqrt(mean_square + 1e-6), 0.0)
    magnitude = jnp.where(rows, x / jnp.sqrt(jnp.mean(jnp.abs(x)) + 1e-6), 0.0)
    weights = jnp.exp(x - jax.lax.stop_gradient(jnp.max(x, axis=1, keepdims=True)))
    softmax = jnp.where(rows, weights / jnp.sum(weights, axis=1, keepdims=True), 0.0)
    log = jnp.where(rows, jnp.log(jnp.sum(jnp.exp(x), axis=1, keepdims=True)), 0.0)
    rectified = jnp.where(rows, jnp.sqrt(jnp.max(jax.nn.relu(x), axis=1) + 1e-6)[:, None], 0.0)
    return jnp.sum(rms_norm + magnitude + softmax + log + rectified + root(x))


def inputs():
    return np.ones((3, 4), np.float32), np.array([True, False, True])
