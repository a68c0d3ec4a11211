"""Voxels and weights that tests of one operator or another start from."""

import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx


def slow_unless(condition, *values):
    """A parameter set that runs by default, or with `-m slow` only."""
    return pytest.param(*values, marks=() if condition else pytest.mark.slow)


def complains(message, function, *args, error=vx.InputError, **options):
    """Check that a call is an error that says so."""
    with pytest.raises(error, match=message):
        function(*args, **options)


def make_voxels(rows, channels=3, dtype="float32", seed=0, capacity=384):
    """Voxels with random features, and always some padding rows.

    One capacity for all small workloads: they then share their compiled programs.
    """
    capacity = max(capacity, vx.bucket_capacity(len(rows) + 5))
    padded = np.full((capacity, rows.shape[1]), vx.PAD)
    padded[: len(rows)] = rows
    features = np.random.default_rng(seed).normal(size=(capacity, channels)).astype(np.float32)
    batch_size = int(rows[:, 0].max(initial=0)) + 1
    return vx.Voxels.from_coords(
        padded, jnp.asarray(features, dtype), batch_size, capacity=capacity
    )


def make_weight(kernel_size, ndim, c_in=3, c_out=4, dtype="float32", groups=None, seed=1):
    taps = kernel_size**ndim if isinstance(kernel_size, int) else int(np.prod(kernel_size))
    inner = (c_in, c_out) if groups is None else (groups, c_in // groups, c_out // groups)
    weight = np.random.default_rng(seed).normal(size=(taps, *inner)) / np.sqrt(taps)
    return jnp.asarray(weight, dtype)
