"""Voxel and pillar encoders, against loops over points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from oracle import check_sites, relative_error
from oracle import points as loops
from voxax.nn.modules.encoder import PillarEncoder, VoxelFeatureEncoder
from voxax.nn.modules.voxelization import Devoxelize, Splat, Voxelize

POINTS, CAPACITY, CHANNELS = 60, 64, 2
SIZE, ORIGIN = (1.0, 0.5, 2.0), (0.2, -0.1, 0.4)


def make_points(rng, poison=0.0):
    """Points of two scenes, several to a voxel; ``poison`` in the padding."""
    positions = np.full((CAPACITY, 3), poison, np.float32)
    positions[:POINTS] = rng.uniform(-2, 2, (POINTS, 3))
    features = np.full((CAPACITY, CHANNELS), poison, np.float32)
    features[:POINTS] = rng.normal(size=(POINTS, CHANNELS))
    scenes = np.arange(CAPACITY, dtype=np.int32) % 2
    count = jnp.asarray(POINTS, jnp.int32)
    return vx.Points(*map(jnp.asarray, (positions, scenes, features)), count, 2)


def make_encoder(kind, **options):
    if kind == "pillar":
        plane = {"origin": ORIGIN[::2], "axis": 1, "capacity": CAPACITY}
        return PillarEncoder(CHANNELS, 5, SIZE[::2], **plane, **options)
    channels = (4, 5) if kind == "voxel_max" else 5
    return VoxelFeatureEncoder(
        CHANNELS,
        channels,
        SIZE,
        origin=ORIGIN,
        capacity=CAPACITY,
        reduction="max" if kind == "voxel_max" else "mean",
        **options,
    )


def reference(kind, encoder, points, kept=slice(POINTS)):
    scenes, positions, features = (
        np.asarray(x)[kept] for x in (points.batch_index, points.positions, points.features)
    )
    return loops.encode(
        list(zip(scenes.tolist(), positions.tolist(), strict=True)),
        features,
        [np.asarray(linear.linear.kernel[...]) for linear in encoder.linears],
        (np.asarray(SIZE)[list(encoder.lattice_axes)], encoder.origin),
        list(encoder.lattice_axes),
        reduction=encoder.reduction,
        center=kind == "pillar",
    )


def test_layers_of_a_voxel_encoder_are_the_loop(rng):
    """Two layers; NaN in the padding of the points."""
    points, encoder = make_points(rng, np.nan), make_encoder("voxel_max")
    expected = reference("voxel_max", encoder, points)
    graph, state = nnx.split(encoder)
    voxels = jax.jit(lambda points: nnx.merge(graph, state, copy=True)(points))(points)
    check_sites(voxels, expected, 2e-5)
    assert voxels.voxel_size == encoder.voxel_size


def test_pillars_are_the_loop_and_have_clean_gradients(rng):
    """In features, positions and weights, with NaN in the padding of points and cotangents."""
    points, encoder = make_points(rng), make_encoder("pillar")
    expected = reference("pillar", encoder, points)
    graph, state = nnx.split(encoder)
    cotangent = jnp.asarray(rng.normal(size=(CAPACITY, 5)), jnp.float32)

    @jax.jit
    def run(poison):
        def dirty(x):
            return jnp.where(points.valid[:, None], x, poison)

        def encode(state, features, positions):
            module = nnx.merge(graph, state, copy=True)
            cloud = vx.Points(positions, points.batch_index, features, points.count, 2)
            out = module(cloud)
            return out.features, (out, nnx.state(module, nnx.BatchStat))

        arguments = (state, dirty(points.features), dirty(points.positions))
        _, vjp, aux = jax.vjp(encode, *arguments, has_aux=True)
        return aux, vjp(jnp.where(aux[0].valid[:, None], cotangent, poison))

    clean, dirty = run(0.0), run(jnp.nan)
    (voxels, _), gradients = clean
    check_sites(voxels, expected, 2e-5)
    for one, other in zip(*map(jax.tree.leaves, (clean, dirty)), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)
    assert all(np.asarray(g).any() for g in gradients[1:])


def test_dropped_points_are_not_seen(rng):
    """Points outside the range, under jit: as arrays without them, but counted."""
    points, encoder = make_points(rng), make_encoder("voxel_mean")
    graph, state = nnx.split(encoder)
    far = points.positions.at[1::3].set(jnp.inf)

    @jax.jit
    def run(positions, count):
        module = nnx.merge(graph, state, copy=True)
        cloud = vx.Points(positions, points.batch_index, points.features, count, 2)
        return module(cloud), nnx.state(module, nnx.BatchStat)

    out, stats = run(far, points.count)
    assert int(out.num_dropped) == POINTS // 3
    kept = np.flatnonzero(np.arange(POINTS) % 3 != 1)
    arrays = (points.positions, points.features, points.batch_index)

    @jax.jit
    def run_alone(*arrays):
        module = nnx.merge(graph, state, copy=True)
        return module(*arrays, batch_size=2), nnx.state(module, nnx.BatchStat)

    alone, expected = run_alone(*(np.asarray(array)[kept] for array in arrays))
    check_sites(alone, reference("voxel_mean", encoder, points, kept), 2e-5)
    np.testing.assert_array_equal(out.coords, alone.coords)
    assert relative_error(out.features, alone.features) < 1e-5
    for one, other in zip(jax.tree.leaves(stats), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_large_coordinates_keep_small_offsets(rng):
    """Offsets from mean and center do not depend on where the scene lies."""
    positions = np.round(rng.uniform(0, 4, (POINTS, 3)) * 64) / 64
    options = {"use_positions": False, "use_center_offset": True, "capacity": CAPACITY}
    encoder = VoxelFeatureEncoder(0, 4, 1.0, **options)
    encoder.eval()
    run = jax.jit(lambda positions: encoder(positions))
    near, far = run(positions), run(positions + 2.0**16)
    assert np.asarray(near.features).any()
    np.testing.assert_array_equal(far.features, near.features)


def test_computation_dtype(rng):
    encoder = make_encoder("voxel_mean", dtype=jnp.bfloat16)
    encoder.eval()
    assert jax.eval_shape(encoder, make_points(rng)).features.dtype == jnp.bfloat16
    assert encoder.linears[0].linear.kernel[...].dtype == jnp.float32


def test_errors(rng):
    points = make_points(rng)
    with pytest.raises(vx.InputError, match="expects 3-D points with 3 channels"):
        VoxelFeatureEncoder(3, 4, 0.5)(points)
    with pytest.raises(vx.InputError, match="expects 2-D points with 2 channels"):
        PillarEncoder(2, 4, 0.5, ndim=2)(points)
    with pytest.raises(vx.InputError, match="'sum'; known: max, mean"):
        VoxelFeatureEncoder(2, 4, 0.5, reduction="sum")  # type: ignore[arg-type]
    with pytest.raises(vx.InputError, match="2 entries for 3 axes"):
        VoxelFeatureEncoder(2, 4, (0.5, 0.5))
    with pytest.raises(vx.InputError, match="axis=3 of 3-D points"):
        PillarEncoder(2, 4, 0.5, axis=3)
    with pytest.raises(vx.InputError, match="at least one layer"):
        VoxelFeatureEncoder(2, (), 0.5)


def test_point_modules_are_the_functions(rng):
    points = make_points(rng)
    options = {"origin": ORIGIN, "capacity": CAPACITY}

    @jax.jit
    def run(points):
        voxelize = Voxelize(SIZE, reduction="max", return_inverse=True, **options)
        voxels, inverse = voxelize(points)
        plain = vx.voxelize(points, None, SIZE, reduction="max", **options)
        read, left = Devoxelize("nearest")(voxels, points), Splat("nearest")(points, None, voxels)
        return voxels.features, inverse, plain.features, read.features, left.features

    voxels, inverse, plain, read, left = map(np.asarray, run(points))
    np.testing.assert_array_equal(voxels, plain)
    np.testing.assert_array_equal(read[:POINTS], voxels[inverse[:POINTS]])
    total = np.zeros((CAPACITY, CHANNELS))
    np.add.at(total, inverse[:POINTS], np.asarray(points.features)[:POINTS])
    np.testing.assert_allclose(left, total, rtol=1e-5, atol=1e-6)
