"""Dropout: what falls out together, what stays expected, and when it is off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.nn.functional import dropout
from voxax.nn.modules.pointwise import Dropout
from voxax.nn.modules.sequential import Sequential

ROWS, CHANNELS, CAPACITY = 400, 8, 512
MODES = ("feature", "voxel", "channel", "scene")


def make_voxels(capacity=CAPACITY, dtype=jnp.float32):
    """Ones in three scenes, the middle one empty; NaN in the padding."""
    coords = np.full((capacity, 2), vx.PAD, np.int32)
    coords[:ROWS, 0] = np.where(np.arange(ROWS) < ROWS // 4, 0, 2)
    coords[:ROWS, 1] = np.arange(ROWS)
    features = np.full((capacity, CHANNELS), np.nan)
    features[:ROWS] = 1
    zero, count = jnp.zeros((), jnp.int32), jnp.asarray(ROWS, jnp.int32)
    geometry = vx.VoxelGeometry(jnp.asarray(coords), count, {(1,): zero}, None, (1,), 3)
    return vx.Voxels(geometry, jnp.asarray(features, dtype))


@pytest.mark.parametrize("mode", MODES)
def test_what_falls_out_together(mode):
    voxels = make_voxels()
    out = dropout(voxels, 0.5, jax.random.key(0), mode)
    rows = out.valid_features()
    assert not np.asarray(out.features[ROWS:]).any()
    assert set(np.unique(rows)) == {0, 2}
    scenes = np.split(rows, [ROWS // 4])
    by_voxel = (rows == rows[:, :1]).all()
    by_channel = all((scene == scene[:1]).all() for scene in scenes)
    assert by_voxel == (mode in ("voxel", "scene"))
    assert by_channel == (mode in ("channel", "scene"))
    if mode == "channel":
        assert (scenes[0][0] != scenes[1][0]).any()
    elif mode != "scene":
        assert rows.mean() == pytest.approx(1, abs=0.15)
    assert out.geometry is voxels.geometry


def test_capacity_does_not_change_what_is_dropped():
    key = jax.random.key(1)
    one, other = dropout(make_voxels(), 0.5, key), dropout(make_voxels(448), 0.5, key)
    np.testing.assert_array_equal(one.valid_features(), other.valid_features())


def test_half_precision_keeps_its_dtype():
    out = dropout(make_voxels(dtype=jnp.bfloat16), 0.5, jax.random.key(0))
    assert out.features.dtype == jnp.bfloat16
    assert set(np.unique(out.valid_features().astype(float))) == {0, 2}


def test_extreme_rates():
    voxels, key = make_voxels(), jax.random.key(0)
    assert (dropout(voxels, 0, key).valid_features() == 1).all()
    assert not np.asarray(dropout(voxels, 1.0, key).features).any()


def test_gradient_is_the_mask():
    voxels, key = make_voxels(), jax.random.key(0)

    def run(x):
        return dropout(vx.Voxels(voxels.geometry, x), 0.5, key).features

    out, vjp = jax.vjp(run, voxels.features)
    cotangent = jnp.where(voxels.valid[:, None], jnp.ones_like(out), jnp.nan)
    np.testing.assert_array_equal(vjp(cotangent)[0], out)


def test_points_drop_out_too():
    points = vx.Points.make(np.zeros((ROWS, 1)), np.ones((ROWS, CHANNELS)), capacity=CAPACITY)
    out = dropout(points, 0.5, jax.random.key(0), "channel")
    assert set(np.unique(out.features)) == {0, 2}
    assert not np.asarray(out.features[ROWS:]).any()


def test_train_and_eval_switch_the_module():
    voxels = make_voxels()
    model = Sequential(Dropout(0.5, rngs=nnx.Rngs(0)))
    first, second = (model(voxels).valid_features() for _ in range(2))
    assert (first != second).any()
    model.eval()
    assert (model(voxels).valid_features() == 1).all()
    assert not np.asarray(model(voxels).features[ROWS:]).any()
    model.train()
    assert (model(voxels).valid_features() == 0).any()


def test_streams_advance_under_jit():
    voxels, model = make_voxels(), Dropout(0.5, rngs=nnx.Rngs(dropout=3))
    step = nnx.jit(lambda model, voxels: model(voxels).features)
    first, second = step(model, voxels), step(model, voxels)
    assert (np.asarray(first) != np.asarray(second)).any()
    again = Dropout(0.5, rngs=nnx.Rngs(dropout=3))
    np.testing.assert_array_equal(again(voxels).features, first)


def test_keys_given_at_the_call():
    voxels, model = make_voxels(), Dropout(0.5)
    expected = dropout(voxels, 0.5, jax.random.key(5)).features
    np.testing.assert_array_equal(model(voxels, rngs=jax.random.key(5)).features, expected)
    assert (model(voxels, rngs=nnx.Rngs(0)).valid_features() == 0).any()
    with pytest.raises(vx.InputError, match="build it with rngs="):
        model(voxels)


def test_errors():
    for rate in (-0.1, 1.5):
        with pytest.raises(vx.InputError, match=f"rate {rate} must lie in"):
            Dropout(rate)
    for key in (0, None, jnp.zeros(2)):
        with pytest.raises(vx.InputError, match=r"key=.*give a random key"):
            dropout(make_voxels(), 0.5, key)
    with pytest.raises(vx.InputError, match="'row'; known: feature, voxel, channel"):
        dropout(make_voxels(), 0.5, jax.random.key(0), "row")  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [np.float32(0.5), np.array(0.5, np.float32), jnp.float32(0.5)])
def test_a_rate_may_be_an_array_without_axes(rate):
    voxels = vx.Voxels.from_coords(np.argwhere(np.ones((1, 4, 4, 4))), np.ones((64, 2), np.float32))
    key = jax.random.key(0)
    expected = dropout(voxels, 0.5, key).features
    np.testing.assert_array_equal(dropout(voxels, rate, key).features, expected)
