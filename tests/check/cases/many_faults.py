"""Everything at once: all are found in one pass, in both sides of a branch."""

import jax.numpy as jnp
import numpy as np

VERDICT = "not static"


def model(x, n):
    if x[0] > 0:  # expect: VX101
        rows = x[x > 1]  # expect: VX105
        total = rows.sum()
    else:
        count = int(x.max())  # expect: VX104
        total = x[:count].sum()
    (where,) = jnp.nonzero(x)  # expect: VX106
    grid = jnp.zeros((n, 2))  # expect: VX107
    host = np.asarray(x)  # expect: VX109
    return total, where, grid, host


def inputs():
    return np.array([1.0, 2.0, 3.0], np.float32), jnp.int32(2)
