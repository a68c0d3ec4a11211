"""Overlap of turned boxes against polygons of shapely; derivatives against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shapely
from box_samples import hard_pairs, random_boxes

from oracle import boxes as oracle
from voxax.detection import bev_corners, bev_iou, bev_overlap, iou_3d
from voxax.errors import InputError

NUMBER = 100_000


@pytest.fixture(scope="module")
def pairs():
    return hard_pairs(np.random.default_rng(0), NUMBER)


@pytest.fixture(scope="module")
def shared(pairs):
    return oracle.shared_area(*pairs)


@pytest.mark.parametrize("name", ["bev_iou", "iou_3d"])
def test_pairs_in_float64(pairs, shared, name):
    a, b = pairs
    right = getattr(oracle, name)(a, b, shared)
    function = {"bev_iou": bev_iou, "iou_3d": iou_3d}[name]
    on_host = function(a, b)
    assert isinstance(on_host, np.ndarray)
    assert np.abs(on_host - right).max() < 1e-7  # the oracle's grid
    with jax.enable_x64(True):
        inside = jax.jit(function)(jnp.asarray(a), jnp.asarray(b))
        assert inside.dtype == jnp.float64
    assert np.abs(np.asarray(inside) - on_host).max() < 1e-12
    assert (on_host >= 0).all()
    assert (on_host <= 1).all()


def test_areas_in_float64(pairs, shared):
    found = bev_overlap(*pairs)
    assert np.abs(found - shared).max() < 1e-7
    a, b = (boxes[:5000] for boxes in pairs)
    kind = np.arange(len(a)) % 10
    usual = np.isin(kind, [0, 1, 4, 5])  # here shapely needs no grid
    exact = shapely.area(shapely.intersection(oracle.polygons(a), oracle.polygons(b)))
    assert np.abs(found[:5000] - exact)[usual].max() < 1e-12


@pytest.mark.parametrize("function", [bev_iou, iou_3d])
def test_pairs_in_float32(pairs, function):
    """Against float64, for the boxes that float32 has."""
    a, b = (boxes.astype(np.float32) for boxes in pairs)
    right = function(a.astype(np.float64), b.astype(np.float64))
    found = jax.jit(function)(jnp.asarray(a), jnp.asarray(b))
    assert found.dtype == jnp.float32
    assert np.abs(np.asarray(found) - right).max() < 1e-6


def test_pairs_apart_and_touching_share_nothing(pairs):
    a, b = (boxes[9::10] for boxes in pairs)
    assert (bev_overlap(a, b) == 0).all()
    square = np.array([0.0, 0, 0, 2, 2, 2, 0])
    for step in ([2.0, 0], [0, 2.0], [2.0, 2.0], [-2.0, 1.0]):
        other = square + np.array([*step, 0, 0, 0, 0, 0])
        assert bev_overlap(square, other) == 0


def test_the_sides_may_be_exchanged(pairs):
    a, b = pairs
    np.testing.assert_allclose(bev_iou(a, b), bev_iou(b, a), atol=1e-12)


def test_gradients_against_finite_differences(rng):
    a, b = random_boxes(rng, 500), random_boxes(rng, 500)
    a[:100, 6], b[:100, 6] = 0.0, np.pi / 2
    for function in (bev_overlap, bev_iou, iou_3d):
        with jax.enable_x64(True):
            slope = jax.jit(jax.grad(lambda a, b, f=function: jnp.sum(f(a, b)), (0, 1)))
            slopes = [np.asarray(s) for s in slope(jnp.asarray(a), jnp.asarray(b))]
        step = 1e-6
        for column in range(7):
            d = np.zeros((1, 7))
            d[0, column] = step
            for which, (up, down) in enumerate(
                [(function(a + d, b), function(a - d, b)), (function(a, b + d), function(a, b - d))]
            ):
                found = slopes[which][:, column]
                np.testing.assert_allclose((up - down) / (2 * step), found, atol=2e-8)


@pytest.mark.parametrize("function", [bev_overlap, bev_iou, iou_3d])
def test_gradients_where_sides_lie_on_each_other(function):
    """At such a bend the derivative is the mean of both sides': the central difference."""
    pairs = []
    for yaw in (0.0, 0.3, 1.1, -2.6, np.pi / 2):
        box = np.array([7.0, -3.0, 0.5, 4.0, 2.0, 1.5, yaw])
        along, across = np.array([np.cos(yaw), np.sin(yaw)]), np.array([-np.sin(yaw), np.cos(yaw)])
        moved, narrow = box.copy(), box.copy()
        moved[:2] += 1.5 * along
        narrow[:2] += 0.5 * across  # one side on one of the other's
        narrow[3:5] = 3.0, 1.0
        back = box + np.pi * np.eye(7)[6]
        pairs += [(box, box), (box, moved), (box, narrow), (narrow, box), (box, back)]
    a, b = (np.stack(boxes).astype(np.float32) for boxes in zip(*pairs, strict=True))
    found = jax.jit(jax.grad(lambda x: jnp.sum(function(x, jnp.asarray(b)))))(jnp.asarray(a))
    a, b = a.astype(np.float64), b.astype(np.float64)
    step = 1e-3  # far above what float32 rounds
    for column in range(7):
        move = step * (np.arange(7) == column)
        slope = (function(a + move, b) - function(a - move, b)) / (2 * step)
        np.testing.assert_allclose(found[:, column], slope, atol=5e-3)


def test_gradients_are_finite(pairs):
    slope = jax.jit(jax.grad(lambda a, b: jnp.sum(iou_3d(a, b)), (0, 1)))
    a, b = (jnp.asarray(boxes.astype(np.float32)) for boxes in pairs)
    empty = jnp.zeros_like(a)
    for pair in ((a, b), (a, a), (a, empty), (empty, empty)):
        assert all(bool(jnp.isfinite(s).all()) for s in slope(*pair))


@pytest.mark.slow
def test_second_derivative_of_a_turned_square():
    """The other square cuts four triangles off, whose area has a closed form."""
    square = jnp.array([0.0, 0, 0, 2, 2, 2, 0])

    def shared(angle):
        return bev_overlap(square, square.at[6].set(angle))

    def right(t):
        return 4 - 2 * (jnp.cos(t) + jnp.sin(t) - 1) ** 2 / (jnp.cos(t) * jnp.sin(t))

    t = jnp.float32(0.4)
    np.testing.assert_allclose(shared(t), right(t), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(shared)(t), jax.grad(right)(t), rtol=1e-4)
    np.testing.assert_allclose(
        jax.grad(jax.grad(shared))(t), jax.grad(jax.grad(right))(t), rtol=1e-3
    )
    np.testing.assert_allclose(jax.jvp(shared, (t,), (t,))[1], t * jax.grad(right)(t), rtol=1e-4)


def test_all_pairs_and_batches(rng):
    a, b = random_boxes(rng, 6), random_boxes(rng, 5)
    right = oracle.all_pairs(oracle.bev_iou, a, b)
    np.testing.assert_allclose(bev_iou(a[:, None], b[None]), right, atol=1e-12)
    np.testing.assert_allclose(bev_iou(a[:, None], b), right, atol=1e-12)
    mapped = jax.vmap(lambda one: bev_iou(one[None], jnp.asarray(b)))(jnp.asarray(a))
    np.testing.assert_allclose(mapped, right, atol=1e-5)


def test_memory_of_all_pairs():
    number = 2000
    shape = jax.ShapeDtypeStruct((number, 7), jnp.float32)
    compiled = jax.jit(lambda a, b: bev_iou(a[:, None], b[None])).lower(shape, shape).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 150 * number**2


def test_corners(rng):
    boxes = random_boxes(rng, 7)
    rings = bev_corners(boxes)
    for ring, polygon in zip(rings, oracle.polygons(boxes), strict=True):
        np.testing.assert_allclose(ring, np.array(polygon.exterior.coords)[:4], atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:, :6], r"b of shape \[4, 6\]: give \[\.\.\., 7\]"),
        (lambda b: np.where(np.arange(7) == 4, -b, b), r"b\[0\] has width=-.*at least 0"),
        (lambda b: np.where(np.arange(7) == 0, np.nan, b), r"b\[0\] has x=nan.*leave such boxes"),
        (lambda b: b[:3], r"do not broadcast.*a\[:, None\]"),
        (lambda b: b.astype(str), "real numbers"),
    ],
)
def test_bad_boxes(rng, change, message):
    a = random_boxes(rng, 4)
    with pytest.raises(InputError, match=message):
        bev_iou(a, change(a))
    if change(a).dtype.kind == "f":
        with pytest.raises(InputError, match=message):
            bev_iou(jnp.asarray(a), jnp.asarray(change(a)))


def test_inside_jit_a_negative_size_is_empty_and_nan_stays(rng):
    a = jnp.asarray(random_boxes(rng, 2))
    b = a.at[0, 3].set(-1.0).at[1, 0].set(jnp.nan)
    found = jax.jit(bev_iou)(a, b)
    assert found[0] == 0
    assert jnp.isnan(found[1])
