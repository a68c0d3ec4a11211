"""Operators with two callers against plain JAX: values, derivatives, bits, padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import needs_native
from voxax._native import operators
from voxax._native.random import fold_in, permutation
from voxax.geometry import branches, sets
from voxax.models import training
from voxax.nn.functional import attention, normalization, pointwise, pooling

pytestmark = needs_native
ROWS, CHANNELS, SCENES = 700, 24, 3
WORDS = np.array([3, 12345], np.uint32)


def arrays(rng, dtype, rows=ROWS, channels=CHANNELS):
    """Features, with NaN in rows that are not valid, these rows, their scenes, and two channels."""
    valid = rng.random(rows) < 0.8
    scene = np.sort(rng.integers(0, SCENES, rows)).astype(np.int32)
    x = rng.normal(0.5, 2, (rows, channels))
    x[~valid] = np.nan
    wide = "float64" if dtype == "float64" else "float32"
    channel = rng.normal(size=(2, channels))
    return jnp.asarray(x, dtype), jnp.asarray(valid), jnp.asarray(scene), jnp.asarray(channel, wide)


def act(name, x, valid, scene, channel):
    p = pointwise._DEFAULTS.get(name, 0.0)
    native, portable = pointwise._activation, pointwise._activation_portable
    return native, portable, (x, valid), {"name": name, "parameter": p}, (0,)


def row_norm(centered, x, valid, scene, channel):
    given = x, valid, channel[0], channel[1] if centered else channel[1][:0]
    static = {"epsilon": 1e-3, "centered": centered}
    native, portable = normalization._row_norm, normalization._row_norm_portable
    return native, portable, given, static, (0, 2, 3) if centered else (0, 2)


def scene_norm(groups, x, valid, scene, channel):
    static = {"epsilon": 1e-3, "groups": groups, "batch_size": SCENES}
    native, portable = normalization._scene_norm, normalization._scene_norm_portable
    return native, portable, (x, valid, scene, *channel), static, (0, 3, 4)


def sums(x, valid, scene, channel):
    return pooling._sums, pooling._sums_portable, (x, valid, scene), {"scenes": SCENES}, (0,)


def extremes(largest, x, valid, scene, channel):
    static = {"scenes": SCENES + 1, "largest": largest}  # the last has no rows
    x = jnp.round(x)  # equal rows
    return pooling._extremes, pooling._extremes_portable, (x, valid, scene), static, (0,)


def multiply(with_bias, x, valid, scene, channel):
    weight = jax.random.normal(jax.random.key(1), (x.shape[1], 10)).astype(x.dtype)
    bias = jnp.arange(10 if with_bias else 0).astype(x.dtype)
    native, portable = pointwise._linear, pointwise._linear_portable
    places = (0, 2, 3) if with_bias else (0, 2)
    return native, portable, (x, valid, weight, bias), {"precision": "highest"}, places


def drop(mode, x, valid, scene, channel):
    static = {"rate": 0.3, "mode": mode, "batch_size": SCENES}
    given = x, valid, scene, jnp.asarray(WORDS)
    return pointwise._dropout, pointwise._dropout_of_words, given, static, (0,)


def loss(weighted, x, valid, scene, channel):
    labels = jnp.where(valid, jnp.arange(x.shape[0]) % (x.shape[1] + 1), -1).astype(jnp.int32)
    weights = jnp.abs(channel[0]).astype(jnp.float32) if weighted else jnp.zeros(0)
    native, portable = training._cross_entropy, training._portable_cross_entropy
    return native, portable, (x, labels, weights), {"ignored": 2}, (0,)


def attend(heads, x, valid, scene, channel):
    """Patches of 16 slots; every third row is a key of the next patch too."""
    (listed,) = np.nonzero(np.asarray(valid))
    repeated = np.repeat(listed, 1 + (np.arange(len(listed)) % 3 == 0))
    slots = np.full(-(-max(len(repeated), 1) // 16) * 16, -1, np.int32)
    slots[: len(repeated)] = repeated
    place = np.full(x.shape[0], -1, np.int32)
    place[listed] = np.searchsorted(repeated, listed)
    given = x, jnp.asarray(slots.reshape(-1, 16)), jnp.asarray(place)
    static = {"heads": heads, "scale": 0.3, "precision": "highest"}
    return attention._in_patches, attention._in_patches_portable, given, static, (0,)


def cat(x, valid, scene, channel):
    given = x, x[:, :7] * 2, x[:, 3:4], valid
    return sets._cat, sets._cat_portably, given, {}, (0, 1, 2)


def add(x, valid, scene, channel):
    return branches._sum, branches._portable, (x, x[:, ::-1] * 2, valid), {}, (0, 1)


OPERATORS = {
    "add": add,
    "cat": cat,
    **{name: functools.partial(act, name) for name in pointwise._KNOWN},
    "layer norm": functools.partial(row_norm, True),
    "RMS norm": functools.partial(row_norm, False),
    "group norm": functools.partial(scene_norm, 4),
    "instance norm": functools.partial(scene_norm, CHANNELS),
    "sums": sums,
    "largest": functools.partial(extremes, True),
    "smallest": functools.partial(extremes, False),
    "linear": functools.partial(multiply, True),
    "linear without bias": functools.partial(multiply, False),
    **{f"drop {m}": functools.partial(drop, m) for m in ("feature", "voxel", "channel", "scene")},
    "attention": functools.partial(attend, 4),
    "attention of one head": functools.partial(attend, 1),
    "loss": functools.partial(loss, False),
    "weighted loss": functools.partial(loss, True),
}
NEED_ROWS = ("largest", "smallest", "attention", "attention of one head")  # in plain JAX
TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "bfloat16": 2e-2, "float16": 3e-3}


def takes(name, dtype):
    if "loss" in name:
        return dtype != "float64"
    return "linear" not in name or dtype != "float16"


def differentiated(function, given, static, places):
    """The first result and its gradients, as a function of the arguments in ``places``."""

    def first(*moved):
        filled = list(given)
        for place, array in zip(places, moved, strict=True):
            filled[place] = array
        return function(*filled, **static)[0]

    return first, tuple(given[place] for place in places)


def check_near(found, wanted, tolerance):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.isfinite(b).all()
        size = max(1.0, np.abs(b).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OPERATORS)
def test_values_and_gradients(rng, name, dtype):
    """Those of plain JAX; NaN in rows that are not valid reaches nothing."""
    if not takes(name, dtype):
        return
    with jax.enable_x64(dtype == "float64"):
        native, portable, given, static, places = OPERATORS[name](*arrays(rng, dtype))
        results = []
        for function in (native, portable):
            first, at = differentiated(function, given, static, places)
            out, pull = jax.vjp(first, *at)
            ct = jnp.asarray(np.random.default_rng(1).normal(size=out.shape), out.dtype)
            results.append((out, pull(ct)))
        if "loss" in name:  # plain JAX has NaN times zero where there is no label
            results[1] = jax.tree.map(jnp.nan_to_num, results[1])
        check_near(*results, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPERATORS)
def test_bits_of_eager_calls_programs_and_threads(rng, name, dtype, monkeypatch):
    native, _, given, static, places = OPERATORS[name](*arrays(rng, dtype, rows=3000))
    first, at = differentiated(native, given, static, places)

    def both(*at):
        out, pull = jax.vjp(first, *at)
        return out, pull(jnp.ones(out.shape, out.dtype))

    found = [jax.jit(both)(*at)]
    for threads in (1, 5):
        monkeypatch.setattr(operators, "threads", lambda threads=threads: threads)
        found.append(both(*at))
    for leaves in zip(*map(jax.tree.leaves, found), strict=True):
        bits = [np.asarray(leaf).view(f"u{leaf.dtype.itemsize}") for leaf in leaves]
        np.testing.assert_array_equal(bits[0], bits[1])
        np.testing.assert_array_equal(bits[1], bits[2])


@pytest.mark.parametrize("name", OPERATORS)
def test_forward_mode_second_order_and_vmap(rng, name):
    x, valid, scene, channel = arrays(rng, "float32", rows=9, channels=CHANNELS)
    x = jnp.where(valid[:, None], x, 0)
    native, portable, given, static, places = OPERATORS[name](x, valid, scene, channel)
    results = []
    for function in (native, portable):
        first, at = differentiated(function, given, static, places)

        def squared(x, first=first, at=at):
            return jnp.sum(jnp.sin(first(x, *at[1:])))

        ahead = jax.jvp(first, at, tuple(map(jnp.ones_like, at)))[1]
        curved = jax.jvp(jax.grad(squared), at[:1], (jnp.ones_like(at[0]),))[1]
        mapped = jax.vmap(lambda x, first=first, at=at: first(x, *at[1:]))(jnp.stack([x, 2 * x]))
        results.append((ahead, curved, mapped))
    check_near(*results, 1e-4)


@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in NEED_ROWS])
def test_no_rows(rng, name):
    x, valid, scene, channel = arrays(rng, "float32", rows=0)
    native, _, given, static, places = OPERATORS[name](x, valid, scene, channel)
    first, at = differentiated(native, given, static, places)
    for gradient in jax.vjp(first, *at)[1](jnp.ones_like(first(*at))):
        assert not np.asarray(gradient).any()


def test_halves_have_the_bits_of_jax():
    """float16 is widened and narrowed as JAX does it, denormal numbers and infinities too."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = jnp.asarray(every[np.isfinite(every)].reshape(-1, 32))
    valid = jnp.ones(every.shape[0], bool)
    found = pointwise.activate(every, valid, "leaky_relu", parameter=0.3)
    wide = every.astype(jnp.float32)
    wanted = jnp.where(wide < 0, wide * np.float32(0.3), wide).astype(jnp.float16)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


@pytest.mark.parametrize("name", pointwise._KNOWN)
def test_activations_far_out(name):
    """Infinities, NaN and large numbers, of values and slopes."""
    x = jnp.asarray([[0.0, -0.0, 1e-30, 30.0, -30.0, 120.0, -120.0, 1e6, -1e6, 1e30, -1e30]])
    x, valid = (
        jnp.concatenate([x, jnp.linspace(-12, 12, 11 * 40).reshape(-1, 11)]),
        jnp.ones(41, bool),
    )
    native = functools.partial(pointwise.activate, valid=valid, name=name)
    p = pointwise._DEFAULTS.get(name, 0.0)

    def portable(x):
        return pointwise._activation_portable(x, valid, name=name, parameter=p)[0]

    np.testing.assert_allclose(native(x), portable(x), rtol=3e-6, atol=1e-6)
    slopes = [jax.vjp(f, x)[1](jnp.ones_like(x))[0] for f in (native, portable)]
    known = np.isfinite(slopes[1])
    assert np.isfinite(slopes[0]).all()
    np.testing.assert_allclose(slopes[0][known], slopes[1][known], rtol=1e-5, atol=5e-6)
    assert np.isnan(native(jnp.full((41, 11), jnp.nan))).all()


def test_keys_are_those_of_jax():
    key = jax.random.key(7)
    words = jax.random.key_data(key)
    for number in (0, 1, 2**32 - 1):
        number = np.uint32(number)
        wanted = jax.random.key_data(jax.random.fold_in(key, number))
        for found in (fold_in(words, number), jax.jit(fold_in)(words, number)):
            np.testing.assert_array_equal(found, wanted)
    for count in (1, 4, 900):
        wanted = jax.random.permutation(key, count)
        for found in (permutation(key, count), jax.jit(permutation, static_argnums=1)(key, count)):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["activation", "row_norm", "linear", "cross_entropy", "dropout"])
def test_arrays_that_do_not_fit(name):
    x, result = np.zeros((4, 3), np.float32), jax.ShapeDtypeStruct((4, 3), np.float32)
    with pytest.raises(ValueError, match=name):
        operators.on_numpy(name, (result,), x, np.zeros(5, bool))
    with pytest.raises(Exception, match=f"{name} takes"):
        jax.jit(lambda x: operators.by_xla(name, (result,), x, np.zeros(5, bool)))(x)
