"""Eager calls of a data loader: many sizes compile few programs, and results are those of jit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.geometry import add_sites
from voxax.nn.modules import Sequential, SparseConv3d, SubMConv3d

SIZES, MOST = 50, 10  # numbers of points, and programs of one function for all of them
SIDES = ((1, 0, 0), (0, 0, -1))


def cloud(rng, number):
    positions = rng.uniform(-4, 4, (number, 3)).astype(np.float32)
    return positions, rng.normal(size=(number, 4)).astype(np.float32)


def joined(a, b):
    return vx.batch([a, b])


def mask_of(voxels):
    return np.arange(voxels.capacity) % 3 > 0


def scores_of(voxels):
    return (np.arange(voxels.capacity) * 7 % 31).astype(np.float32)


# By name: a function of two Voxels on one lattice and a capacity.
ON_VOXELS = {
    "batch": lambda a, b, n: vx.batch([a, b], capacity=n),
    "unbatch": lambda a, b, n: vx.unbatch(joined(a, b), capacity=n),
    "scene": lambda a, b, n: vx.batch([a, b], capacity=n).scene(1),
    "union": lambda a, b, n: vx.union(a, b, capacity=n),
    "the mean of a union": lambda a, b, n: vx.union(a, b, reduction="mean", capacity=n),
    "the smallest of a union": lambda a, b, n: vx.union(a, b, reduction="min", capacity=n),
    "intersection": lambda a, b, n: vx.intersection(a, b, reduction="max", capacity=n),
    "cat": lambda a, b, n: vx.cat([a, a]),
    "cat of a union": lambda a, b, n: vx.cat([a, b], "union", capacity=n),
    "cat of an intersection": lambda a, b, n: vx.cat([a, b], "intersection", capacity=n),
    "inject": lambda a, b, n: vx.inject(a, b),
    "prune": lambda a, b, n: vx.prune(a, mask_of(a), capacity=n),
    "top_k": lambda a, b, n: vx.top_k(joined(a, b), scores_of(joined(a, b)), 20, capacity=n),
    "crop": lambda a, b, n: vx.crop(a, (-3, -2, -4), 3, capacity=n),
    "dilate": lambda a, b, n: vx.dilate(a, 3, capacity=n),
    "add_sites": lambda a, b, n: add_sites(
        a, SIDES, jax.device_put(np.stack([mask_of(a)] * 2, 1)), capacity=n
    ),
    "refine": lambda a, b, n: vx.refine(a, 2, capacity=n),
    "coarsen": lambda a, b, n: vx.coarsen(a, (2, 3, 1), capacity=n),
    "to_bev": lambda a, b, n: vx.to_bev(a, reduction="max", capacity=n),
    "slabs of to_bev": lambda a, b, n: vx.to_bev(a, reduction="concat", extent=(-4, 4), capacity=n),
    "to_dense": lambda a, b, n: a.to_dense((8, 8, 8), (-4, -4, -4)),
    "replace_features": lambda a, b, n: a.replace_features(a.features),
    "positions": lambda a, b, n: (a.positions(), a.local_positions(), a.valid),
}
INTERPOLATIONS = ("nearest", "trilinear")
ON_POINTS = {
    **{
        f"devoxelize, {kind}": functools.partial(
            lambda kind, v, p, f: vx.devoxelize(v, p, interpolation=kind, normalize=True), kind
        )
        for kind in INTERPOLATIONS
    },
    **{
        f"splat, {kind}": functools.partial(
            lambda kind, v, p, f: vx.splat(p, f, v, interpolation=kind), kind
        )
        for kind in INTERPOLATIONS
    },
}
WITHOUT_JIT = {
    "voxelize": lambda p, f: vx.voxelize(p, f, 0.5),
    "voxelize of arrays of JAX": lambda p, f: vx.voxelize(*map(jax.device_put, (p, f)), 0.5),
    "from_coords": lambda p, f: vx.Voxels.from_coords(
        np.pad(np.floor(p).astype(int), ((0, 0), (1, 0))), f
    ),
    "from_dense": lambda p, f: vx.Voxels.from_dense(f.reshape(1, -1, 2, 2)),
    "to_dense": lambda p, f: vx.voxelize(p, f, 0.5).to_dense(),
    "Points": lambda p, f: vx.devoxelize(vx.voxelize(p, f, 0.5), vx.Points.make(p, f)),
    "plan": lambda p, f: PLAN().attach(vx.voxelize(p, f, 0.5)),
    "what a user prints": lambda p, f: (
        repr(v := vx.voxelize(p, f, 0.5)),
        v.raise_if_overflowed(),
        v.valid_features(),
        v.valid_positions(),
        int(v.num_dropped),
    ),
}


@functools.cache
def PLAN():
    model = Sequential(SubMConv3d(4, 8), SparseConv3d(8, 8, 2, 2))
    return vx.Plan.record(model, vx.voxelize(*cloud(np.random.default_rng(1), 500), 0.5))


@functools.cache
def clouds():
    rng = np.random.default_rng(0)
    return [cloud(rng, int(n)) for n in rng.permutation(np.linspace(40, 1600, SIZES).astype(int))]


@functools.cache
def all_voxels():
    return [vx.voxelize(p, f, 0.5, capacity=vx.bucket_capacity(len(p))) for p, f in clouds()]


def test_the_sizes_are_many():
    assert len({len(p) for p, _ in clouds()}) == SIZES
    assert len({v.capacity for v in all_voxels()}) > MOST


@pytest.mark.parametrize("name", ON_VOXELS)
def test_many_sizes_of_voxels_compile_few_programs(name, programs):
    given = all_voxels()
    programs.clear()
    for a, b in zip(given, given[1:] + given[:1], strict=True):
        jax.block_until_ready(jax.tree.leaves(ON_VOXELS[name](a, b, None)))
    assert len(programs) <= MOST


@pytest.mark.parametrize("name", [*ON_POINTS, *WITHOUT_JIT])
def test_many_sizes_of_clouds_compile_few_programs(name, programs):
    given = all_voxels()
    programs.clear()
    for (positions, features), voxels in zip(clouds(), given[1:] + given[:1], strict=True):
        if name in ON_POINTS:
            result = ON_POINTS[name](voxels, positions, features)
        else:
            result = WITHOUT_JIT[name](positions, features)
        jax.block_until_ready([leaf for leaf in jax.tree.leaves(result) if hasattr(leaf, "shape")])
    assert len(programs) <= MOST


def pair(dtype):
    """Two Voxels of one lattice whose padding rows hold NaN, or large numbers."""
    rng = np.random.default_rng(2)
    made = []
    for number in (90, 130):
        positions, features = cloud(rng, number)
        features = jnp.asarray(np.round(features * 8), dtype)
        positions[:, 2] += 1e6 / 8
        v = vx.voxelize(positions, features, 1.0, reduction="first", origin=(0.25, 0, 1e6 / 8))
        garbage = jnp.where(v.valid[:, None], v.features, jnp.asarray(99, dtype))
        if jnp.issubdtype(dtype, jnp.floating):
            garbage = jnp.where(v.valid[:, None], v.features, jnp.asarray(jnp.nan, dtype))
        made.append(vx.Voxels(v.geometry, garbage, v.voxel_size, v.origin))
    return made


def check_equal(eager, traced):
    assert jax.tree.structure(eager) == jax.tree.structure(traced)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(traced), strict=True):
        assert isinstance(a, jax.Array)
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jnp.floating):
            a, b = (np.asarray(x, np.float64) for x in (a, b))
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


COMPUTED = ("the mean of a union", "the smallest of a union", "coarsen", "to_bev", "top_k")
DTYPES = [
    *((name, "float32") for name in ON_VOXELS),
    *((name, dtype) for name in COMPUTED for dtype in ("bfloat16", "int8")),
]


@pytest.mark.parametrize(("name", "dtype"), DTYPES)
def test_voxels_are_those_of_jit(name, dtype):
    a, b = pair(dtype)
    call = functools.partial(ON_VOXELS[name], n=1024)
    check_equal(call(a, b), jax.jit(call)(a, b))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("name", ON_POINTS)
def test_points_are_those_of_jit(name, dtype):
    if dtype == "int32" and "trilinear" in name:
        pytest.skip("integers have no mean")
    voxels, _ = pair(dtype)
    positions, features = cloud(np.random.default_rng(4), 70)
    positions[:3] = np.nan, np.inf, 3e9
    positions[:, 2] += 1e6 / 8
    features = jnp.asarray(np.round(features * 8), dtype)
    check_equal(
        ON_POINTS[name](voxels, positions, features),
        jax.jit(ON_POINTS[name])(voxels, jnp.asarray(positions), features),
    )
    points = vx.Points.make(positions[3:], features[3:])
    check_equal(
        ON_POINTS[name](voxels, points, points.features),
        jax.jit(ON_POINTS[name])(voxels, points, points.features),
    )


UNBOUNDED = ("cat", "scene", "inject", "to_dense", "replace_features", "positions")


@pytest.mark.parametrize("name", [name for name in ON_VOXELS if name not in UNBOUNDED])
def test_a_small_capacity_is_told_eagerly(name):
    with pytest.raises(vx.CapacityError, match="do not fit into capacity 2: give"):
        ON_VOXELS[name](*pair("float32"), 2)
