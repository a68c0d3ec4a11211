"""The rewrites of all faults."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x, n):
    y = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)
    y = jax.lax.fori_loop(0, n, lambda i, a: a + x, y)
    y = jax.lax.while_loop(lambda a: a.sum() < 10, lambda a: a + 1, y)
    (rows,) = jnp.nonzero(x, size=3, fill_value=-1)
    y = jnp.where(jnp.arange(4) < n, y, 0)
    window = jax.lax.dynamic_slice_in_dim(y, n, 2)
    y = y.at[0].set(1.0).at[n].add(2.0)
    z = jax.lax.switch(n, [jnp.sin, jnp.cos, jnp.tan, jnp.exp], y)
    return y, rows, window, z, jnp.sum(x, where=x > 0), jnp.stack([x, y])[n]


def inputs():
    return np.arange(4, dtype=np.float32), jnp.int32(1)
