"""A weight in a NumPy array of 64 bits, which JAX without its 64-bit mode has in 32 bits."""

import warnings

import jax
import numpy as np
import pytest

import voxax as vx
from voxax.nn.functional import spatially_sparse_conv


@pytest.mark.lax_promotion
@pytest.mark.parametrize("x64", [False, True])
def test_a_float64_weight_is_multiplied_in_the_dtype_of_jax(x64, rng, caplog):
    cells = np.argwhere(rng.random((1, 5, 5, 5)) < 0.3)
    voxels = vx.Voxels.from_coords(cells, np.ones((len(cells), 3), np.float32))
    with jax.enable_x64(x64), warnings.catch_warnings():
        warnings.simplefilter("error")
        out = spatially_sparse_conv(voxels, rng.standard_normal((27, 3, 2)))
        assert out.features.dtype == (np.float64 if x64 else np.float32)
    assert not caplog.records  # the guard compares float32 by the limits of float32
