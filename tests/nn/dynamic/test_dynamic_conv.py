"""Dense dynamic convolution against the definition, position by position.

Every gradient by finite differences: test_dynamic_cases.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle.dynamic import dynamic_conv as oracle
from samples import slow_unless
from voxax import _native
from voxax.errors import AlgorithmError, InputError
from voxax.nn.functional import bank_error, deform_conv, dynamic_conv
from voxax.tuning import record_choices

STRATEGIES = ("masked", "grouped", "tiled", "selected", "specialized")
# spatial, largest kernel, stride, dilation
RELATIONS = [
    ((9, 7), (5, 5), (1, 1), (1, 1)),
    ((11,), (6,), (2,), (3,)),
    ((5, 4, 6), (3, 3, 3), (1, 2, 1), (2, 1, 1)),
    ((8, 5), (4, 3), (3, 1), (1, 2)),
    ((6, 3), (3, 3), (3, 3), (1, 1)),
]
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 0.06}


def case(spatial, shape, stride, dtype="float64", batch=2, channels=(3, 4), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *spatial, channels[0]))
    w = rng.standard_normal((*shape, *channels)) / np.sqrt(np.prod(shape) * channels[0])
    outputs = [-(-n // s) for n, s in zip(spatial, stride, strict=True)]
    size = rng.integers(0, max(shape) + 2, (batch, *outputs)).astype(np.int32)
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype), jnp.asarray(size)


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch, request):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    if (
        "algorithm" in request.fixturenames
        and request.getfixturevalue("algorithm") == "specialized"
    ):
        request.getfixturevalue("portable")  # refused beside the native kernels


@pytest.mark.parametrize("algorithm", STRATEGIES)
@pytest.mark.parametrize(
    "relation", [slow_unless(i < 3, r) for i, r in enumerate(RELATIONS)], ids=str
)
def test_every_strategy_is_exact(algorithm, relation):
    spatial, shape, stride, dilation = relation
    if algorithm == "selected" and len(set(shape)) > 1:
        pytest.skip("has kernels with equal sides")
    with jax.enable_x64(True):
        x, w, size = case(spatial, shape, stride)
        y = dynamic_conv(x, w, size=size, stride=stride, dilation=dilation, algorithm=algorithm)
    want = oracle(x, w, size, np.asarray(dilation), stride=stride)
    np.testing.assert_allclose(y, want, atol=1e-10)


@pytest.mark.parametrize("algorithm", STRATEGIES)
@pytest.mark.parametrize("dtype", [slow_unless(False, "float32"), "bfloat16"])
def test_dtypes(algorithm, dtype):
    x, w, size = case((9, 8), (5, 5), (1, 1), dtype)
    y = dynamic_conv(x, w, size=size, algorithm=algorithm)
    assert y.dtype == dtype
    wide = np.asarray(x.astype(jnp.float32)), np.asarray(w.astype(jnp.float32))
    np.testing.assert_allclose(
        np.asarray(y, np.float64), oracle(*wide, size), atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("algorithm", STRATEGIES)
def test_gradients_of_every_strategy(algorithm):
    """All three products, forward and reverse mode, against the numbers of the definition."""
    with jax.enable_x64(True):
        x, w, size = case((7, 5), (3, 3), (2, 1))
        rng = np.random.default_rng(1)

        def f(x, w):
            return dynamic_conv(x, w, size=size, stride=(2, 1), algorithm=algorithm)

        y, pullback = jax.vjp(f, x, w)
        ct = jnp.asarray(rng.standard_normal(y.shape))
        dx, dw = pullback(ct)
        for which, gradient in enumerate((dx, dw)):
            operands = [np.asarray(x), np.asarray(w)]
            t = rng.standard_normal(operands[which].shape)
            moved = list(operands)
            moved[which] = t  # bilinear: the derivative along t is the function of t
            along = oracle(*moved, size, stride=(2, 1))
            assert np.vdot(gradient, t) == pytest.approx(np.vdot(ct, along), abs=1e-10)
            tangents = [jnp.zeros_like(x), jnp.zeros_like(w)]
            tangents[which] = jnp.asarray(t)
            forward = jax.jvp(f, (x, w), tuple(tangents))[1]
            np.testing.assert_allclose(forward, along, atol=1e-10)


@pytest.mark.parametrize(
    "algorithm",
    [slow_unless(m == "grouped", m) for m in ("masked", "grouped", "tiled", "selected")],
)
def test_second_order(algorithm):
    """The mixed second derivative of a bilinear function is the function itself."""
    with jax.enable_x64(True):
        x, w, size = case((5, 4), (3, 3), (1, 1))
        tx, tw = (jnp.asarray(np.random.default_rng(2).standard_normal(a.shape)) for a in (x, w))

        def f(x, w):
            return jnp.sum(dynamic_conv(x, w, size=size, algorithm=algorithm) ** 2)

        def slope(x, w):
            return jnp.vdot(jax.grad(f)(x, w), tx)

        got = jnp.vdot(jax.grad(slope, argnums=1)(x, w), tw)
        # d2/dadb of |y(x + a tx, w + b tw)|^2 at 0, of y's own bilinear parts.
        y, yx, yw, yxw = (
            oracle(*map(np.asarray, pair), size) for pair in ((x, w), (tx, w), (x, tw), (tx, tw))
        )
        assert float(got) == pytest.approx(2 * np.vdot(yx, yw) + 2 * np.vdot(y, yxw), rel=1e-10)


EXTRA = {
    "soft": lambda r, o, k, d: {"size": r.uniform(0.3, 4.6, o)},
    "soft, wide ramp": lambda r, o, k, d: {"size": r.uniform(0.3, 4.6, o), "tau": 2.5},
    "offsets": lambda r, o, k, d: {"offsets": r.uniform(-2.4, 2.4, (*o, k, d))},
    "mask": lambda r, o, k, d: {"mask": r.standard_normal((*o, k))},
    "dilation": lambda r, o, k, d: {"dilation": r.uniform(0.6, 2.7, o)},
    "mixture": lambda r, o, k, d: {"mixture": r.standard_normal((*o, 2))},
    "scene mixture": lambda r, o, k, d: {"mixture": r.standard_normal((o[0], 2))},
    "all": lambda r, o, k, d: {
        "size": r.uniform(0.3, 4.6, o),
        "offsets": r.uniform(-1.3, 1.3, (*o, k, d)),
        "mask": r.standard_normal((*o, k)),
        "dilation": r.uniform(0.6, 2.7, (*o, d)),
        "mixture": r.standard_normal((*o, 2)),
        "tau": 1.5,
    },
}


def extra(name, spatial, shape, stride):
    outputs = (2, *(-(-n // s) for n, s in zip(spatial, stride, strict=True)))
    rng = np.random.default_rng(3)
    options = EXTRA[name](rng, outputs, int(np.prod(shape)), len(spatial))
    w = rng.standard_normal((*((2,) if "mixture" in options else ()), *shape, 3, 2))
    x = rng.standard_normal((2, *spatial, 3))
    return x, w, options


@pytest.mark.parametrize("name", EXTRA)
@pytest.mark.parametrize(
    ("spatial", "shape", "stride"),
    [((6, 5), (4, 4), (1, 1)), slow_unless(False, (9,), (3,), (2,))],
    ids=str,
)
def test_everything_dynamic_is_exact(name, spatial, shape, stride):
    x, w, options = extra(name, spatial, shape, stride)
    with jax.enable_x64(True):
        arrays = {k: jnp.asarray(v) if k != "tau" else v for k, v in options.items()}
        y = dynamic_conv(jnp.asarray(x), jnp.asarray(w), stride=stride, **arrays)
    np.testing.assert_allclose(y, oracle(x, w, stride=stride, **options), atol=1e-10)


def test_integer_dilation_and_offsets_are_fetched():
    rng = np.random.default_rng(5)
    x, w, size = case((7, 6), (3, 3), (1, 1), "float32")
    dilation = rng.integers(0, 4, size.shape)
    offsets = rng.integers(-2, 3, (*size.shape, 9, 2))
    y = dynamic_conv(
        x, w, size=size, dilation=jnp.asarray(dilation), offsets=jnp.asarray(offsets, jnp.int32)
    )
    want = oracle(x, w, size, dilation=dilation[..., None], offsets=offsets)
    np.testing.assert_allclose(y, want, atol=1e-5)


@pytest.mark.parametrize("algorithm", STRATEGIES)
def test_taps_that_are_not_there_are_not_read(algorithm):
    """A NaN beyond a position's kernel stays away from it, forwards and backwards."""
    size = jnp.asarray([[1, 1, 3, 3, 1, 1, 1, 1, 1, 1]])
    x = jnp.ones((1, 10, 1)).at[0, 7].set(jnp.nan)
    w = jnp.ones((5, 1, 1))
    y, pullback = jax.vjp(lambda x: dynamic_conv(x, w, size=size, algorithm=algorithm), x)
    np.testing.assert_array_equal(np.isnan(y[0, :, 0]), np.arange(10) == 7)
    ct = jnp.ones_like(y).at[0, 7].set(jnp.nan)
    (dx,) = pullback(ct)
    np.testing.assert_array_equal(np.isnan(dx[0, :, 0]), np.arange(10) == 7)


@pytest.mark.parametrize("algorithm", STRATEGIES)
@pytest.mark.parametrize("size", [slow_unless(s == 3, s) for s in (0, 1, 3, 9)])
def test_one_size(algorithm, size):
    x, w, _ = case((6, 7), (3, 3), (1, 1), "float32")
    y = dynamic_conv(x, w, size=size, algorithm=algorithm)
    np.testing.assert_allclose(y, oracle(x, w, np.full((2, 6, 7), size)), atol=1e-5)


@pytest.mark.parametrize("algorithm", STRATEGIES)
@pytest.mark.parametrize("spatial", [(1, 1), (0, 4), (4, 0)], ids=str)
def test_tiny_and_empty_grids(algorithm, spatial):
    x, w, size = case(spatial, (3, 3), (1, 1), "float32")
    y, pullback = jax.vjp(lambda x, w: dynamic_conv(x, w, size=size, algorithm=algorithm), x, w)
    assert y.shape == (2, *spatial, 4)
    np.testing.assert_allclose(y, oracle(x, w, size), atol=1e-5)
    dx, dw = pullback(y)
    assert dx.shape == x.shape
    assert np.isfinite(dw).all()


def test_a_size_for_each_scene():
    x, w, _ = case((6, 7), (5, 5), (1, 1), "float32")
    y = dynamic_conv(x, w, size=jnp.asarray([3, 5]), algorithm="selected")
    size = np.broadcast_to(np.array([3, 5])[:, None, None], (2, 6, 7))
    np.testing.assert_allclose(y, oracle(x, w, size), atol=1e-5)


def test_bias_and_no_size():
    x, w, _ = case((6, 7), (3, 3), (1, 1), "float32")
    bias = jnp.arange(4.0)
    y = dynamic_conv(x, w, bias=bias)
    np.testing.assert_allclose(y, oracle(x, w) + np.arange(4.0), atol=1e-5)


@pytest.mark.parametrize("algorithm", [slow_unless(m == "selected", m) for m in STRATEGIES[:4]])
def test_vmap(algorithm):
    x, w, size = case((5, 4), (3, 3), (1, 1), "float32", batch=3)

    def f(x, size):
        return dynamic_conv(x[None], w, size=size[None], algorithm=algorithm)[0]

    np.testing.assert_allclose(jax.vmap(f)(x, size), oracle(x, w, size), atol=1e-5)


@pytest.mark.parametrize(
    "algorithm",
    [slow_unless(m in ("grouped", "selected"), m) for m in (*STRATEGIES[:4], "auto", "bank")],
)
def test_other_sizes_are_no_new_program(algorithm):
    x, w, size = case((8, 8), (5, 5), (1, 1), "float32")
    traced = []

    @jax.jit
    def f(x, w, size):
        traced.append(1)
        return jax.value_and_grad(
            lambda x: dynamic_conv(x, w, size=size, algorithm=algorithm).sum()
        )(x)

    for other in (size, size // 2, jnp.full_like(size, 3), jnp.zeros_like(size)):
        f(x, w, other)
    assert len(traced) == 1
    assert f._cache_size() == 1


def test_specialized_is_one_program_for_a_bucket_of_histograms(portable):
    x, w, size = case((40, 40), (5, 5), (1, 1), "float32", batch=1)
    rng = np.random.default_rng(0)
    for _ in range(3):
        shuffled = jnp.asarray(rng.permutation(np.asarray(size).ravel()).reshape(size.shape))
        y = dynamic_conv(x, w, size=shuffled, algorithm="specialized")
        np.testing.assert_allclose(
            y, dynamic_conv(x, w, size=shuffled, algorithm="masked"), atol=1e-5
        )
    with pytest.raises(AlgorithmError, match="traced"):
        jax.jit(lambda size: dynamic_conv(x, w, size=size, algorithm="specialized"))(size)


@pytest.mark.skipif(_native.unavailable() is not None, reason=f"{_native.unavailable()}")
def test_what_cannot_gain_is_not_offered():
    """Check the pin, and that explain names the reason where nothing is pinned."""
    x, w, size = case((9, 6), (5, 5), (1, 1), "float32")
    with pytest.raises(AlgorithmError, match="specialized: cannot gain on CPUs with the native"):
        dynamic_conv(x, w, size=size, algorithm="specialized")
    for traced in (False, True):
        report = (
            vx.explain(lambda s: dynamic_conv(x, w, size=s, algorithm="auto"), size)
            if traced
            else vx.explain(lambda x: dynamic_conv(x, w, size=size, algorithm="auto"), x)
        )
        refused = {name: verdict for name, _, verdict in report.rows[0].candidates()}
        assert refused["specialized"].startswith("refused: cannot gain on CPUs")


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_where_specialized_cannot_gain(platform):
    x, w, size = case((6, 6), (3, 3), (1, 1), "float32")
    traced = jax.jit(lambda x: dynamic_conv(x, w, size=size, algorithm="specialized")).trace(x)
    if platform == "tpu":
        with pytest.raises(AlgorithmError, match="cannot gain on TPUs"):
            traced.lower(lowering_platforms=(platform,))
    else:
        traced.lower(lowering_platforms=(platform,))


@pytest.mark.slow
def test_bank():
    x, w, _ = case((16, 16), (7, 7), (1, 1), "float32")
    rng = np.random.default_rng(0)
    size = jnp.asarray(rng.choice([2, 4, 7], (2, 16, 16)))
    y = dynamic_conv(x, w, size=size, algorithm="bank")
    np.testing.assert_allclose(y, oracle(x, w, size), atol=1e-5)
    exact = bank_error(x, w, size=size)
    np.testing.assert_array_equal(exact.sizes, [2, 4, 7])
    assert float(exact.moved) == 0
    assert float(exact.relative) < 1e-6
    fixed = bank_error(x, w, size=size, bank=[3, 7])
    assert 0.5 < float(fixed.moved) < 0.8
    near = np.where(np.asarray(size) == 7, 7, 3)
    want = oracle(x, w, near) - oracle(x, w, size)
    relative = np.sqrt((want**2).mean() / (oracle(x, w, size) ** 2).mean())
    assert float(fixed.relative) == pytest.approx(relative, rel=1e-4)


def test_refused():
    x, w, size = case((6, 7), (3, 3), (1, 1), "float32")
    with pytest.raises(InputError, match=r"size of shape \(2, 6\)"):
        dynamic_conv(x, w, size=size[..., 0])
    with pytest.raises(InputError, match="takes 3"):
        dynamic_conv(x[..., :2], w)
    with pytest.raises(InputError, match=r"expected \[\*T"):
        dynamic_conv(x, w[0])
    with pytest.raises(InputError, match="mask of shape"):
        dynamic_conv(x, w, mask=jnp.ones((2, 6, 7, 8)))
    with pytest.raises(InputError, match="offsets of shape"):
        dynamic_conv(x, w, offsets=jnp.ones((2, 6, 7, 9)))
    with pytest.raises(InputError, match="dilation of shape"):
        dynamic_conv(x, w, dilation=jnp.ones((2, 6)))
    with pytest.raises(InputError, match="mixture of shape"):
        dynamic_conv(x, w[None], mixture=jnp.ones((2, 6, 1)))
    with pytest.raises(InputError, match="int32"):
        dynamic_conv(x.astype(jnp.int32), w)
    with pytest.raises(AlgorithmError, match="only 'masked'"):
        dynamic_conv(x, w, mask=jnp.ones((2, 6, 7, 9)), algorithm="grouped")
    with pytest.raises(
        AlgorithmError, match=r"^algorithm: unknown algorithm 'winograd'; known: grouped, masked"
    ):
        dynamic_conv(x, w, size=size, algorithm="winograd")
    with pytest.raises(AlgorithmError, match="whole box"):
        dynamic_conv(x, w[:2], size=size, algorithm="selected")


def test_a_list_is_a_filter():
    x, w, size = case((6, 7), (3, 3), (1, 1), "float32")
    with record_choices() as choices:
        dynamic_conv(x, w * 2, size=size, algorithm=["tiled", "masked"])
    assert [choice.algorithm for choice in choices] == ["tiled"]


@pytest.mark.parametrize("algorithm", [slow_unless(m == "grouped", m) for m in STRATEGIES])
def test_the_gradient_of_a_position_without_taps_is_not_read(algorithm):
    """Size 0 contributes nothing to the weight's gradient, whatever arrives there."""
    x, w, size = case((6, 7), (3, 3), (1, 1), "float32")
    size = size.at[0, 0, 0].set(0)
    y, pullback = jax.vjp(lambda w: dynamic_conv(x, w, size=size, algorithm=algorithm), w)
    ct = jnp.ones_like(y)
    (want,) = pullback(ct)
    (got,) = pullback(ct.at[0, 0, 0].set(jnp.nan))
    np.testing.assert_array_equal(got, want)


def test_places_far_outside_read_nothing():
    """Not even the first row, times zero."""
    x = jnp.ones((1, 3, 4, 1)).at[0, 0, 2].set(jnp.nan)
    y = dynamic_conv(x, jnp.ones((1, 1, 1, 1)), offsets=jnp.full((1, 3, 4, 1, 2), -50.0))
    np.testing.assert_array_equal(y, 0)
    off = jnp.full((1, 3, 4, 1, 2), jnp.inf)
    y = dynamic_conv(x, jnp.ones((1, 1, 1, 1)), offsets=off)
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize("conv", [dynamic_conv, deform_conv])
def test_places_that_are_nan_give_nan(conv):
    """A network whose offsets have diverged must not go on with zeros."""
    x, w, _ = case((6, 7), (3, 3), (1, 1), "float32")
    off = jnp.zeros((2, 6, 7, 9, 2)).at[1, 2, 3, 4, 0].set(jnp.nan)
    y = np.asarray(conv(x, w, offsets=off))
    assert np.isnan(y[1, 2, 3]).all()
    assert np.isnan(y).sum() == y.shape[-1]
    if conv is dynamic_conv:
        y = dynamic_conv(x, w, dilation=jnp.ones((2, 6, 7)).at[0, 1, 1].set(jnp.nan))
        assert np.isnan(y).sum() == y.shape[-1]
        unread = dynamic_conv(x, w, offsets=off, size=np.zeros((2, 6, 7), np.int32))
        np.testing.assert_array_equal(unread, 0)


@pytest.mark.parametrize("far", [2**31 - 1, -(2**31), 2**32, -(2**33)])
def test_integers_beyond_32_bits_do_not_wrap_around(far):
    x, w, _ = case((6, 7), (3, 3), (1, 1), "float32")
    taps = dynamic_conv(x, w) if far > 0 else jnp.zeros((2, 6, 7, 4))
    for size in (np.full((2, 6, 7), far), np.full(2, far), np.int64(far)):
        np.testing.assert_allclose(dynamic_conv(x, w, size=size), taps, atol=1e-5)
    center = dynamic_conv(x, w, size=1)
    y = dynamic_conv(x, w, dilation=np.full((2, 6, 7), far))
    np.testing.assert_allclose(y, center, atol=1e-5)
    off = np.full((2, 6, 7, 9, 2), far)
    np.testing.assert_array_equal(dynamic_conv(x, w, offsets=off), 0)
    np.testing.assert_array_equal(deform_conv(x, w, offsets=off), 0)
    if abs(far) <= 2**31:
        y = jax.jit(lambda d: dynamic_conv(x, w, dilation=d))(jnp.full((2, 6, 7), far, jnp.int32))
        np.testing.assert_allclose(y, center, atol=1e-5)


def test_infinite_sizes_are_beyond_the_smallest_and_the_largest():
    x, w, _ = case((6, 7), (3, 3), (1, 1), "float32")
    size = jnp.full((2, 6, 7), jnp.inf).at[0].set(-jnp.inf)
    y = dynamic_conv(x, w, size=size)
    np.testing.assert_array_equal(y[0], 0)
    np.testing.assert_allclose(y[1], dynamic_conv(x, w)[1], atol=1e-5)


def test_numbers_that_32_bits_do_not_hold():
    x, w, _ = case((6, 7), (3, 3), (1, 1), "float32")
    with jax.enable_x64(True):
        huge = np.full((2, 6, 7), 2**32 + 1)
        y = dynamic_conv(x, w, size=huge, algorithm="masked")
    np.testing.assert_allclose(y, oracle(x, w), atol=1e-5)
    for wrong in ({"dilation": 2**32}, {"stride": 2**32}):
        with pytest.raises(InputError, match=r"limited to 2\*\*28"):
            dynamic_conv(x, w, mask=jnp.ones((2, 6, 7, 9)), **wrong)


def test_kernels_are_mixed_at_the_precision_of_the_products():
    x, w, _ = case((6, 7), (3, 3), (1, 1), "float32")
    mixed = jax.make_jaxpr(lambda m: dynamic_conv(x, jnp.stack([w, w]), mixture=m))
    (product,) = [e for e in mixed(jnp.ones((2, 2))).eqns if e.primitive.name == "dot_general"]
    assert set(product.params["precision"]) == {jax.lax.Precision.HIGHEST}


def test_soft_sizes_are_interpolated_wide():
    """Check half precision: rounded once per size and once at the end, also in gradients."""
    x, w, _ = case((6, 7), (3, 3), (1, 1), "bfloat16")
    size = jnp.full((2, 6, 7), 2.3)
    y = dynamic_conv(x, w, size=size)
    assert y.dtype == jnp.bfloat16
    low, high = (dynamic_conv(x, w, size=s).astype(jnp.float32) for s in (2, 3))
    part = size[..., None] - 2
    np.testing.assert_array_equal(y, (low * (1 - part) + high * part).astype(jnp.bfloat16))
    slope = jax.grad(lambda s: dynamic_conv(x, w, size=s).astype(jnp.float32).sum())(size)
    np.testing.assert_allclose(slope, (high - low).sum(-1), rtol=1e-5, atol=1e-5)
