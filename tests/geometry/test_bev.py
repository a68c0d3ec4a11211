"""to_bev: what the conformance suite does not ask."""

import dataclasses

import jax
import numpy as np
import pytest

import voxax as vx
from samples import complains, make_voxels
from voxax.coords import ladder_capacity

ROWS = np.random.default_rng(0).permutation(np.indices((2, 3, 3, 5)).reshape(4, -1).T)[:40]
VOXELS = make_voxels(ROWS, channels=4, capacity=48)
COLUMNS = len(np.unique(ROWS[:, :3], axis=0))


@pytest.mark.parametrize(("axis", "kept"), [(-1, [0, 1]), (2, [0, 1]), (0, [1, 2]), (-2, [0, 2])])
def test_everything_loses_the_axis(axis, kept):
    geometry = dataclasses.replace(VOXELS.geometry, stride=(1, 2, 4))
    size, origin = (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)
    out = vx.to_bev(vx.Voxels(geometry, VOXELS.features, size, origin), axis, capacity=48)
    assert out.geometry.ndim == 2
    for values, full in ((out.stride, (1, 2, 4)), (out.voxel_size, size), (out.origin, origin)):
        assert values == tuple(full[i] for i in kept)
    expected = np.unique(ROWS[:, [0, *(1 + i for i in kept)]], axis=0)
    np.testing.assert_array_equal(out.valid_coords(), expected)


def test_capacities_and_overflow():
    assert vx.to_bev(VOXELS).capacity == ladder_capacity(COLUMNS)
    assert jax.eval_shape(vx.to_bev, VOXELS).capacity == 48
    short = jax.jit(lambda v: vx.to_bev(v, capacity=4))(VOXELS)
    assert (int(short.count), int(short.num_dropped)) == (4, COLUMNS - 4)


def test_slabs_are_the_dense_grid_read_by_columns():
    slabs = vx.to_bev(VOXELS, reduction="concat", extent=(0, 5), capacity=48)
    assert slabs.num_channels == 20
    dense = VOXELS.to_dense((3, 3, 5)).reshape(2, 3, 3, 20)
    np.testing.assert_array_equal(slabs.to_dense((3, 3)), dense)


def test_what_lies_outside_the_extent_is_left_out_not_lost():
    inside = ROWS[(ROWS[:, 3] >= 1) & (ROWS[:, 3] < 3)]
    for reduction in ("sum", "concat"):
        out = jax.jit(lambda v, r=reduction: vx.to_bev(v, reduction=r, extent=(1, 3)))(VOXELS)
        np.testing.assert_array_equal(out.valid_coords(), np.unique(inside[:, :3], axis=0))
        assert int(out.num_dropped) == 0


def test_down_to_one_axis_and_no_further():
    flat = vx.to_bev(vx.to_bev(VOXELS, capacity=48), capacity=48)
    np.testing.assert_array_equal(flat.valid_coords(), np.unique(ROWS[:, :2], axis=0))
    complains("1-D", vx.to_bev, flat)


def test_bad_arguments():
    complains("axis=3 of 3-D", vx.to_bev, VOXELS, 3)
    complains("'first'; known: sum", vx.to_bev, VOXELS, reduction="first")
    complains("needs extent=", vx.to_bev, VOXELS, reduction="concat")
    complains(r"extent=\(3, 3\)", vx.to_bev, VOXELS, extent=(3, 3))
    complains(r"extent=\(0, 4294967296\)", vx.to_bev, VOXELS, extent=(0, 2**32))
    wide = {"reduction": "concat", "extent": (0, 2**30)}
    complains("beyond 32-bit row numbers.*fewer cells", vx.to_bev, VOXELS, **wide)
