"""Values say how many results there are, and no shape bounds it; with a bound it is static."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "not static"


def model(x, counts):
    spread = jnp.repeat(x, counts)  # expect: VX107
    histogram = jnp.bincount(counts)  # expect: VX107
    sums = jax.ops.segment_sum(x, counts)  # expect: VX107
    bounded = jnp.repeat(x, counts, total_repeat_length=6)
    bins = jnp.bincount(counts, length=4)
    return spread, histogram, sums, bounded, bins, jax.ops.segment_sum(x, counts, num_segments=4)


def inputs():
    return np.arange(3, dtype=np.float32), np.array([2, 0, 3], np.int32)
