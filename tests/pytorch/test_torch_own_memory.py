"""Voxels and points of tensors do not change when the caller writes to the tensors."""

import jax
import numpy as np
import pytest

import voxax as vx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch

ROWS = 1024
SITES = np.stack(np.unravel_index(np.arange(ROWS), (1, 8, 8, 16)), 1)

CONSTRUCTORS = {
    "points": lambda c, p, f: vx.Points.make(p, f, c[:, 0]),
    "from_coords": vx.Voxels.from_coords,
    "voxelize": lambda c, p, f: vx.voxelize(p, f, 0.1, c[:, 0], return_inverse=True),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_caller_may_write_to_tensors_again(name):
    coords = torch.from_numpy(SITES.astype(np.int32)).clone()
    positions, features = 0.1 * coords[:, 1:] + 0.05, torch.ones(ROWS, 4)
    given = (coords, features) if name.endswith("from_coords") else (coords, positions, features)
    made = CONSTRUCTORS[name](*given)
    want = [np.array(leaf) for leaf in jax.tree.leaves(made)]
    for tensor in (coords, positions, features):
        tensor += 3
    for leaf, kept in zip(jax.tree.leaves(made), want, strict=True):
        np.testing.assert_array_equal(leaf, kept)
