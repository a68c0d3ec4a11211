"""Laws that every convolution obeys, on drawn voxels."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import voxax as vx
from oracle import relative_error
from properties.voxel_strategies import (
    BATCH_SIZE,
    CAPACITY,
    CHANNELS,
    equal,
    features_at,
    rows_of_voxels,
    voxels_at,
)
from samples import make_weight
from voxax.nn.functional import spatially_sparse_conv

SOME = settings(max_examples=12, deadline=None, derandomize=True)

KERNELS = pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 2), (3, 2)])


def conv(voxels, kernel, stride, **options):
    weight = make_weight(kernel, 2, voxels.num_channels, 4)
    return spatially_sparse_conv(voxels, weight, kernel, stride, **options)


@KERNELS
@SOME
@given(rows=rows_of_voxels(), order=st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(kernel, stride, rows, order):
    shuffled = list(rows)
    order.shuffle(shuffled)
    shuffled = np.asarray(shuffled, np.int32).reshape(rows.shape)
    equal(conv(voxels_at(rows), kernel, stride), conv(voxels_at(shuffled), kernel, stride))


@KERNELS
@SOME
@given(rows=rows_of_voxels())
def test_transposed_convolution_is_the_adjoint(kernel, stride, rows):
    x = voxels_at(rows)
    weight = make_weight(kernel, 2, CHANNELS, 4)
    y = spatially_sparse_conv(x, weight, kernel, stride)
    ct = y.map(lambda f: jnp.cos(jnp.arange(f.size, dtype=f.dtype)).reshape(f.shape))
    back = spatially_sparse_conv(
        ct, jnp.swapaxes(weight, 1, 2), kernel, stride, transposed=True, out_voxels=x
    )
    one, other = jnp.vdot(y.features, ct.features), jnp.vdot(x.features, back.features)
    np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-4)


@KERNELS
@SOME
@given(rows=rows_of_voxels())
def test_transposing_a_map_twice_gives_the_map(kernel, stride, rows):
    kmap = vx.kernel_map(voxels_at(rows), kernel, stride)
    again = kmap.transpose().transpose()
    np.testing.assert_array_equal(again.neighbors, kmap.neighbors)
    assert again.spec == kmap.spec
    assert again.in_geometry is kmap.in_geometry
    assert again.out_geometry is kmap.out_geometry


@KERNELS
@SOME
@given(rows=rows_of_voxels())
def test_a_larger_capacity_changes_no_bit(kernel, stride, rows):
    """With whole numbers, whose sums are exact: XLA rounds a product by an order that it picks by
    shape, so that real numbers agree to their last digits only."""
    whole = np.round(4 * features_at(rows))
    weight = jnp.round(8 * make_weight(kernel, 2, CHANNELS, 4))
    small, large = (
        spatially_sparse_conv(voxels_at(rows, whole, capacity), weight, kernel, stride)
        for capacity in (CAPACITY, 5 * CAPACITY)
    )
    equal(small, large)
    real_small, real_large = (
        conv(voxels_at(rows, capacity=capacity), kernel, stride)
        for capacity in (CAPACITY, 5 * CAPACITY)
    )
    assert relative_error(real_small.valid_features(), real_large.valid_features()) < 1e-6


@KERNELS
@SOME
@given(rows=rows_of_voxels())
def test_nan_in_the_padding_changes_no_bit(kernel, stride, rows):
    voxels = voxels_at(rows)
    nan = jnp.where(voxels.valid[:, None], voxels.features, jnp.nan)
    equal(conv(voxels, kernel, stride), conv(vx.Voxels(voxels.geometry, nan), kernel, stride))


@KERNELS
@SOME
@given(rows=rows_of_voxels())
def test_a_batch_is_its_scenes_one_by_one(kernel, stride, rows):
    together = conv(voxels_at(rows), kernel, stride)
    for scene in range(BATCH_SIZE):
        own = rows[rows[:, 0] == scene]
        alone = conv(
            voxels_at(own * np.int32([0, 1, 1]), features_at(own), batch_size=1), kernel, stride
        )
        equal(together.scene(scene), alone)


@SOME
@given(a=rows_of_voxels(), b=rows_of_voxels())
def test_intersection_and_union_share_out_the_voxels(a, b):
    """``|a| + |b| = |a or b| + |a and b|``, and the same for the sums of features."""
    one, other = voxels_at(a), voxels_at(b)
    both, either = vx.intersection(one, other), vx.union(one, other)
    assert int(one.count) + int(other.count) == int(both.count) + int(either.count)
    total = one.features.sum(0) + other.features.sum(0)
    assert relative_error(either.features.sum(0), total) < 1e-4 or np.abs(total).max() < 1e-3
