"""Integer features in every public function: exact integers, the result of floats, or an error."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.geometry import host
from voxax.nn import functional as F
from voxax.nn import modules as M

pytestmark = pytest.mark.lax_promotion

RNG = np.random.default_rng(0)
ROWS = np.unique(RNG.integers(0, (2, 4, 4), (40, 3)), axis=0).astype(np.int32)
VALUES = RNG.integers(0, 121, (len(ROWS), 4))  # every dtype holds one, 8 bits hold few sums
CAPACITY = 32
POSITIONS = RNG.uniform(0, 2, (24, 2)).astype(np.float32)
WEIGHT = RNG.normal(size=(9, 4, 3)).astype(np.float32)
DEEP = RNG.normal(size=(9, 4, 4)).astype(np.float32)
SIZES = np.full(CAPACITY, 2.5, np.float32)
SHARES = RNG.uniform(0.2, 0.8, (CAPACITY, 9)).astype(np.float32)
ROW = np.array([0.5, 1.5, 2.5, 3.5], np.float32)
KEY = jax.random.key(0)


def voxels(dtype, start=0):
    features = np.roll(VALUES, start, axis=0).astype(dtype)
    return vx.Voxels.from_coords(ROWS, features, 2, capacity=CAPACITY, reduction="first")


def points(dtype):
    return vx.Points.make(POSITIONS, VALUES[np.arange(24) % len(VALUES)].astype(dtype))


def grid(dtype):
    return jnp.asarray(np.arange(2 * 4 * 4 * 4).reshape(2, 4, 4, 4) * 7 % 120, dtype)


def merged(reduction):
    def run(dtype):
        rows = np.concatenate([ROWS, ROWS[::-1]])
        features = np.concatenate([VALUES, VALUES]).astype(dtype)
        return vx.Voxels.from_coords(rows, features, 2, capacity=CAPACITY, reduction=reduction)

    return run


def cloud(reduction):
    def run(dtype):
        return vx.voxelize(points(dtype), voxel_size=1.0, reduction=reduction)

    return run


def of(module, *args, **options):
    """A module of four channels on voxels."""
    return lambda dtype: module(*args, **options)(voxels(dtype))


def encoded(encoder, dtype):
    return encoder(4, 3, 1.0, ndim=2, rngs=nnx.Rngs(0))(points(dtype))


def depthwise(dtype):
    v = voxels(dtype)
    kmap = vx.kernel_map(v, 3)
    return F.spatially_sparse_depthwise_conv(v.features, jnp.asarray(WEIGHT[..., 0]), kmap)


def unpooled(dtype, *indices):
    v = voxels(dtype)
    pooled, rows = F.max_pool(v, 2, return_indices=True)
    return F.unpool(pooled, v, *(rows for _ in indices))


# What computes with fractions: integers give what the same numbers in float32 give.
FRACTIONS = {
    "Voxels.from_coords mean": merged("mean"),
    "voxelize mean": cloud("mean"),
    "voxelize_on_host": lambda dtype: host.voxelize_on_host(
        POSITIONS, VALUES[np.arange(24) % len(VALUES)].astype(dtype), 1.0
    )[0],
    "coarsen mean": lambda dtype: vx.coarsen(voxels(dtype)),
    "to_bev mean": lambda dtype: vx.to_bev(voxels(dtype), reduction="mean"),
    "union mean": lambda dtype: vx.union(voxels(dtype), voxels(dtype, 1), reduction="mean"),
    "intersection mean": lambda dtype: vx.intersection(
        voxels(dtype), voxels(dtype, 1), reduction="mean"
    ),
    "mean_pool": lambda dtype: F.mean_pool(voxels(dtype), 2),
    "unpool copy": unpooled,
    "global_pool mean": lambda dtype: F.global_pool(voxels(dtype)),
    "masked_moments": lambda dtype: F.masked_moments(voxels(dtype).features, voxels(dtype).valid),
    "normalize": lambda dtype: F.normalize(voxels(dtype), ROW, ROW, ROW, ROW),
    "layer_norm": lambda dtype: F.layer_norm(voxels(dtype)),
    "rms_norm": lambda dtype: F.rms_norm(voxels(dtype)),
    "group_norm": lambda dtype: F.group_norm(voxels(dtype), 2),
    "group_norm points": lambda dtype: F.group_norm(points(dtype), 2),
    "instance_norm": lambda dtype: F.instance_norm(voxels(dtype)),
    "dropout 0": lambda dtype: F.dropout(voxels(dtype), 0.0, KEY),
    "dropout 0.3": lambda dtype: F.dropout(voxels(dtype), 0.3, KEY),
    "dropout 1": lambda dtype: F.dropout(voxels(dtype), 1.0, KEY, "channel"),
    "focal_conv": lambda dtype: F.focal_conv(voxels(dtype), WEIGHT, SHARES, capacity=128),
    "focal_conv integers": lambda dtype: F.focal_conv(
        voxels(dtype), np.ones((9, 4, 2), dtype), SHARES, capacity=128
    ),
    "spatially_sparse_conv": lambda dtype: F.spatially_sparse_conv(voxels(dtype), WEIGHT, 3),
    "depthwise_conv": lambda dtype: F.depthwise_conv(voxels(dtype), WEIGHT[..., 0], 3),
    "spatially_sparse_depthwise_conv": depthwise,
    "sparse_dynamic_conv soft": lambda dtype: F.sparse_dynamic_conv(
        voxels(dtype), WEIGHT, 3, size=SIZES, tau=1.0
    ),
    "sparse_dynamic_conv mask": lambda dtype: F.sparse_dynamic_conv(
        voxels(dtype), WEIGHT, 3, mask=SHARES
    ),
    "sparse_dynamic_conv mixture": lambda dtype: F.sparse_dynamic_conv(
        voxels(dtype), np.stack([WEIGHT, WEIGHT]), 3, mixture=SHARES[:, :2]
    ),
    "BatchNorm": of(M.BatchNorm, 4),
    "BatchNorm averages": of(M.BatchNorm, 4, use_running_average=True),
    "GELU": of(M.GELU),
    "SiLU": of(M.SiLU),
    "LeakyReLU": of(M.LeakyReLU),
    "Linear": lambda dtype: M.Linear(4, 2, rngs=nnx.Rngs(0))(voxels(dtype)),
    "Dropout": lambda dtype: M.Dropout(0.5, rngs=nnx.Rngs(0))(voxels(dtype)),
    "Dropout evaluated": of(M.Dropout, 0.5, deterministic=True),
    "VoxelFeatureEncoder": lambda dtype: M.VoxelFeatureEncoder(4, 3, 1.0, ndim=2, rngs=nnx.Rngs(0))(
        points(dtype)
    ),
    "PillarEncoder": lambda dtype: M.PillarEncoder(4, 3, 1.0, ndim=2, rngs=nnx.Rngs(0))(
        points(dtype)
    ),
    "times": lambda dtype: voxels(dtype) * 0.5,
    "times row": lambda dtype: voxels(dtype) * ROW,
}

# What only moves, counts, adds and compares: integers stay integers, and no sum wraps around.
EXACT = {
    **{f"Voxels.from_coords {name}": merged(name) for name in ("sum", "max", "min", "first")},
    **{f"voxelize {name}": cloud(name) for name in ("sum", "max", "min", "first")},
    "coarsen sum": lambda dtype: vx.coarsen(voxels(dtype), reduction="sum"),
    "to_bev sum": lambda dtype: vx.to_bev(voxels(dtype)),
    "to_bev concat": lambda dtype: vx.to_bev(voxels(dtype), reduction="concat", extent=(0, 4)),
    "union sum": lambda dtype: vx.union(voxels(dtype), voxels(dtype, 1)),
    "union max": lambda dtype: vx.union(voxels(dtype), voxels(dtype, 1), reduction="max"),
    "intersection sum": lambda dtype: vx.intersection(voxels(dtype), voxels(dtype, 1)),
    "sum_pool": lambda dtype: F.sum_pool(voxels(dtype), 2),
    "max_pool": lambda dtype: F.max_pool(voxels(dtype), 2),
    "min_pool": lambda dtype: F.min_pool(voxels(dtype), 2),
    "unpool indices": lambda dtype: unpooled(dtype, True),
    **{
        f"global_pool {name}": lambda dtype, name=name: F.global_pool(voxels(dtype), name)
        for name in ("sum", "max", "min")
    },
    "space_to_channel": lambda dtype: F.space_to_channel(voxels(dtype), 2),
    "channel_to_space": lambda dtype: F.channel_to_space(
        F.space_to_channel(voxels(dtype), 2), 2, voxels(dtype)
    ),
    "cat": lambda dtype: vx.cat([voxels(dtype), voxels(dtype, 1)], join="union"),
    "inject": lambda dtype: vx.inject(voxels(dtype), voxels(dtype)),
    "prune": lambda dtype: vx.prune(voxels(dtype), voxels(dtype).valid),
    "top_k": lambda dtype: vx.top_k(voxels(dtype), jnp.arange(CAPACITY, dtype=jnp.float32), 9),
    "crop": lambda dtype: vx.crop(voxels(dtype), (0, 0), (3, 3)),
    "dilate": lambda dtype: vx.dilate(voxels(dtype)),
    "refine": lambda dtype: vx.refine(voxels(dtype), 2),
    "batch": lambda dtype: vx.batch([voxels(dtype), voxels(dtype)]),
    "unbatch": lambda dtype: vx.unbatch(voxels(dtype))[1],
    "Voxels.to_dense": lambda dtype: voxels(dtype).to_dense(),
    "Voxels.from_dense": lambda dtype: vx.Voxels.from_dense(grid(dtype)),
    "splat nearest": lambda dtype: vx.splat(
        POSITIONS.repeat(9, 0), np.full((216, 1), 100, dtype), voxels(dtype),
        interpolation="nearest",
    ),
    "devoxelize nearest": lambda dtype: vx.devoxelize(
        voxels(dtype), POSITIONS, interpolation="nearest"
    ),
    "ReLU": of(M.ReLU),
    "plus": lambda dtype: voxels(dtype) + voxels(dtype),
    "plus number": lambda dtype: voxels(dtype) + 100,
    "minus": lambda dtype: 1 - voxels(dtype),
    "negative": lambda dtype: -voxels(dtype),
    "times itself": lambda dtype: voxels(dtype) * voxels(dtype),
}  # fmt: skip


def around(dtype):
    cloud = points(dtype)
    return cloud, vx.knn_search(cloud, k=3)


def packed(dtype):
    """Voxels with three channels."""
    coords = np.array([[0, 0, 0], [0, 1, 2]])
    return vx.Voxels.from_coords(coords, jnp.ones((2, 3), dtype), reduction="first")


def refuse_kernel_points(dtype):
    cloud, near = around(dtype)
    places = F.kernel_point_positions(4, 2).astype(np.float32)
    return F.kernel_point_conv(cloud, np.ones((4, 4, 2), np.float32), near, places, extent=1.0)


REFUSED = {
    "devoxelize": lambda dtype: vx.devoxelize(voxels(dtype), POSITIONS),
    "splat": lambda dtype: vx.splat(POSITIONS, np.ones((24, 1), dtype), voxels(dtype)),
    "dynamic_conv": lambda dtype: F.dynamic_conv(grid(dtype), DEEP.reshape(3, 3, 4, 4), size=2),
    "local_conv": lambda dtype: F.local_conv(
        grid(dtype), jnp.ones((2, 4, 4, 9), jnp.float32), kernel_size=3
    ),
    "deform_conv": lambda dtype: F.deform_conv(
        grid(dtype), DEEP.reshape(3, 3, 4, 4), jnp.zeros((2, 4, 4, 9, 2), jnp.float32)
    ),
    "bank_error": lambda dtype: F.bank_error(grid(dtype), DEEP.reshape(3, 3, 4, 4), size=2),
    "selected_stride_conv": lambda dtype: F.selected_stride_conv(
        grid(dtype), DEEP.reshape(3, 3, 4, 4), jnp.ones(2, jnp.int32), strides=(1, 2)
    ),
    "continuous_conv": lambda dtype: F.continuous_conv(
        around(dtype)[0], np.ones((3, 3, 4, 2), np.float32), around(dtype)[1], radius=1.0
    ),
    "kernel_point_conv": refuse_kernel_points,
    "serialized_attention": lambda dtype: F.serialized_attention(packed(dtype), 1),
    "window_attention": lambda dtype: F.window_attention(
        packed(dtype), 1, vx.cubic_windows(packed(dtype), 2)
    ),
    "scene_attention": lambda dtype: F.scene_attention(packed(dtype), 1),
    "cross_attention": lambda dtype: F.cross_attention(
        packed(dtype), F.Tokens(jnp.ones((1, 3, 6), jnp.float32)), 1
    ),
    "rotary_embedding": lambda dtype: F.rotary_embedding(
        jnp.ones((2, 1, 4), dtype), jnp.ones((2, 2), jnp.float32)
    ),
}

# These read no features.
WITHOUT = {
    "algorithms", "bucket_capacity", "check_static", "choose_size", "cubic_windows",
    "curve_order", "cut_patches", "cylindrical_windows", "explain", "fits",
    "keep_programs", "kernel_map",
    "kernel_point_penalty", "kernel_point_positions", "knn_search", "plan", "poly6",
    "radius_search", "reload_environment", "serial_order", "tune",
}  # fmt: skip


def leaves(result):
    """The features of a result."""
    features = getattr(result, "features", result)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(features)]


MORE = [
    pytest.param(dtype, marks=pytest.mark.slow)
    for dtype in (np.int8, np.uint16, np.int16, np.int32)
]


@pytest.mark.parametrize("dtype", [np.uint8, *MORE])
@pytest.mark.parametrize("name", FRACTIONS)
def test_fractions_of_integers_are_those_of_floats(name, dtype):
    wanted = FRACTIONS[name](np.float32)
    for got, want in zip(leaves(FRACTIONS[name](dtype)), leaves(wanted), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.uint8, *MORE])
@pytest.mark.parametrize("name", EXACT)
def test_sums_and_choices_of_integers_are_exact(name, dtype):
    wanted = EXACT[name](np.float32)
    for got, want in zip(leaves(EXACT[name](dtype)), leaves(wanted), strict=True):
        assert np.issubdtype(got.dtype, np.integer)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_floats_only_says_so(name, dtype):
    with pytest.raises(vx.InputError, match=np.dtype(dtype).name):
        REFUSED[name](dtype)


def test_every_public_function_is_listed():
    listed = {name.split()[0] for name in (*FRACTIONS, *EXACT, *REFUSED)} | WITHOUT
    public = {
        name
        for module in (vx, F)
        for name in module.__all__
        if inspect.isfunction(getattr(module, name))
    }
    assert public - listed == set()
