"""A scan and a vmap over rows, with a gradient."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def loss(weight, x):
    def step(carry, row):
        carry = jnp.tanh(carry @ weight + row)
        return carry, carry.sum()

    _, sums = jax.lax.scan(step, jnp.zeros(3), x)
    return jnp.mean(sums)


def model(weight, x):
    return jax.value_and_grad(jax.checkpoint(loss))(weight, x)


def inputs():
    return np.eye(3, dtype=np.float32), np.ones((4, 3), np.float32)
