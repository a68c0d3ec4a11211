"""Groups of bfloat16 on CPUs, where XLA does not multiply them on every one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle import relative_error
from voxax.nn.functional import spatially_sparse_conv

FORMS = ("native_4", "im2col", "output_stationary", "pair_lists_1024", "tiles_256")


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_multiplies_groups_of_bfloat16(form, rng):
    coords = np.unique(rng.integers(0, (1, 6, 6), (40, 3)), axis=0).astype(np.int32)
    x = rng.normal(size=(len(coords), 8)).astype(np.float32)
    weight = rng.normal(size=(9, 2, 4, 3)).astype(np.float32)

    def run(dtype, **pins):
        voxels = vx.Voxels.from_coords(coords, jnp.asarray(x, dtype))

        def forward(features, w):
            given = vx.Voxels(voxels.geometry, features)
            return spatially_sparse_conv(given, w, 3, groups=2, **pins).features

        y, back = jax.vjp(forward, voxels.features, jnp.asarray(weight, dtype))
        return y, *back(jnp.ones_like(y))

    found = run(jnp.bfloat16, fwd_algo=form, bwd_algo=form)
    for value, exact in zip(found, run(jnp.float32), strict=True):
        assert relative_error(value, exact) < 3e-2
