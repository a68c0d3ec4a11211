"""prune, top_k, crop: what the conformance suite does not ask."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from samples import complains, make_voxels
from voxax.coords import ladder_capacity

ROWS = np.indices((3, 4, 4)).reshape(3, -1).T[[*range(16), *range(16, 19), *range(32, 44)]]
VOXELS = make_voxels(ROWS, channels=4, capacity=48)
NUMBER, CAPACITY = len(ROWS), 48
MASK = np.arange(CAPACITY) % 2 == 0
KEPT = ROWS[::2]


def test_prune_eager_and_traced():
    eager = vx.prune(VOXELS, MASK)
    traced = jax.jit(vx.prune)(VOXELS, MASK)
    assert eager.capacity == ladder_capacity(len(KEPT))
    assert traced.capacity == CAPACITY
    for out in (eager, traced):
        np.testing.assert_array_equal(out.valid_coords(), KEPT)
        np.testing.assert_array_equal(out.valid_features(), VOXELS.valid_features()[::2])
    complains(r"16 voxels.*capacity 8", vx.prune, VOXELS, MASK, capacity=8, error=vx.CapacityError)
    short = jax.jit(lambda v: vx.prune(v, MASK, capacity=8))(VOXELS)
    assert (int(short.count), int(short.num_dropped)) == (8, len(KEPT) - 8)


def test_prune_under_a_mask_that_depends_on_differentiated_features():
    """Eagerly the coordinates are concrete, the mask may be or not."""

    def loss(x):
        v = VOXELS.replace_features(x)
        return (vx.prune(v, v.features[:, 0] > 0).features ** 2).sum()

    x = VOXELS.features
    expected = 2 * np.asarray(x) * np.asarray(x[:, :1] > 0)
    np.testing.assert_allclose(jax.grad(loss)(x), expected, rtol=1e-6)


def test_everything_may_go():
    empty = vx.prune(VOXELS, np.zeros(CAPACITY, bool))
    assert int(empty.count) == 0
    assert (np.asarray(empty.coords) == vx.PAD).all()
    assert (np.asarray(empty.features) == 0).all()
    assert int(vx.top_k(empty, jnp.zeros(empty.capacity), 3).count) == 0


def test_what_is_kept_of_planned_voxels_keeps_the_plan():
    def run(v):
        geometry = dataclasses.replace(v.geometry, level_capacities=(((2, 2), 40),))
        planned = dataclasses.replace(v, geometry=geometry)
        kept = (
            vx.prune(planned, MASK),
            vx.crop(planned, 0, 2),
            vx.top_k(planned, jnp.zeros(CAPACITY), 3),
            vx.intersection(planned, v, capacity=48),
            planned.scene(1),
        )
        return kept, vx.coarsen(planned), vx.dilate(planned)

    kept, coarse, grown = jax.eval_shape(run, VOXELS)
    assert {out.geometry.level_capacities for out in kept} == {(((2, 2), 40),)}
    assert coarse.capacity == 40
    assert grown.geometry.level_capacities == ()


SCORES = {
    "float": np.random.default_rng(0).integers(-3, 4, CAPACITY).astype(np.float32),
    "equal": np.zeros(CAPACITY, np.float32),
    "int": np.where(np.arange(CAPACITY) % 3 == 0, -(2**31), 7).astype(np.int32),
    "uint8": (np.arange(CAPACITY) * 37 % 256).astype(np.uint8),
    "uint32": (np.arange(CAPACITY) * 0x35A7B3C1 % 2**32).astype(np.uint32),
    "bool": MASK,
    "bfloat16": jnp.asarray(np.random.default_rng(1).normal(size=CAPACITY), jnp.bfloat16),
    "zeros": np.where(MASK, np.float32(-0.0), np.float32(0.0)),
    "infinite": np.where(MASK, -np.inf, np.inf).astype(np.float32),
}


@pytest.mark.parametrize("kind", SCORES)
def test_top_k_takes_the_best_of_each_scene_and_the_earlier_of_equals(kind):
    scores = SCORES[kind]
    expected = []
    for scene in range(3):
        mine = [i for i in range(NUMBER) if ROWS[i, 0] == scene]
        expected += sorted(sorted(mine, key=lambda i: -float(scores[i]))[:5])
    out = vx.top_k(VOXELS, scores, 5, capacity=16)
    np.testing.assert_array_equal(out.valid_coords(), ROWS[expected])
    assert int(out.count) == 5 + 3 + 5


def test_scores_that_are_no_numbers_come_last():
    scores = jnp.full(CAPACITY, jnp.nan).at[jnp.asarray([7, 17, 40])].set(-jnp.inf)
    out = vx.top_k(VOXELS, scores, 2, capacity=16)
    # Row 40 is padding; of the rows without a score the earlier ones win.
    np.testing.assert_array_equal(out.valid_coords(), ROWS[[0, 7, 16, 17, 19, 20]])


def test_wide_scores():
    """Use scores of 64 bits, whose order 32 bits do not show."""
    with jax.enable_x64(True):
        for dtype in (np.int64, np.float64):
            scores = (2**40 + np.arange(CAPACITY)).astype(dtype)
            out = vx.top_k(VOXELS, scores, 1, capacity=16)
            np.testing.assert_array_equal(out.valid_coords(), ROWS[[15, 18, 30]])


def test_on_a_tpu_the_scores_are_sorted_by_tiles():
    def best(v, scores):
        return vx.top_k(v, scores, 5).coords

    for dtype in (jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_):
        traced = jax.jit(best).trace(VOXELS, jax.ShapeDtypeStruct((CAPACITY,), dtype))
        program = traced.lower(lowering_platforms=("tpu",)).as_text()
        assert "@tpu_custom_call" in program
        assert "stablehlo.sort" not in program


def test_top_k_capacities():
    scores = SCORES["float"]
    assert vx.top_k(VOXELS, scores, 5).capacity == 16
    for k, bound in ((5, 15), (500, CAPACITY)):
        assert jax.eval_shape(lambda v, k=k: vx.top_k(v, scores, k), VOXELS).capacity == bound


def test_gradients_flow_through_features_not_through_scores():
    def loss(x, scores):
        return (vx.top_k(VOXELS.replace_features(x), scores, 5, capacity=16).features ** 2).sum()

    scores = jnp.where(np.arange(CAPACITY) < NUMBER, SCORES["float"], jnp.nan)
    by_features, by_scores = jax.jit(jax.grad(loss, (0, 1)))(VOXELS.features, scores)
    assert (np.asarray(by_scores) == 0).all()
    used = np.flatnonzero(np.asarray(by_features).any(1))
    out = vx.top_k(VOXELS, scores, 5, capacity=16)
    np.testing.assert_array_equal(ROWS[used], out.valid_coords())
    np.testing.assert_allclose(by_features[used], 2 * out.valid_features(), rtol=1e-6)
    # Eagerly too, where nothing but the features is traced.
    assert np.isfinite(jax.grad(loss)(VOXELS.features, scores)).all()


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 3, ((1, 1), (3, 3))),
        ((0, 2), (2, 4), ((0, 2), (2, 4))),
        (-(2**40), 2**40, ((0, 0), (4, 4))),
        (2, 2, ((0, 0), (0, 0))),
    ],
)
def test_boxes(low, high, expected):
    inside = ((ROWS[:, 1:] >= expected[0]) & (ROWS[:, 1:] < expected[1])).all(1)
    np.testing.assert_array_equal(
        vx.crop(VOXELS, low, high, capacity=48).valid_coords(), ROWS[inside]
    )


def test_corners_may_be_traced():
    run = jax.jit(lambda low: vx.crop(VOXELS, low, low + 2))
    for low in ((0, 0), (1, 2)):
        out = run(jnp.asarray(low))
        np.testing.assert_array_equal(
            out.valid_coords(), vx.crop(VOXELS, low, np.add(low, 2)).valid_coords()
        )


def test_bad_arguments():
    complains(r"bool\[48\].*float32\[48\]", vx.prune, VOXELS, np.ones(48, np.float32))
    complains(r"bool\[48\].*bool\[7\]", vx.prune, VOXELS, np.ones(7, bool))
    complains(r"scores\[:, 0\]", vx.top_k, VOXELS, jnp.zeros((48, 1)), 3)
    complains(r"real \[48\].*complex64", vx.top_k, VOXELS, jnp.zeros(48, jnp.complex64), 3)
    complains("k=0", vx.top_k, VOXELS, jnp.zeros(48), 0)
    complains(r"low must be an integer.*float64", vx.crop, VOXELS, 0.5, 2)
    complains(r"high must be an integer.*\[3\]", vx.crop, VOXELS, 0, (1, 2, 3))
    complains("capacity=-1", vx.crop, VOXELS, 0, 2, capacity=-1)
