"""Attention modules, grid pooling and what goes with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from samples import make_voxels
from voxax import interop
from voxax.geometry import cubic_windows, cylindrical_windows
from voxax.nn import functional as F
from voxax.nn import modules as m

ROWS = np.random.default_rng(0).permutation(np.indices((2, 4, 4, 4)).reshape(4, -1).T)[:70]
CHANNELS, HEADS = 12, 2


def voxels(channels=CHANNELS, **options):
    return make_voxels(ROWS, channels, capacity=96, **options)


ATTENTION = {
    "serialized": (
        lambda **o: m.SerializedAttention(CHANNELS, HEADS, 8, order="z", fill="cycle", **o),
        lambda v, **o: F.serialized_attention(v, HEADS, 8, "z", fill="cycle", **o),
    ),
    "window": (
        lambda **o: m.WindowAttention(CHANNELS, HEADS, (2, 3, 2), shift=1, **o),
        lambda v, **o: F.window_attention(v, HEADS, cubic_windows(v, (2, 3, 2), shift=1), **o),
    ),
    "cylinder": (
        lambda **o: m.CylinderAttention(CHANNELS, HEADS, (2.0, 4, 2.0), shifted=True, **o),
        lambda v, **o: F.window_attention(
            v, HEADS, cylindrical_windows(v, (2.0, 4, 2.0), shifted=True), **o
        ),
    ),
    "scene": (
        lambda **o: m.SceneAttention(CHANNELS, HEADS, **o),
        lambda v, **o: F.scene_attention(v, HEADS, **o),
    ),
}


@pytest.mark.parametrize("kind", ATTENTION)
def test_module_is_the_function_between_linear_layers(kind):
    build, function = ATTENTION[kind]
    layer = build(relative_reach=2, rotary_base=10.0, scale=0.3)
    x = voxels()
    packed = layer.qkv(x)
    q, k, v = (part.reshape(-1, HEADS, 6) for part in np.split(packed.features, 3, axis=1))
    turned = [F.rotary_embedding(part, x.local_positions()) for part in (q, k)]
    packed = packed.replace_features(jnp.concatenate([*turned, v], 1).reshape(packed.capacity, -1))
    joined = jnp.concatenate([part.reshape(-1, CHANNELS) for part in (*turned, v)], axis=1)
    packed = packed.replace_features(joined)
    want = layer.proj(function(packed, table=layer.relative.weight[...], scale=0.3))
    np.testing.assert_allclose(layer(x).features, want.features, atol=1e-6)


def test_cross_attention_module():
    x, keys = voxels(), voxels(5, seed=2)
    layer = m.CrossAttention(CHANNELS, HEADS, key_channels=5)
    want = layer.proj(F.cross_attention(layer.query(x), layer.key_value(keys), HEADS))
    np.testing.assert_allclose(layer(x, keys).features, want.features, atol=1e-6)
    words = F.Tokens(jnp.ones((2, 3, 5)))
    assert layer(x, words).features.shape == (96, CHANNELS)
    asked = layer(F.Tokens(jnp.ones((2, 3, CHANNELS))), keys)
    assert asked.features.shape == (2, 3, CHANNELS)
    with pytest.raises(vx.InputError, match="tokens of 4 channels: expected 5"):
        layer(x, F.Tokens(jnp.ones((2, 3, 4))))


def test_padding_of_tokens_reaches_no_gradient():
    layer, count = m.CrossAttention(CHANNELS, HEADS), jnp.asarray([3, 0])
    graph, params = nnx.split(layer)
    asked, held = jax.random.normal(jax.random.key(0), (2, 2, 5, CHANNELS))

    @jax.jit
    def step(params, asked, held):
        def loss(params, asked, held):
            out = nnx.merge(graph, params)(F.Tokens(asked, count), F.Tokens(held, count[::-1] + 1))
            return jnp.sum(out.features**2), out.features

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(params, asked, held)

    absent = [(np.arange(5) >= np.array(n)[:, None])[..., None] for n in ([3, 0], [1, 4])]
    poison = [jnp.where(a, jnp.nan, x) for a, x in zip(absent, (asked, held), strict=True)]
    clean, dirty = step(params, asked, held), step(params, *poison)
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert not np.asarray(dirty[0][1])[np.broadcast_to(absent[0], asked.shape)].any()


def test_rotary_products_depend_on_the_difference_alone(rng):
    q, k = rng.normal(size=(2, 5, 2, 12))
    at, other, shift = rng.normal(size=(3, 5, 3)) * 3
    with jax.enable_x64(True):

        def product(move):
            a = F.rotary_embedding(jnp.asarray(q), jnp.asarray(at + move))
            b = F.rotary_embedding(jnp.asarray(k), jnp.asarray(other + move))
            return jnp.sum(a * b, axis=-1)

        np.testing.assert_allclose(product(0 * shift), product(shift[:1]), atol=1e-12)


def test_rotary_embedding_of_one_pair(rng):
    """One axis, one pair of channels, written out."""
    with jax.enable_x64(True):
        out = F.rotary_embedding(jnp.asarray([[[1.0, 2.0]]]), jnp.asarray([[0.7]]))
    c, s = np.cos(0.7), np.sin(0.7)
    np.testing.assert_allclose(out, [[[c - 2 * s, 2 * c + s]]], atol=1e-12)


def test_conditional_position():
    x = voxels()
    position = m.ConditionalPosition(CHANNELS)
    want = position.norm(position.proj(position.conv(x)))
    np.testing.assert_array_equal(position(x).features, want.features)


@pytest.mark.parametrize("part", [1 << 22, 20 * 7])
def test_mlp_in_one_part_and_in_many(part, monkeypatch):
    monkeypatch.setattr(m.MLP, "PART", part)
    x = voxels()
    mlp = m.MLP(CHANNELS, 20)
    hidden = jax.nn.gelu(mlp.first(x).features, approximate=False)
    want = mlp.second(vx.Voxels(x.geometry, hidden))
    np.testing.assert_allclose(mlp(x).features, want.features, atol=1e-6)


class Tenfold(m.Linear):
    def __call__(self, voxels):
        return super().__call__(voxels).map(lambda f: 10 * f)


def replaced_layer(mlp, patch):
    mlp.first = Tenfold(CHANNELS, 20)


def replaced_activation(mlp, patch):
    mlp.act = lambda v: v.map(jnp.sin)


def replaced_call(mlp, patch):
    call = m.GELU.__call__
    patch.setattr(m.GELU, "__call__", lambda self, v: call(self, v).map(jnp.sin))


def replaced_dropout(mlp, patch):
    mlp.dropout = Tenfold(20, 20)
    mlp.second = m.Linear(20, 20)


@pytest.mark.parametrize(
    "replace", [replaced_layer, replaced_activation, replaced_call, replaced_dropout]
)
def test_mlp_in_many_parts_calls_the_layers_of_the_user(replace, monkeypatch):
    mlp, x = m.MLP(CHANNELS, 20), voxels()
    plain = mlp(x).features
    replace(mlp, monkeypatch)
    want = mlp(x).features
    assert want.shape != plain.shape or not np.allclose(want, plain)
    monkeypatch.setattr(m.MLP, "PART", 20 * 7)
    np.testing.assert_allclose(mlp(x).features, want, atol=1e-5)


def test_layer_scale_and_drop_path():
    x = voxels()
    np.testing.assert_allclose(m.LayerScale(CHANNELS, 0.5)(x).features, 0.5 * x.features)
    scale = m.LayerScale(CHANNELS, 0.5)
    weights = interop.to_spconv(nnx.List([m.Linear(CHANNELS, CHANNELS), scale]))
    np.testing.assert_array_equal(weights["1.gamma"], np.full(CHANNELS, 0.5))
    other = nnx.List([m.Linear(CHANNELS, CHANNELS), m.LayerScale(CHANNELS)])
    interop.from_spconv(weights, other)
    np.testing.assert_array_equal(other[1].scale[...], scale.scale[...])
    drop = m.DropPath(0.5, rngs=nnx.Rngs(0))
    rows = drop(x).valid_features()
    kept = (rows != 0).all(1)
    assert 10 < kept.sum() < 60
    assert not rows[~kept].any()
    np.testing.assert_allclose(rows[kept], 2 * x.valid_features()[kept], rtol=1e-6)
    drop.eval()
    np.testing.assert_array_equal(drop(x).features, x.features)


@pytest.mark.parametrize("reduction", ["max", "mean", "sum", "min"])
def test_grid_pool_against_a_loop(reduction):
    x = voxels()
    pool = m.GridPool(CHANNELS, 7, (2, 1, 2), reduction=reduction, norm=None)
    out = pool(x)
    projected = pool.proj(x).valid_features()
    cells = {}
    for row, feature in zip(x.valid_coords(), projected, strict=True):
        cells.setdefault((row[0], row[1] // 2, row[2], row[3] // 2), []).append(feature)
    assert list(map(tuple, out.valid_coords())) == sorted(cells)
    want = [getattr(np, reduction)(cells[cell], axis=0) for cell in sorted(cells)]
    np.testing.assert_allclose(out.valid_features(), want, atol=1e-5)


def test_grid_unpool_against_a_loop():
    x = voxels()
    pool = m.GridPool(CHANNELS, 7, norm=None)
    unpool = m.GridUnpool(7, CHANNELS, 5, norm=m.LayerNorm, activation=m.ReLU())
    coarse = pool(x)
    out, fine = unpool(coarse, x)
    skip = unpool.after_skip(unpool.proj_skip(x)).valid_features()
    np.testing.assert_array_equal(fine.valid_features(), skip)
    rows = unpool.after(unpool.proj(coarse)).valid_features()
    place = {tuple(row): i for i, row in enumerate(coarse.valid_coords().tolist())}
    of = [place[(r[0], r[1] // 2, r[2] // 2, r[3] // 2)] for r in x.valid_coords().tolist()]
    np.testing.assert_allclose(out.valid_features(), skip + rows[of], atol=1e-6)
    assert out.geometry.same_as(x.geometry)


def test_orders_are_shuffled_in_training_alone():
    x = voxels()
    names = ("z", "z-trans", "hilbert", "hilbert-trans")
    orders = m.SerialOrders(names, rngs=nnx.Rngs(0))
    fixed = [F.serial_order(x, name).order for name in names]
    drawn = {
        tuple(
            next(i for i, f in enumerate(fixed) if np.array_equal(f, got.order))
            for got in orders(x, 6)
        )
        for _ in range(8)
    }
    assert len(drawn) > 2
    assert all(sorted(turn[:4]) == [0, 1, 2, 3] and turn[4:] == turn[:2] for turn in drawn)
    orders.eval()
    for got, want in zip(orders(x, 5), [*fixed, fixed[0]], strict=True):
        np.testing.assert_array_equal(got.order, want)


def test_an_order_is_computed_once(monkeypatch):
    from voxax.geometry import order

    calls = []
    real = order.sort_by_curve
    monkeypatch.setattr(order, "sort_by_curve", lambda *a: calls.append(0) or real(*a))
    layer = m.SerializedAttention(CHANNELS, HEADS, 8, order="hilbert-trans")
    remat = m.Remat(m.SerializedAttention(CHANNELS, HEADS, 8, order="hilbert-trans"))

    def loss(state, x):
        run, again = nnx.merge(graph, state)
        return jnp.sum(again(again(run(run(x)))).features)

    graph, state = nnx.split((layer, remat))
    jax.jit(jax.grad(loss)).lower(state, voxels())
    assert len(calls) == 1


BAD = {
    "num_heads=5 must divide channels=12": lambda: m.SceneAttention(12, 5),
    "of patch_size=0: give an integer of at least 1": lambda: m.SerializedAttention(12, 2, 0),
    "patch_size 2097152 must be an integer from 1 to 1048576": (
        lambda: m.SerializedAttention(12, 2, 2**21)
    ),
    "a head of 4 channels cannot be turned along 3 axes: give a multiple of 6": (
        lambda: m.SceneAttention(12, 3, rotary_base=10.0)
    ),
    "base=0 of the rotary embedding must be positive": (
        lambda: m.SceneAttention(12, 2, rotary_base=0)
    ),
    "relative_reach 0 must be": lambda: m.SceneAttention(12, 2, relative_reach=0),
    r"orders=\(\) must name": lambda: m.SerialOrders(()),
    "unknown reduction 'median'": lambda: m.GridPool(4, 4, reduction="median"),
    "expects 12 channels, the voxels have 5": lambda: m.SceneAttention(12, 2)(voxels(5)),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message):
    with pytest.raises(vx.InputError, match=message):
        BAD[message]()


def test_reach_of_the_published_tables():
    assert [m.relative_reach(n) for n in (48, 128, 1024)] == [11, 15, 31]
