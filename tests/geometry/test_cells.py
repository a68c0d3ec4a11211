"""One point, one voxel; and positions far from zero keep their digits."""

import dataclasses
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.geometry import host
from voxax.geometry.cells import cells, lattice, unresolved

SIZES = (0.01, 0.02, 0.05, 0.06, 0.07, 0.1, 0.15, 0.2, 0.3, 0.35, 1 / 3, 0.025, 1e-3, 1.0, 7.0)
CORNER = np.array([500_000.0, 5_400_000.0, 100.0])


def along(x):
    """Positions ``float[N, 3]`` whose first axis is ``x``."""
    return np.stack([x, np.zeros_like(x), np.zeros_like(x)], axis=1)


def cells_along(x, size, **options):
    """The cell of each number by NumPy."""
    to = lattice(np.zeros((3, 1), np.float32), (size,), (1,), x.dtype)
    cell, known = cells(x[:, None], to)
    assert known.all()
    return cell[:, 0]


def by_fractions(x, size):
    """The definition in exact numbers: at most 9/16 of the spacing above the position."""
    found = []
    for value in x.tolist():
        above = np.nextafter(np.float32(value), np.float32(np.inf))
        spacing = Fraction(float(above)) - Fraction(value)
        found.append((Fraction(value) + spacing * Fraction(9, 16)) // Fraction(size))
    return np.array(found, np.int64)


@pytest.mark.parametrize("size", SIZES)
def test_decimal_coordinates_lie_in_their_decimal_cell(size):
    k = np.concatenate([np.arange(-3000, 3000), np.arange(-(2**20), 2**20, 997)])
    np.testing.assert_array_equal(cells_along((k * size).astype(np.float32), size), k)
    np.testing.assert_array_equal(cells_along(k * size, size), k)


@pytest.mark.parametrize("size", [0.1, 0.3, 0.5, 1.0, 1 / 3, 1.9999, 1e-5, 1234.5])
def test_the_definition_in_exact_numbers(size, rng):
    k = rng.integers(-(2**20), 2**20, 60)
    x = np.concatenate([k * size, rng.uniform(-9, 9, 60) * size, [0.0, -1e-20, 1e-20]])
    x = x.astype(np.float32)
    up, down = (np.nextafter(x, np.float32(s)) for s in (np.inf, -np.inf))
    x = np.concatenate([x, up, down, np.float32([-4, -2, -1, -0.5]) * np.float32(size)])
    x = x[(np.abs(x) > 1e-30) | (x == 0)]
    np.testing.assert_array_equal(cells_along(x, size), by_fractions(x, size))


@pytest.mark.parametrize("size", [0.02, 0.1, 0.3])
def test_everyone_puts_a_point_into_the_same_voxel(size, rng):
    k = np.arange(-300, 300)
    x = (k * size).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(1e9)), np.nextafter(x, np.float32(-1e9))])
    p, features = along(x), np.ones((len(x), 1), np.float32)
    eager, inverse = vx.voxelize(p, features, size, capacity=2048, return_inverse=True)
    want = np.asarray(eager.coords)[np.asarray(inverse), 1]

    def run(p):
        return vx.voxelize(p, features, size, capacity=2048, return_inverse=True)

    ways = {"jit": jax.jit(run)(p), "host": host.voxelize_on_host(p, features, size, capacity=2048)}
    with jax.enable_x64(True):
        ways["x64"] = run(p)
    for name, (voxels, rows) in ways.items():
        got = np.asarray(voxels.coords)[np.asarray(rows), 1]
        np.testing.assert_array_equal(got, want, err_msg=name)
    for row in rng.integers(0, len(p), 5):
        assert vx.voxelize(p[row : row + 1], voxel_size=size).valid_coords()[0, 1] == want[row]
    own = eager.replace_features(jnp.asarray(eager.coords[:, 1:2], jnp.float32))
    read = {
        "eager": vx.devoxelize(own, p, interpolation="nearest"),
        "jit": jax.jit(lambda v, p: vx.devoxelize(v, p, interpolation="nearest"))(own, p),
    }
    for name, got in read.items():
        np.testing.assert_array_equal(np.asarray(got)[:, 0], want, err_msg=name)


@pytest.mark.parametrize("x64", [False, True])
def test_float64_is_one_definition_with_and_without_64_bits(x64):
    p = along(np.arange(2000) * 0.1)
    with jax.enable_x64(x64):
        voxels, rows = vx.voxelize(p, voxel_size=0.1, capacity=2048, return_inverse=True)
        device, same = jax.jit(
            lambda p: vx.voxelize(p, voxel_size=0.1, capacity=2048, return_inverse=True)
        )(p)
        for v, inverse in ((voxels, rows), (device, same)):
            got = np.asarray(v.coords)[np.asarray(inverse), 1]
            np.testing.assert_array_equal(got, np.arange(2000))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_positions(dtype):
    p = jnp.asarray(along(np.arange(-20, 20) * 0.5), dtype)
    wide = np.asarray(p, np.float32)
    a, b = (vx.voxelize(q, voxel_size=0.25) for q in (p, wide))
    np.testing.assert_array_equal(a.coords, b.coords)


@pytest.fixture
def survey(rng):
    local = rng.uniform(0, 5, (400, 3))
    return local, local + CORNER


def test_surveys_keep_their_voxels(survey):
    local, utm = survey
    want = np.unique(np.floor(local / 0.25).astype(int), axis=0)
    features = np.arange(400, dtype=np.float32)[:, None]
    voxels, rows = vx.voxelize(utm, features, 0.25, origin=CORNER, return_inverse=True)
    at_worker, _ = host.voxelize_on_host(utm, features, 0.25, origin=CORNER)
    for v in (voxels, at_worker):
        np.testing.assert_array_equal(v.valid_coords()[:, 1:], want)
        centers = (want + 0.5) * 0.25 + CORNER
        np.testing.assert_allclose(v.valid_positions(), centers, rtol=0, atol=1e-9)
        assert np.abs(np.asarray(v.positions())[: len(want)] - centers).max() < 1e-9
    near = dataclasses.replace(voxels, origin=(0.0, 0.0, 0.0))
    own = np.asarray(voxels.features)[np.asarray(rows)]
    read = jax.jit(lambda v: vx.devoxelize(v, utm, interpolation="nearest"))
    for got in (vx.devoxelize(voxels, utm, interpolation="nearest"), read(voxels)):
        np.testing.assert_array_equal(got, own)
    between = vx.devoxelize(near, local)
    np.testing.assert_allclose(vx.devoxelize(voxels, utm), between, rtol=1e-4, atol=1e-2)
    for way in ("nearest", "trilinear"):
        a = vx.splat(utm, features, voxels, interpolation=way)
        b = vx.splat(local, features, near, interpolation=way)
        np.testing.assert_allclose(a.features, b.features, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("size", [0.1, 0.25, 0.5, 1 / 3])
@pytest.mark.parametrize("corner", [1e4, 1e5, 1e6, -6e6])
def test_float64_needs_no_origin_for_its_digits(corner, size, rng):
    p = rng.uniform(0, 3, (2000, 3)) + corner
    voxels, rows = vx.voxelize(p, voxel_size=size, return_inverse=True)
    at_worker, _ = host.voxelize_on_host(p, np.ones((2000, 1), np.float32), size)
    np.testing.assert_array_equal(at_worker.valid_coords(), voxels.valid_coords())
    got = np.asarray(voxels.coords)[np.asarray(rows), 1:]
    assert (got != np.floor(p / size)).any(axis=1).mean() <= 0.03
    if abs(corner) / size >= 2**17:
        exact = np.array([[Fraction(v) // Fraction(size) for v in row] for row in p[:200].tolist()])
        np.testing.assert_array_equal(got[:200], exact)


@pytest.mark.parametrize("size", SIZES)
def test_float64_is_one_definition_far_from_the_origin(size, rng):
    k = np.concatenate([rng.integers(-(2**29), 2**29, 2000), np.arange(2**16 - 500, 2**17 + 500)])
    x = k * size
    x = np.concatenate([x, x + size / 2, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)])
    want = np.tile(k, 4)
    np.testing.assert_array_equal(cells_along(x, size), want)
    decimal = np.array([float(f"{number}e-2") for number in k])  # as it is in a file
    np.testing.assert_array_equal(cells_along(decimal, 0.01), k)
    with jax.enable_x64(True):
        to = lattice(np.zeros((3, 1), np.float32), (size,), (1,), np.float64)
        cell, known = jax.jit(cells)(jnp.asarray(x)[:, None], to)
    assert known.all()
    np.testing.assert_array_equal(np.asarray(cell)[:, 0], want)


def test_time_stamps_as_a_fourth_axis():
    p = np.concatenate([np.zeros((50, 3)), 1.7e9 + 0.1 * np.arange(50)[:, None] + 0.05], axis=1)
    voxels = vx.voxelize(p, voxel_size=(1, 1, 1, 0.1), origin=(0, 0, 0, 1.7e9))
    np.testing.assert_array_equal(voxels.valid_coords()[:, 4], np.arange(50))
    coarse = vx.voxelize(p, voxel_size=(1, 1, 1, 5.0))  # float64 needs no origin
    assert int(coarse.count) == 1


def test_searches_among_survey_points(survey):
    local, utm = survey
    apart = ((local[:, None] - local[None]) ** 2).sum(-1)
    points = vx.Points.make(utm)
    assert len(points.origin) == 3
    queries = vx.Points.make(utm[:50], origin=CORNER)
    for q, rows in ((None, 400), (queries, 50)):
        found = vx.knn_search(points, q, k=4)
        want = np.sort(np.argsort(apart[:rows], axis=1)[:, :4], axis=1)
        np.testing.assert_array_equal(np.sort(np.asarray(found.rows)[:rows], axis=1), want)
        found = vx.radius_search(points, q, radius=0.5, capacity=64)
        np.testing.assert_array_equal(np.asarray(found.found)[:rows], (apart[:rows] <= 0.25).sum(1))
    voxels = vx.voxelize(points, voxel_size=0.25, origin=CORNER)
    np.testing.assert_array_equal(
        voxels.valid_coords()[:, 1:], np.unique(np.floor(local / 0.25).astype(int), axis=0)
    )


def test_points_near_zero_stay_where_they_are():
    positions = [[1.0, 2.0, 3.0], [4.0, 5.0, 9000.0]]
    points = vx.Points.make(positions)
    assert points.origin == ()
    np.testing.assert_array_equal(np.asarray(points.positions)[:2], positions)


@pytest.mark.parametrize("size", [1.0, 0.5])
def test_both_ends_of_the_range_are_cells(size):
    """The range is half open: its lowest cell is one, and what float32 cannot resolve in it."""
    limit = 2**30
    edges = np.array([-limit - 1, -limit, limit - 1, limit])
    to = lattice(np.zeros((3, 1), np.float32), (size,), (1,), np.float64)
    with jax.enable_x64(True):
        for local in ((edges + 0.5)[:, None] * size, jnp.asarray(edges + 0.5)[:, None] * size):
            cell, known = cells(local, to)
            np.testing.assert_array_equal(known, [False, True, True, False])
            np.testing.assert_array_equal(np.asarray(cell)[1:3, 0], edges[1:3])
    narrow = jnp.asarray([[-limit - 256.0], [-limit], [limit - 64.0], [limit]]) * np.float32(size)
    to = lattice(np.zeros((3, 1), np.float32), (size,), (1,), np.float32)
    np.testing.assert_array_equal(unresolved(narrow, narrow, to), [False, True, True, False])


def test_what_float32_cannot_resolve_is_said(survey):
    _, utm = survey
    rounded = utm.astype(np.float32)
    voxels = vx.voxelize(utm, voxel_size=0.25, origin=CORNER)
    for run in (
        lambda: vx.voxelize(rounded, voxel_size=0.25),
        lambda: vx.voxelize(jnp.asarray(rounded), voxel_size=0.25, origin=CORNER),
        lambda: host.voxelize_on_host(rounded, np.ones((400, 1), np.float32), 0.25),
        lambda: vx.devoxelize(voxels, rounded),
        lambda: vx.splat(rounded, np.ones((400, 1), np.float32), voxels),
    ):
        with pytest.raises(vx.InputError, match=r"quarter of a voxel.*origin=.*NumPy.*float64"):
            run()
    traced = jax.jit(lambda p: vx.voxelize(p, voxel_size=0.25, origin=CORNER))(rounded)
    assert (int(traced.count), int(traced.num_dropped)) == (0, 400)
    # Beside a point that is resolved, and those that no digits would help.
    mixed = np.concatenate([rounded[:7], [CORNER + 0.5], [[np.nan, 0, 0], [3e38, 0, 0]]])
    local = dataclasses.replace(voxels, origin=())
    splatted = jax.jit(lambda p: vx.splat(p, jnp.ones((len(p), 1)), local))
    assert int(splatted(mixed.astype(np.float32)).num_dropped) == 8
    assert int(splatted(np.float32([[0.1, 0.1, 0.1]])).num_dropped) == 0
    with pytest.raises(vx.CapacityError, match="8 rows lost"):
        splatted(mixed.astype(np.float32)).raise_if_overflowed()


def test_another_origin_of_a_survey_compiles_nothing(survey):
    local, _ = survey
    traces = []

    @jax.jit
    def run(voxels, points):
        traces.append(1)
        return vx.devoxelize(voxels, points, interpolation="nearest")

    for corner in (CORNER, CORNER + 1e6 / 3):
        points = vx.Points.make(local + corner, origin=corner)
        voxels = vx.voxelize(local + corner, voxel_size=0.25, origin=corner, capacity=512)
        np.testing.assert_array_equal(np.asarray(run(voxels, points).features)[:400], 1)
    assert len(traces) == 1
