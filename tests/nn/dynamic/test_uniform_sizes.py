"""One size for all, for each scene, and a weight for each size, against the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracle.dynamic import dynamic_conv as oracle
from samples import slow_unless
from voxax.errors import InputError
from voxax.nn.functional import dynamic_conv
from voxax.tuning import record_choices

# spatial, largest kernel, stride, dilation
RELATIONS = [
    ((9, 7), (5, 5), (1, 1), (1, 1)),
    ((11,), (6,), (2,), (3,)),
    ((5, 4, 6), (3, 2, 5), (1, 2, 1), (2, 1, 1)),
    ((8, 5), (4, 3), (3, 1), (1, 2)),
]


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")


def case(spatial, shape, channels=(3, 4), scenes=3):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((scenes, *spatial, channels[0]))
    return jnp.asarray(x), jnp.asarray(rng.standard_normal((*shape, *channels)))


@pytest.mark.parametrize(
    "algorithm", ["auto", "masked", "grouped", "tiled", "selected", "specialized"]
)
@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_static_sizes_are_an_ordinary_convolution(relation, algorithm, request):
    """Also sides that differ, sizes beyond the kernel, and NumPy integers."""
    if algorithm == "specialized":
        request.getfixturevalue("portable")  # refused beside the native kernels
    spatial, shape, stride, dilation = relation
    with jax.enable_x64(True):
        x, w = case(spatial, shape)
        how = {"stride": stride, "dilation": dilation}
        for size in (1, np.int64(2), max(shape), max(shape) + 3, None):
            y, pullback = jax.vjp(
                lambda x, w, size=size: dynamic_conv(x, w, size=size, algorithm=algorithm, **how),
                x,
                w,
            )
            every = np.full(y.shape[:-1], max(shape) if size is None else int(size))
            want = oracle(x, w, every, np.asarray(dilation), stride=stride)
            np.testing.assert_allclose(y, want, atol=1e-10)
            ct = np.random.default_rng(1).standard_normal(y.shape)
            dx, dw = pullback(jnp.asarray(ct))
            # Bilinear: along the operand itself the derivative is the function.
            assert np.vdot(dx, x) == pytest.approx(np.vdot(ct, want))
            assert np.vdot(dw, w) == pytest.approx(np.vdot(ct, want))


@pytest.mark.parametrize("relation", [RELATIONS[0], ((6, 5, 4), (3, 3, 3), (2, 1, 1), (1, 1, 1))])
def test_one_size_for_each_scene(relation):
    spatial, shape, stride, dilation = relation
    with jax.enable_x64(True):
        x, w = case(spatial, shape)
        compiled = jax.jit(
            lambda x, w, size: dynamic_conv(x, w, size=size, stride=stride, dilation=dilation)
        )
        for size in (3, [1, 3, 2], [0, 9, 3]):
            y = compiled(x, w, jnp.asarray(size, jnp.int32))
            each = np.broadcast_to(np.asarray(size).reshape(-1, *[1] * len(spatial)), y.shape[:-1])
            want = oracle(x, w, each, np.asarray(dilation), stride=stride)
            np.testing.assert_allclose(y, want, atol=1e-10)
        assert compiled._cache_size() == 2


@pytest.mark.parametrize(
    "size",
    [
        5,
        None,
        np.asarray(3),
        np.asarray([3, 1, 5]),
        np.full((3, 9, 7), 4),
        np.repeat([2, 3, 4], 63).reshape(3, 9, 7),
    ],
    ids=["static", "none", "one", "by scene", "equal", "equal by scene"],
)
def test_sizes_known_to_be_equal_take_an_ordinary_convolution(size, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "cached")
    assert taken(size) == ["selected"]


@pytest.mark.parametrize("relation", [r for r in RELATIONS if len(set(r[1])) == 1], ids=str)
def test_traced_sizes_are_looked_at_while_running(relation):
    """Equal everywhere, by scene, beyond the kernel, zero; and in all but one position."""
    spatial, shape, stride, dilation = relation
    with jax.enable_x64(True):
        x, w = case(spatial, shape)
        how = {"stride": stride, "dilation": dilation}
        compiled = jax.jit(lambda x, w, size: dynamic_conv(x, w, size=size, **how))
        outputs = compiled.eval_shape(x, w, 3).shape[:-1]
        for by_scene in ([3, 3, 3], [1, 3, 2], [0, 9, -1]):
            size = np.broadcast_to(np.reshape(by_scene, (-1, *[1] * len(spatial))), outputs).copy()
            for number in (2, by_scene[-1]):
                size.flat[-2] = number
                y = compiled(x, w, jnp.asarray(size, jnp.int32))
                want = oracle(x, w, size, np.asarray(dilation), stride=stride)
                np.testing.assert_allclose(y, want, atol=1e-10)
        loop = jax.vmap(compiled, (None, None, 0))(x, w, jnp.stack([size, size * 0 + 2]))
        np.testing.assert_allclose(loop[0], y, atol=1e-12)
        two = oracle(x, w, size * 0 + 2, np.asarray(dilation), stride=stride)
        np.testing.assert_allclose(loop[1], two, atol=1e-10)


def taken(size):
    """Algorithms that a new program takes, unmeasured."""
    x, w = case((9, 7), (5, 5))
    x, w = x.astype(jnp.float32), w.astype(jnp.float32)
    with record_choices() as made:
        jax.jit(lambda x: dynamic_conv(x, w, size=size)).lower(x)
    return [choice.algorithm for choice in made]


def test_sizes_that_differ_do_not(monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "cached")
    size = np.full((3, 9, 7), 4)
    size[1, 2, 3] = 2
    assert taken(size) != ["selected"]


BANKS = [
    ((9, 7), (3, 5), (1, 1), (1, 1)),
    ((13,), (1, 2, 6), (2,), (2,)),
    ((5, 4, 6), (1, 3), (1, 2, 1), (1, 1, 1)),
]


def bank_of(spatial, sides, channels=(3, 4)):
    rng = np.random.default_rng(5)
    return {n: jnp.asarray(rng.standard_normal((n,) * len(spatial) + channels)) for n in sides}


def nearest(sides, size, ndim):
    """The side with the nearest number of taps; of two, the smaller."""
    return min(sides, key=lambda n: (abs(n**ndim - max(size, 0) ** ndim), n))


def by_definition(x, weights, size, outputs, **relation):
    each = np.broadcast_to(
        np.asarray(size).reshape(-1, *[1] * len(outputs[1:])) if np.ndim(size) < 2 else size,
        outputs,
    )
    chosen = np.vectorize(lambda s: nearest(weights, int(s), len(outputs) - 1))(each)
    dilation = np.asarray(relation.pop("dilation"))
    parts = {n: oracle(x, w, np.full(outputs, n), dilation, **relation) for n, w in weights.items()}
    return sum(np.where((chosen == n)[..., None], y, 0) for n, y in parts.items())


@pytest.mark.parametrize("shape", ["static", "one", "scenes", "one scene", "positions"])
@pytest.mark.parametrize("relation", [slow_unless(i == 0, b) for i, b in enumerate(BANKS)], ids=str)
def test_weights_of_their_own(relation, shape):
    spatial, sides, stride, dilation = relation
    with jax.enable_x64(True):
        scenes = 1 if shape == "one scene" else 3
        x, weights = case(spatial, (1,) * len(spatial), scenes=scenes)[0], bank_of(spatial, sides)
        outputs = (scenes, *(-(-n // s) for n, s in zip(spatial, stride, strict=True)))
        rng = np.random.default_rng(2)
        sizes = {
            "static": range(8),
            "one": [jnp.int32(n) for n in range(-1, 8)],
            "scenes": [jnp.asarray(rng.integers(0, 8, 3), jnp.int32) for _ in range(4)],
            "one scene": [jnp.asarray([n], jnp.int32) for n in (1, 4, 9)],
            "positions": [jnp.asarray(rng.integers(0, 8, outputs), jnp.int32)],
        }[shape]

        def f(x, weights, size):
            return dynamic_conv(x, weights, size=size, stride=stride, dilation=dilation)

        run = f if shape == "static" else jax.jit(f)
        for size in sizes:
            y, pullback = jax.vjp(lambda x, w, size=size: run(x, w, size), x, weights)
            want = by_definition(x, weights, size, outputs, stride=stride, dilation=dilation)
            np.testing.assert_allclose(y, want, atol=1e-10)
            ct = rng.standard_normal(y.shape)
            dx, dw = pullback(jnp.asarray(ct))
            assert np.vdot(dx, x) == pytest.approx(np.vdot(ct, want))
            assert sum(np.vdot(dw[n], w) for n, w in weights.items()) == pytest.approx(
                np.vdot(ct, want)
            )


def test_eager_calls_with_weights_of_their_own_compile_once():
    """Known sizes are looked at: a switch between new functions would be compiled each time."""
    x = case((6, 5), (1, 1))[0].astype(jnp.float32)
    weights = {n: w.astype(jnp.float32) for n, w in bank_of((6, 5), (3, 5)).items()}
    run = jax.jit(lambda x, weights, size: dynamic_conv(x, weights, size=size))
    sizes = ([3, 5, 3], [5, 5, 5], [3, 3, 3], [-4, 9, 127], 3, 5)
    for dtype in (np.int8, np.int32, np.uint8):
        for size in sizes:
            size = np.asarray(size).astype(dtype)
            want = run(x, weights, jnp.asarray(size))
            for known in (size, jnp.asarray(size)):
                y = dynamic_conv(x, weights, size=known)
                np.testing.assert_allclose(y, want, atol=1e-5)
    compiled = []

    def listener(event, seconds, **details):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        for size in sizes:
            dynamic_conv(x, weights, size=np.asarray(size))
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert not compiled


def test_weights_of_their_own_with_bias_in_half_precision():
    x = case((6, 5), (1, 1))[0].astype(jnp.bfloat16)
    weights = {n: w.astype(jnp.bfloat16) for n, w in bank_of((6, 5), (3, 5)).items()}
    bias = jnp.arange(4, dtype=jnp.bfloat16)
    y = dynamic_conv(x, weights, size=jnp.asarray([3, 5, 3]), bias=bias)
    plain = dynamic_conv(x, weights, size=jnp.asarray([3, 5, 3]))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, plain + bias.reshape(1, 1, 1, 4))
    wide = {n: np.asarray(w, np.float64) for n, w in weights.items()}
    relation = {"stride": (1, 1), "dilation": (1, 1)}
    want = by_definition(np.asarray(x, np.float64), wide, [3, 5, 3], y.shape[:-1], **relation)
    np.testing.assert_allclose(np.asarray(plain, np.float64), want, rtol=0.02, atol=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": {}}, "at least"),
        ({"weight": {3: np.ones((3, 5, 3, 4), np.float32)}}, "the weight of size 3 has shape"),
        (
            {
                "weight": {
                    1: np.ones((1, 1, 3, 4), np.float32),
                    3: np.ones((3, 3, 3, 5), np.float32),
                }
            },
            "the weight of size 3 has shape",
        ),
        ({"weight": {3: np.ones((3, 3, 2, 4), np.float32)}}, "x has 3 channels"),
        ({"size": None}, "size=None"),
        ({"size": jnp.asarray([1.5])}, "give integers"),
        ({"size": jnp.asarray([3, 3])}, "size of shape"),
        ({"algorithm": "bank"}, "need one weight"),
        ({"mask": jnp.ones((1, 4, 4, 9))}, "need one weight"),
        ({"mixture": jnp.ones((1, 2))}, "need one weight"),
        ({"dilation": jnp.ones((1, 4, 4), int)}, "static dilation"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refused(change, message):
    given = {"weight": {3: np.ones((3, 3, 3, 4), np.float32)}, "size": jnp.asarray([3]), **change}
    weights = {n: jnp.asarray(w) for n, w in given.pop("weight").items()}
    with pytest.raises(InputError, match=message):
        dynamic_conv(jnp.ones((1, 4, 4, 3)), weights, **given)
