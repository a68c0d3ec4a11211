"""curve_order: permutations that come with their inverse."""

import jax
import numpy as np
import pytest

import voxax as vx
from oracle import coordinates as loops
from samples import make_voxels

ROWS = np.random.default_rng(0).permutation(np.indices((2, 5, 5)).reshape(3, -1).T)[:30]
ROWS = ROWS - np.array([0, 2, 3])
VOXELS = make_voxels(ROWS, channels=4, capacity=48)


@pytest.mark.parametrize("curve", ["lexicographic", "morton", "hilbert"])
def test_order_and_inverse(curve):
    order, inverse = jax.jit(lambda v: vx.curve_order(v, curve))(VOXELS)
    assert order.dtype == inverse.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(48))
    np.testing.assert_array_equal(order[inverse], np.arange(48))
    np.testing.assert_array_equal(order[30:], np.arange(30, 48))
    expected = loops.in_order(map(tuple, ROWS.tolist()), curve)
    np.testing.assert_array_equal(VOXELS.coords[order][:30], expected)
    np.testing.assert_array_equal(VOXELS.features[order][inverse], VOXELS.features)


def test_unknown_curve():
    with pytest.raises(vx.InputError, match="'peano'; known: lexicographic, morton, hilbert"):
        vx.curve_order(VOXELS, "peano")
