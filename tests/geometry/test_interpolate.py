"""Reading voxels at positions, splatting onto them, and the gradients of both."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle import make_sites, relative_error
from oracle import points as loops

CAPACITY = 64
POINTS = 48
SIZE, ORIGIN = (0.5, 0.25, 2.0), (0.3, -1.0, 0.7)
MODES = [("nearest", False), ("trilinear", False), ("trilinear", True)]


def make(rows, features, batch_size=1, stride=None, capacity=CAPACITY, **placed):
    """Voxels of distinct rows. Put together on the host, where nothing is compiled."""
    rows, features = np.asarray(rows, np.int32), jnp.asarray(features)
    order = np.lexsort(rows.T[::-1])
    coords = np.full((capacity, rows.shape[1]), vx.PAD, np.int32)
    coords[: len(rows)] = rows[order]
    padded = np.zeros((capacity, features.shape[1]), features.dtype)
    padded[: len(rows)] = np.asarray(features)[order]
    level = stride or (1,) * (rows.shape[1] - 1)
    zero, count = jnp.zeros((), jnp.int32), jnp.asarray(len(rows), jnp.int32)
    geometry = vx.VoxelGeometry(jnp.asarray(coords), count, {level: zero}, None, level, batch_size)
    return vx.Voxels(geometry, jnp.asarray(padded), **placed)


def placed_voxels(rng, stride=(1, 1, 1)):
    """About half of a 4x4x4 grid in each of two scenes."""
    axes = np.argwhere(np.ones((2, 4, 4, 4))) - [0, 2, 2, 2]
    rows = axes[rng.permutation(len(axes))[:60]]
    features = rng.normal(size=(60, 2)).astype(np.float32)
    return make(rows, features, 2, stride, voxel_size=SIZE, origin=ORIGIN)


def cloud_near(rng, voxels):
    """Positions around the grid, and their scenes."""
    cell = rng.uniform(-3, 3, (POINTS, 3))
    step = np.asarray(SIZE) * voxels.stride
    return (cell * step + ORIGIN).astype(np.float32), rng.integers(0, 2, POINTS)


def sites_of(voxels):
    return make_sites(np.asarray(voxels.coords), np.asarray(voxels.features, np.float64))


@pytest.mark.parametrize(("interpolation", "normalize"), MODES)
def test_devoxelize_is_the_loop(interpolation, normalize, rng):
    stride = (2, 1, 4)
    voxels = placed_voxels(rng, stride=stride)
    positions, scenes = cloud_near(rng, voxels)
    read = functools.partial(vx.devoxelize, interpolation=interpolation, normalize=normalize)
    found = read(voxels, positions, scenes)
    lattice = (np.asarray(SIZE) * stride, ORIGIN)
    cloud = list(zip(scenes.tolist(), positions.tolist(), strict=True))
    expected = loops.devoxelize(sites_of(voxels), cloud, interpolation, normalize, lattice)
    assert relative_error(found, expected) < 1e-5
    if normalize:
        np.testing.assert_allclose(jax.jit(read)(voxels, positions, scenes), found, rtol=1e-5)


@pytest.mark.parametrize("interpolation", ["nearest", "trilinear"])
def test_splat_is_the_adjoint(interpolation, rng):
    voxels = placed_voxels(rng)
    positions, scenes = cloud_near(rng, voxels)
    y = rng.normal(size=(POINTS, 2)).astype(np.float32)
    for arrays in (
        (positions, scenes),
        (vx.Points.make(positions, y, scenes, capacity=POINTS), None),
    ):
        read = vx.devoxelize(voxels, *arrays, interpolation=interpolation)
        given = y if arrays[1] is not None else None  # Points bring theirs
        left = vx.splat(arrays[0], given, voxels, arrays[1], interpolation=interpolation)
        read = read.features[:POINTS] if isinstance(read, vx.Points) else read
        one, other = np.vdot(read, y), np.vdot(voxels.features, left.features)
        assert left.geometry is voxels.geometry
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_nearest_is_the_voxel_that_points_were_put_in(rng):
    """At every level, points on the borders of cells included."""
    positions = rng.integers(-20, 20, (200, 2)) * np.float32(0.1)

    @jax.jit
    def run(positions):
        voxels, inverse = vx.voxelize(positions, voxel_size=0.1, batch_size=1, return_inverse=True)
        coarse = vx.kernel_map(voxels, 3, stride=3).out_geometry
        rows = []
        for geometry in (voxels.geometry, coarse):
            labels = jnp.arange(geometry.capacity, dtype=jnp.int32)[:, None]
            at = vx.Voxels(geometry, labels, voxels.voxel_size, voxels.origin)
            rows.append(vx.devoxelize(at, positions, interpolation="nearest")[:, 0])
        return inverse, rows[0], coarse.coords[rows[1]], voxels.coords[inverse]

    inverse, row, coarse, fine = run(positions)
    np.testing.assert_array_equal(row, inverse)
    np.testing.assert_array_equal(coarse[:, 1:], np.asarray(fine)[:, 1:] // 3)


def test_a_linear_field_comes_back(rng):
    rows = np.insert(np.argwhere(np.ones((4, 4, 4))), 0, 0, axis=1)
    slope = rng.normal(size=(3, 2))
    field = (ORIGIN + (rows[:, 1:] + 0.5) * SIZE) @ slope
    voxels = make(rows, field.astype(np.float32), voxel_size=SIZE, origin=ORIGIN)
    positions = ORIGIN + SIZE * rng.uniform(0.6, 3.4, (POINTS, 3))
    found = vx.devoxelize(voxels, positions, np.zeros(POINTS, int))
    np.testing.assert_allclose(found, positions @ slope, rtol=1e-4, atol=1e-4)


def flat(rng, ndim):
    """``(voxels, positions, scenes)`` on few axes, where derivatives compile faster."""
    rows = np.argwhere(np.ones((2, *{1: (36,), 2: (6, 6)}[ndim])))
    rows = rows[rng.permutation(72)[:40]] - np.asarray([0, *[3] * ndim])
    voxels = make(rows, rng.normal(size=(40, 2)), 2)
    cell = rng.integers(-8, 8, (POINTS, ndim)) / 2 + rng.uniform(0.1, 0.4, (POINTS, ndim))
    return voxels, jnp.asarray(cell), rng.integers(0, 2, POINTS)


@pytest.mark.parametrize(("operator", "ndim"), [("trilinear", 2), ("normalized", 1), ("splat", 2)])
def test_first_and_second_derivatives(operator, ndim, rng):
    """Directional derivatives in features and positions against central differences."""
    with jax.enable_x64(True):
        voxels, positions, scenes = flat(rng, ndim)
        features = voxels.features
        if operator == "splat":
            features = jnp.asarray(rng.normal(size=(POINTS, 2)))

        def f(features, positions):
            if operator == "splat":
                out = vx.splat(positions, features, voxels, scenes).features
            else:
                given, normalize = voxels.replace_features(features), operator == "normalized"
                out = vx.devoxelize(given, positions, scenes, normalize=normalize)
            return jnp.sum(jnp.sin(out))

        at = (features, positions)
        towards = tuple(jnp.asarray(rng.normal(size=x.shape)) for x in at)

        @jax.jit
        def everything(step):
            moved = tuple(x + step * d for x, d in zip(at, towards, strict=True))
            return jax.jvp(jax.value_and_grad(f, argnums=(0, 1)), moved, towards)

        step = 1e-5
        (_, gradient), (forward, second) = everything(0.0)
        (high, gradient_high), _ = everything(step)
        (low, gradient_low), _ = everything(-step)
        expected = (high - low) / (2 * step)
        found = sum(jnp.vdot(g, d) for g, d in zip(gradient, towards, strict=True))
        np.testing.assert_allclose([forward, found], [expected, expected], rtol=1e-6)
        for one, up, down in zip(second, gradient_high, gradient_low, strict=True):
            np.testing.assert_allclose(one, (up - down) / (2 * step), rtol=1e-5, atol=1e-6)


def test_positions_do_not_matter_within_a_voxel(rng):
    voxels, positions, scenes = flat(rng, 1)

    def read(positions):
        return vx.devoxelize(voxels, positions, scenes, interpolation="nearest").sum()

    assert not np.asarray(jax.grad(read)(positions)).any()


@pytest.mark.parametrize("interpolation", ["nearest", "trilinear"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_wraps_around_the_range(interpolation, dtype):
    """Voxels at 0 and at both ends; points there, just outside, and far outside."""
    limit = 2**30
    wide = dtype == "float64"
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        rows = [[0, -limit], [0, 0], [0, limit - 1]]
        voxels = make(rows, jnp.asarray([[1.0], [2.0], [4.0]], dtype))
        outside = [limit + 1.0, -limit - 256.0, 2.0**31, 2.0**32 + 0.5, -(2.0**32), 1e38]
        outside += [np.inf, -np.inf, np.nan]
        inside = [-limit + 0.5, 0.5, limit - 0.5] if wide else [0.5]
        positions = jnp.asarray([*inside, *outside], dtype)[:, None]

        def read(positions):
            found = vx.devoxelize(voxels, positions, interpolation=interpolation)[:, 0]
            return found.sum(), found

        gradient, found = jax.jit(jax.grad(read, has_aux=True))(positions)
        np.testing.assert_array_equal(found[: len(inside)], [1, 2, 4] if wide else [2])
        np.testing.assert_array_equal(found[len(inside) :], 0)
        assert np.isfinite(gradient).all()
        assert not np.asarray(gradient)[len(inside) :].any()


def test_scenes_that_do_not_exist_are_empty(rng):
    voxels = placed_voxels(rng)
    positions = np.asarray(voxels.positions())[:POINTS]
    ones = np.ones((POINTS, 2), np.float32)
    for scene in (-1, 2, vx.PAD):
        scenes = np.full(POINTS, scene)
        assert not np.asarray(vx.devoxelize(voxels, positions, scenes)).any()
        assert not np.asarray(vx.splat(positions, ones, voxels, scenes).features).any()


@pytest.mark.parametrize(("interpolation", "normalize"), [("nearest", False), ("trilinear", True)])
def test_padding_is_inert(interpolation, normalize, rng):
    """NaN in the padding of voxels, points and cotangents."""
    voxels, positions, scenes = flat(rng, 1)
    y = rng.normal(size=(POINTS, 2)).astype(np.float32)
    points = vx.Points.make(positions, y, scenes, capacity=CAPACITY)

    @jax.jit
    def run(poison):
        def dirty(array, owner):
            return jnp.where(owner.valid[:, None], array, poison)

        def both(x, positions, y):
            cloud = vx.Points(positions, points.batch_index, y, points.count, 2)
            given = vx.Voxels(voxels.geometry, x)
            options = {"interpolation": interpolation}
            read = vx.devoxelize(given, cloud, normalize=normalize, **options)
            return read.features, vx.splat(cloud, None, given, **options).features

        x, p, f = voxels.features, points.positions, points.features
        values, vjp = jax.vjp(both, dirty(x, voxels), dirty(p, points), dirty(f, points))
        return *values, *vjp((dirty(values[0], points), dirty(values[1], voxels)))

    for clean, dirty in zip(run(0.0), run(jnp.nan), strict=True):
        assert np.isfinite(clean).all()
        np.testing.assert_array_equal(clean, dirty)


def test_normalized_weights_that_vanish():
    """Check that existing voxels of weight zero give zero, and finite values near by."""
    voxels = make([[0, 1, 1]], [[1.0]])
    far = jnp.asarray([[0.5], [0.5 + 1e-6], [0.5 + 1e-3], [1.0]]) * jnp.ones((1, 2))

    def read(positions):
        found = vx.devoxelize(voxels, positions, normalize=True)[:, 0]
        return found.sum(), found

    gradient = jax.grad(read, has_aux=True)
    (first, found), (second, _) = jax.jit(lambda p: jax.jvp(gradient, (p,), (p,)))(far)
    np.testing.assert_allclose(found, [0, 1, 1, 1], rtol=1e-6)
    assert np.isfinite(first).all()
    assert np.isfinite(second).all()


@pytest.mark.parametrize("interpolation", ["nearest", "trilinear"])
def test_half_precision_sums_are_wide(interpolation):
    voxels = make([[0, 0]], jnp.ones((1, 1), jnp.bfloat16))
    positions = np.full((1000, 1), 0.5, np.float32)
    ones = jnp.ones((1000, 1), jnp.bfloat16)

    @jax.jit
    def run(x):
        given = vx.Voxels(voxels.geometry, x)
        left = vx.splat(positions, ones, given, interpolation=interpolation)
        read = functools.partial(vx.devoxelize, interpolation=interpolation)
        value, vjp = jax.vjp(lambda x: read(vx.Voxels(voxels.geometry, x), positions), x)
        return value, left.features[0, 0], vjp(ones)[0][0, 0]

    value, *sums = run(voxels.features)
    assert [v.dtype for v in (value, *sums)] == [jnp.bfloat16] * 3
    assert [float(v) for v in sums] == [1000, 1000]


def test_points_come_back_as_points(rng):
    voxels = placed_voxels(rng)
    points = vx.Points.make(*cloud_near(rng, voxels)[:1], batch_size=2, capacity=POINTS)
    out = vx.devoxelize(voxels, points)
    assert isinstance(out, vx.Points)
    assert out.features.shape == (points.capacity, 2)
    assert out.positions is points.positions


def test_errors(rng):
    voxels = make(np.zeros((1, 4)), [[1.0]])
    positions, features = np.zeros((2, 3), np.float32), np.ones((2, 1), np.float32)
    with pytest.raises(vx.InputError, match="'cubic'; known: nearest, trilinear"):
        vx.devoxelize(voxels, positions, interpolation="cubic")  # type: ignore[arg-type]
    with pytest.raises(vx.InputError, match="2-D positions and 3-D voxels"):
        vx.devoxelize(voxels, positions[:, :2])
    with pytest.raises(vx.InputError, match="points of 2 scenes and voxels of 1"):
        vx.devoxelize(voxels, vx.Points.make(positions, batch_size=2))
    with pytest.raises(vx.InputError, match="trilinear interpolation of int32"):
        vx.devoxelize(voxels.map(lambda x: x.astype(jnp.int32)), positions)
    with pytest.raises(vx.InputError, match=r"expected \[2, C\]"):
        vx.splat(positions, features[:1], voxels)
    with pytest.raises(vx.InputError, match="splat needs features="):
        vx.splat(positions, None, voxels)
    with pytest.raises(vx.InputError, match=r"batch_index must be int\[2\]"):
        vx.devoxelize(voxels, positions, np.zeros(3, int))
