"""Convolution and pooling modules are their functions, for every number of axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from samples import slow_unless
from voxax.nn import functional as F
from voxax.nn import modules as M


def voxels_of(ndim, channels=4, capacity=64):
    rng = np.random.default_rng(0)
    rows = rng.integers(-3, 3, (40, 1 + ndim)).astype(np.int32)
    rows[:, 0] %= 2
    features = rng.normal(size=(40, channels)).astype(np.float32)
    return vx.Voxels.from_coords(rows, features, 2, capacity=capacity)


@pytest.mark.parametrize("ndim", [slow_unless(n == 3, n) for n in (1, 2, 3, 4)])
def test_every_convolution_class_is_the_function(ndim):
    voxels = voxels_of(ndim)
    classes = {
        f"SubMConv{ndim}d": ({}, {}),
        f"SparseConv{ndim}d": ({"kernel_size": 2, "stride": 2}, {"kernel_size": 2, "stride": 2}),
    }
    for name, (given, arguments) in classes.items():
        conv = getattr(M, name)(4, 6, **given)
        expected = F.spatially_sparse_conv(
            voxels, conv.weight[...], bias=conv.bias[...], **arguments
        )
        np.testing.assert_array_equal(conv(voxels).features, expected.features)
    up = getattr(M, f"SparseConvTranspose{ndim}d")(6, 4)(conv(voxels), voxels)
    assert up.features.shape == voxels.features.shape


def test_shapes_and_custom_offsets_fix_the_number_of_taps():
    assert M.SubMConv3d(4, 4, kernel_shape="cross").weight[...].shape == (7, 4, 4)
    custom = M.SubMConv2d(4, 4, kernel_shape=np.array([[0, 0], [3, -1]]))
    assert custom.weight[...].shape == (2, 4, 4)
    assert custom(voxels_of(2)).features.shape == (64, 4)
    listed = M.SubMConv2d(4, 4, [3, 1])
    assert listed(voxels_of(2)).features.shape == (64, 4)
    window = M.MaxPool(3, 1, kernel_shape=np.array([[0, 0], [3, -1]]))
    assert window(voxels_of(2)).features.shape == (64, 4)
    assert jax.tree.leaves(window) == []


def test_generative_and_clipped():
    conv = M.SparseConv2d(4, 4, 3, 2, generative=True, spatial_shape=(4, 4), capacity=64)
    rows = conv(voxels_of(2)).valid_coords()
    assert len(rows)
    assert (rows[:, 1:] >= 0).all()
    assert (rows[:, 1:] < 2).all()


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "kernel_size": 2}, {"kernel_shape": "cross"}]
)
def test_depthwise_module(options):
    voxels = voxels_of(3)
    conv = M.SpatiallySparseDepthwiseConv(4, **options)
    expected = F.depthwise_conv(voxels, conv.weight[...], bias=conv.bias[...], **options)
    np.testing.assert_array_equal(conv(voxels).features, expected.features)
    half = M.SpatiallySparseDepthwiseConv(4, dtype=jnp.bfloat16, use_bias=False, **options)
    assert half(voxels).features.dtype == jnp.bfloat16


def test_depthwise_transposed_returns_to_the_skip():
    voxels = voxels_of(3)
    down = M.SpatiallySparseDepthwiseConv(4, 2, 2)(voxels)
    up = M.SpatiallySparseDepthwiseConv(4, 2, 2, transposed=True)(down, voxels)
    assert up.geometry.same_as(voxels.geometry)


@pytest.mark.parametrize("name", ["Max", "Min", "Mean", "Sum"])
def test_pooling_modules(name):
    voxels = voxels_of(3)
    function, module = getattr(F, f"{name.lower()}_pool"), getattr(M, f"{name}Pool")
    pooled = module(2)(voxels)
    np.testing.assert_array_equal(pooled.features, function(voxels, 2).features)
    kmap = vx.kernel_map(voxels, 3, 2)
    by_map = module(9)(voxels, kernel_map=kmap)
    np.testing.assert_array_equal(by_map.features, function(voxels, 3, 2).features)


def test_unpool_modules_return_to_the_skip():
    voxels = voxels_of(3)
    pooled, indices = M.MaxPool(2)(voxels, return_indices=True)
    back = M.Unpool(2)(pooled, voxels, indices)
    kept = back.valid_features()
    assert ((kept == 0) | (kept == voxels.valid_features())).all()
    copied = M.Unpool(2)(pooled, voxels)
    assert (copied.valid_features() >= voxels.valid_features()).all()
    folded = M.SpaceToChannel(2)(voxels)
    again = M.ChannelToSpace(2)(folded, voxels)
    np.testing.assert_array_equal(again.features, voxels.features)
    every = M.ChannelToSpace(2, capacity=512)(folded)
    assert int(every.count) == 8 * int(folded.count)


def test_modules_run_inside_jit_and_give_gradients():
    voxels = voxels_of(2)
    model = M.Sequential(
        M.SubMConv2d(4, 8), M.MaxPool(2), M.SpatiallySparseDepthwiseConv(8, ndim=2)
    )

    @nnx.jit
    def gradient(model, voxels):
        return nnx.grad(lambda m: jnp.sum(m(voxels).features ** 2))(model)

    leaves = jax.tree.leaves(gradient(model, voxels))
    assert len(leaves) == 4
    assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 0 for leaf in leaves)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: M.SparseConv2d(4, 4, ndim=3), "has 2 axes"),
        (lambda: M.SubMConv2d(4, 4, transposed=True), "use SparseConv2d"),
        (lambda: M.SubMConv2d(4, 4)(voxels_of(3)), "ndim=2, the voxels are 3-D"),
        (lambda: M.SpatiallySparseDepthwiseConv(3)(voxels_of(3)), "expects 3 channels"),
        (lambda: F.unpool(voxels_of(2), voxels_of(2), jnp.zeros((3, 4), jnp.int32)), "indices of"),
        (lambda: F.channel_to_space(voxels_of(2, 3), 2, voxels_of(2)), "multiple of 4"),
        (lambda: F.max_pool(voxels_of(2), 2, kernel_map=vx.kernel_map(voxels_of(2), 3), capacity=9),
         "already fixes"),
    ],
)  # fmt: skip
def test_refusals(make, message):
    with pytest.raises(vx.InputError, match=message):
        make()


def test_no_sum_of_a_window_is_rounded_twice():
    """The mean of bfloat16 rows is summed in float32."""
    rows = np.column_stack([np.zeros(64, int), np.arange(64)])
    voxels = vx.Voxels.from_coords(rows, np.full((64, 1), 257.0, np.float32), capacity=64)
    half = voxels.map(functools.partial(jnp.asarray, dtype=jnp.bfloat16))
    assert float(F.mean_pool(half, 64).features[0, 0]) == float(jnp.bfloat16(257.0))


@pytest.mark.parametrize("window", [{"strides": 1}, {"transposed": True}, {"return_indices": True}])
def test_unknown_keywords_of_a_window_are_refused(window):
    wrong = (TypeError, vx.InputError)
    with pytest.raises(wrong, match=r"unexpected keyword|has no argument strides=1: give stride="):
        F.mean_pool(voxels_of(2), 2, **window)


def test_a_map_must_lead_back_to_the_voxels():
    voxels = voxels_of(2)
    kmap = vx.kernel_map(voxels, 2, 2)
    pooled = F.sum_pool(voxels, kernel_map=kmap)
    back = F.unpool(pooled, voxels, kernel_map=kmap.transpose())
    np.testing.assert_array_equal(back.features, F.unpool(pooled, voxels).features)
    with pytest.raises(vx.GeometryMismatchError, match="lead back"):
        F.unpool(voxels, pooled, kernel_map=kmap)


def test_submanifold_modules_take_spconvs_order_of_arguments():
    assert M.SubMConv3d(4, 4, 3, 1, 2).relation["dilation"] == 2
    with pytest.raises(vx.InputError, match="use SparseConv3d"):
        M.SubMConv3d(4, 4, 3, 2)
    voxels = voxels_of(3)
    with pytest.raises(vx.InputError, match="already fixes out_voxels"):
        M.SubMConv3d(4, 4)(voxels, voxels, kernel_map=vx.kernel_map(voxels, 3))
