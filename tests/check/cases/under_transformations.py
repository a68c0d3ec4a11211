"""Faults under vmap, grad, checkpoint and in the branch of a cond."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "not static"


def per_row(row):
    return row if row.sum() > 0 else -row  # expect: VX101


def loss(x):
    if x[0, 0] > 0:  # expect: VX101
        return jnp.sum(x**2)
    return jnp.sum(x)


@jax.checkpoint
def block(x):
    return x * float(x[0, 0])  # expect: VX108


def shrink(x):
    return x[: int(x[0, 0])].sum()  # expect: VX104


def model(x):
    rows = jax.vmap(per_row)(x)
    slope = jax.grad(loss)(x)
    some = jax.lax.cond(x[0, 0] > 5, shrink, jnp.sum, x)
    return rows, slope, block(x), some


def inputs():
    return (np.ones((3, 2), np.float32),)
