"""Attention of every kind against a loop over single rows in float64."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle import attention as loops
from oracle.derivatives import check_derivatives
from samples import slow_unless
from voxax.geometry import cubic_windows, cut_patches, cylindrical_windows
from voxax.nn import functional as F
from voxax.nn.functional import attention

HEADS, WIDTH = 2, 3
CHANNELS = HEADS * WIDTH


def scenes(*sizes, extent=9, seed=0):
    """Rows of scenes of these sizes, in the order in which Voxels keep them."""
    rng = np.random.default_rng(seed)
    cells = np.indices((extent,) * 3).reshape(3, -1).T - 3
    rows = [
        np.insert(cells[np.sort(rng.choice(len(cells), size, replace=False))], 0, scene, axis=1)
        for scene, size in enumerate(sizes)
    ]
    return np.concatenate(rows).astype(np.int32)


def make(rows, batch_size, *, dtype=np.float32, capacity=64, parts=3, seed=1):
    features = np.random.default_rng(seed).normal(size=(len(rows), parts * CHANNELS)) * 2
    padded = np.full((capacity, rows.shape[1]), vx.PAD)
    padded[: len(rows)] = rows
    filled = np.zeros((capacity, parts * CHANNELS), dtype)
    filled[: len(rows)] = features
    voxels = vx.Voxels.from_coords(padded, jnp.asarray(filled), batch_size, capacity=capacity)
    assert np.array_equal(voxels.valid_coords(), rows)
    return voxels


CASES = [(23, 9, 14), (1,), (12, 0, 5), (0,)]  # ragged, one voxel, an empty scene, no voxel
TABLE = np.random.default_rng(5).normal(size=(3, 5, HEADS))
KINDS = {
    **{
        f"{order} {fill} {length}": (
            lambda v, table, o=order, f=fill, n=length: F.serialized_attention(
                v, HEADS, n, o, fill=f, table=table
            ),
            lambda coords, o=order, f=fill, n=length: loops.patch_lists(coords, n, o, f),
        )
        for order, fill, length in [
            ("hilbert", "overlap", 8),
            ("hilbert-trans", "cycle", 8),
            ("z", "short", 5),
            ("z-trans", "overlap", 40),
            ("hilbert", "cycle", 40),
            ("z", "overlap", 1),
        ]
    },
    "windows": (
        lambda v, table: F.window_attention(v, HEADS, cubic_windows(v, 4), table=table),
        lambda coords: loops.group_lists([(r[0], *(r[1:] // 4)) for r in coords]),
    ),
    "shifted windows": (
        lambda v, table: F.window_attention(
            v, HEADS, cubic_windows(v, (4, 3, 9), shift=(2, 1, -1)), table=table
        ),
        lambda coords: loops.group_lists(
            [(r[0], *((r[1:] + np.array([2, 1, -1])) // [4, 3, 9])) for r in coords]
        ),
    ),
    "cylinders": (
        lambda v, table: F.window_attention(
            v, HEADS, cylindrical_windows(v, (2.5, 5, 3.0), center=(0.1, 0.2)), table=table
        ),
        lambda coords: loops.group_lists([cylinder(r) for r in coords]),
    ),
    "scenes": (
        lambda v, table: F.scene_attention(v, HEADS, table=table),
        lambda coords: loops.group_lists([r[0] for r in coords]),
    ),
}


def cylinder(row):
    x, y, z = row[1:] + 0.5 - np.array([0.1, 0.2, 0.0])
    sector = math.floor(math.atan2(y, x) / (2 * math.pi) * 5) % 5
    return row[0], math.floor(math.hypot(x, y) / 2.5), sector, math.floor(z / 3)


@pytest.fixture(params=["whole tiles", "small tiles"])
def tiles(request, monkeypatch):
    """All of these problems in one tile, and in many."""
    if request.param == "small tiles":
        monkeypatch.setattr(attention, "TILE", 128)


@pytest.mark.parametrize("kind", KINDS)
def test_float64(kind, tiles):
    run, lists = KINDS[kind]
    attend = jax.jit(lambda v, table: run(v, table))  # traced anew, with these tiles
    with jax.enable_x64(True):
        for sizes, table in itertools.product(CASES, (None, TABLE)):
            rows = scenes(*sizes)
            voxels = make(rows, 3, dtype=np.float64)
            out = attend(voxels, None if table is None else jnp.asarray(table))
            assert out.features.dtype == np.float64
            want = loops.attend_lists(
                voxels.valid_features(), rows, lists(rows), HEADS, table=table
            )
            np.testing.assert_allclose(out.valid_features(), want, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_float32(kind):
    rows = scenes(23, 9, 14)
    voxels = make(rows, 3)
    run, lists = KINDS[kind]
    want = loops.attend_lists(voxels.valid_features(), rows, lists(rows), HEADS)
    np.testing.assert_allclose(run(voxels, None).valid_features(), want, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_has_a_softmax_in_float32(kind):
    rows = scenes(23, 9, 14)
    voxels = make(rows, 3).map(lambda f: f.astype(jnp.bfloat16))
    run, lists = KINDS[kind]
    out = run(voxels, None)
    assert out.features.dtype == jnp.bfloat16
    want = loops.attend_lists(voxels.valid_features(), rows, lists(rows), HEADS)
    np.testing.assert_allclose(np.float64(out.valid_features()), want, atol=0.03, rtol=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_inert(kind):
    """NaN there changes no bit, of gradients too."""
    rows = scenes(23, 9, 14)
    voxels = make(rows, 3)
    run, _ = KINDS[kind]
    table = jnp.asarray(TABLE, jnp.float32)

    @jax.jit
    def everything(features, table):
        def loss(features, table):
            filled = vx.Voxels(voxels.geometry, features)
            return jnp.sum(jnp.sin(run(filled, table).features))

        return jax.value_and_grad(loss, argnums=(0, 1))(features, table)

    poison = jnp.where(voxels.valid[:, None], voxels.features, jnp.nan)
    clean, dirty = everything(voxels.features, table), everything(poison, table)
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(np.asarray(dirty[1][0])).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_scene_of_nan_stays_alone(kind, tiles):
    rows = scenes(23, 9, 14)
    voxels = make(rows, 3)
    run, _ = KINDS[kind]
    bad = voxels.coords[:, :1] == 1
    poisoned = voxels.replace_features(jnp.where(bad, jnp.nan, voxels.features))
    out, want = (run(v, None).valid_features() for v in (poisoned, voxels))
    others = rows[:, 0] != 1
    np.testing.assert_array_equal(out[others], want[others])


FEW = ("hilbert overlap 8", "windows", "scenes")


@pytest.mark.parametrize("kind", [slow_unless(kind in FEW, kind) for kind in KINDS])
def test_derivatives(kind, monkeypatch, rng):
    """The first and the second, reverse and forward over reverse, against differences."""
    monkeypatch.setattr(attention, "TILE", 128)
    run, _ = KINDS[kind]
    with jax.enable_x64(True):
        voxels = make(scenes(11, 4), 2, dtype=np.float64, capacity=16)

        def operator(values):
            filled = vx.Voxels(voxels.geometry, values["features"])
            return run(filled, values["table"]).features

        values = {"features": voxels.features, "table": jnp.asarray(TABLE)}
        check_derivatives(operator, values, rng)


TOKENS = np.random.default_rng(3).normal(size=(3, 7, 2 * CHANNELS))


@pytest.mark.parametrize("queries", ["voxels", "tokens"])
@pytest.mark.parametrize("keys", ["voxels", "tokens"])
def test_cross(queries, keys, tiles):
    with jax.enable_x64(True):
        count = np.array([7, 0, 3])
        rows = {"query": scenes(13, 5, 0, seed=4), "key": scenes(6, 0, 12, seed=5)}
        if queries == "voxels":
            asking = make(rows["query"], 3, dtype=np.float64, parts=1)
            flat, scene = asking.valid_features(), rows["query"][:, 0]
        else:
            asking = F.Tokens(jnp.asarray(TOKENS[..., :CHANNELS]))
            flat, scene = TOKENS[..., :CHANNELS].reshape(21, -1), np.arange(21) // 7
        if keys == "voxels":
            asked = make(rows["key"], 3, dtype=np.float64, parts=2, capacity=32)
            known, where = asked.valid_features(), rows["key"][:, 0]
        else:
            asked = F.Tokens(jnp.asarray(TOKENS), jnp.asarray(count))
            known = np.concatenate([TOKENS[i, :n] for i, n in enumerate(count)])
            where = np.repeat(np.arange(3), count)
        out = jax.jit(lambda q, k: F.cross_attention(q, k, HEADS))(asking, asked)
        got = out.valid_features() if queries == "voxels" else out.features.reshape(21, -1)
        key, value = np.split(known, 2, axis=1)
        want = [
            loops.attend(row, key[where == s], value[where == s], HEADS)
            for row, s in zip(flat, scene, strict=True)
        ]
        np.testing.assert_allclose(got, want, atol=1e-10)


def test_tokens_beyond_the_count_are_inert():
    rows = scenes(13, 5, 0)
    voxels = make(rows, 3, parts=1)
    count = jnp.asarray([7, 0, 3])
    exists = (np.arange(7)[None, :] < np.asarray(count)[:, None])[..., None]
    tokens = np.float32(TOKENS)
    outs = [
        F.cross_attention(voxels, F.Tokens(jnp.asarray(t), count), HEADS).features
        for t in (tokens, np.where(exists, tokens, np.nan))
    ]
    np.testing.assert_array_equal(*outs)


@pytest.mark.parametrize("made", [
    lambda v: (v, F.Tokens(jnp.ones((2, 0, 2 * v.num_channels)))),
    lambda v: (F.Tokens(jnp.ones((2, 5, 12))), F.Tokens(jnp.ones((2, 0, 24)))),
    lambda v: (F.Tokens(jnp.ones((2, 0, 12))), F.Tokens(jnp.ones((2, 5, 24)))),
])  # fmt: skip
def test_no_tokens(made):
    query, keys = made(make(scenes(5, 3), 2, parts=1))
    out = F.cross_attention(query, keys, HEADS).features
    assert out.shape == query.features.shape
    assert not np.asarray(out).any()


def test_a_shift_of_numpy_s_integers():
    voxels = make(scenes(23, 9), 2)
    want = cubic_windows(voxels, 3, shift=1).number
    for shift in (np.int64(1), np.array([1, 1, 1]), [np.int32(1), 1, 1]):
        np.testing.assert_array_equal(cubic_windows(voxels, 3, shift=shift).number, want)


@pytest.mark.parametrize("fill", ["overlap", "cycle", "short"])
@pytest.mark.parametrize("length", [1, 4, 64, 100])
def test_patches_hold_each_row_once(length, fill):
    voxels = make(scenes(23, 0, 14), 3)
    cut = cut_patches(voxels, length, vx.curve_order(voxels, "morton"), fill=fill)
    rows, place = np.asarray(cut.rows), np.asarray(cut.place)
    assert rows.shape == (min(64, (64 + 3 * (length - 1)) // length), length)
    assert (place[37:] == -1).all()
    np.testing.assert_array_equal(rows.reshape(-1)[place[:37]], np.arange(37))
    live = rows >= 0
    assert (live[:, :-1] >= live[:, 1:]).all(), "empty slots come last"


def test_a_larger_batch_changes_nothing():
    """A scene's result does not depend on the scenes beside it."""
    rows = scenes(23, 9, 14)
    voxels = make(rows, 3)
    for run, _ in KINDS.values():
        whole = run(voxels, None)
        for scene in range(3):
            alone = run(voxels.scene(scene), None).valid_features()
            np.testing.assert_allclose(
                whole.valid_features()[rows[:, 0] == scene], alone, rtol=1e-5, atol=1e-6
            )


def test_a_patch_is_no_longer_than_the_capacity():
    """Else a small level would pay for the logits of slots that no row stands in."""
    voxels = make(scenes(23, 9, 14), 3)
    attend = jax.jit(lambda v: F.serialized_attention(v, HEADS, 1 << 20))
    assert str(1 << 20) not in str(jax.make_jaxpr(attend)(voxels))
    whole = F.serialized_attention(voxels, HEADS, 64).features
    np.testing.assert_allclose(attend(voxels).features, whole, rtol=1e-5, atol=1e-6)


BAD = {
    "18 channels of queries, keys and values for 4 heads: expected a multiple of 12": (
        lambda v: F.serialized_attention(v, 4)
    ),
    "patch_size 0 must be an integer from 1 to 1048576": (
        lambda v: F.serialized_attention(v, HEADS, 0)
    ),
    "unknown order 'peano'; known: z, z-trans": (
        lambda v: F.serialized_attention(v, HEADS, order="peano")
    ),
    "unknown fill 'wrap'": lambda v: F.serialized_attention(v, HEADS, fill="wrap"),
    r"relative table of shape \(3, 4, 2\): expected \[3, 2 \* reach \+ 1, 2\]": (
        lambda v: F.scene_attention(v, HEADS, table=jnp.zeros((3, 4, 2)))
    ),
    "algorithm='cudnn' takes float16 and bfloat16, not float32": (
        lambda v: F.serialized_attention(v, HEADS, algorithm="cudnn")
    ),
    "takes patches of a multiple of 128 rows, not 100": (
        lambda v: F.serialized_attention(v, HEADS, 100, algorithm="splash")
    ),
    "unknown algorithm 'flash'": (lambda v: F.serialized_attention(v, HEADS, algorithm="flash")),
    "keys and values of 18 channels for queries of 18: expected 36": (
        lambda v: F.cross_attention(v, v, HEADS)
    ),
    "attention of int32 features": (
        lambda v: F.scene_attention(v.map(lambda f: f.astype(jnp.int32)), HEADS)
    ),
    "windows of 64 rows for voxels of capacity 32": (
        lambda v: F.window_attention(make(scenes(5), 1, capacity=32), HEADS, cubic_windows(v, 2))
    ),
    "window size=.* must be at least 1": lambda v: cubic_windows(v, 0),
    r"tokens of shape \[4, 18\]: give \[batch_size, T, C\]": (
        lambda v: F.cross_attention(F.Tokens(jnp.ones((4, 18))), v, HEADS)
    ),
    r"count of int32\[1\] for tokens of shape \[2, 4, 18\]: give int\[2\]": (
        lambda v: F.cross_attention(F.Tokens(jnp.ones((2, 4, 18)), jnp.asarray([1])), v, HEADS)
    ),
    "shift 0.5: expected an integer": lambda v: cubic_windows(v, 2, shift=0.5),
    r"shift \(0.5, 0.5, 0.5\): expected": lambda v: cubic_windows(v, 2, shift=(0.5,) * 3),
    r"center=\(0.0,\): give": lambda v: cylindrical_windows(v, (1.0, 4, 1.0), center=(0.0,)),
    "0 sectors": lambda v: cylindrical_windows(v, (1.0, 0, 1.0)),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message):
    with pytest.raises(vx.InputError, match=message):
        BAD[message](make(scenes(23, 9), 2))
