"""Dynamic products in the tuner, in its reports, and in the account of strategies."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle.dynamic import dynamic_conv as oracle
from problems import needs_native
from samples import slow_unless
from voxax.errors import InputError
from voxax.explanation import strategies
from voxax.explanation.size_strategies import Strategies, Strategy
from voxax.kernels import names
from voxax.nn.functional import dynamic_conv
from voxax.tuning import record_choices


def case(shape=(1, 12, 12), largest=5):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((*shape, 3)), jnp.float32)
    w = jnp.asarray(rng.standard_normal((largest, largest, 3, 4)), jnp.float32)
    return x, w, jnp.asarray(rng.integers(1, largest + 1, shape))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_auto_is_measured_on_the_callers_sizes(wrap):
    """Check sizes that are a constant of a jitted function."""
    x, w, size = case()
    # No others: which is the fastest is no matter here, and programs take long to compile.
    with record_choices() as choices:
        y = wrap(lambda x: dynamic_conv(x, w, size=size, algorithm=["grouped", "tiled"]))(x)
    np.testing.assert_allclose(y, oracle(x, w, size), atol=1e-4)
    (choice,) = choices
    assert choice.source == "measured"
    assert choice.entry.sample == "caller's map"
    assert {m.algorithm for m in choice.entry.measured} == {"grouped", "tiled"}
    assert all(m.verdict in ("ok", "slow", "skipped") for m in choice.entry.measured)


@pytest.mark.usefixtures("own_cache")
@needs_native
@pytest.mark.parametrize("options", [{}, {"algorithm": "bank", "bank": [1, 3]}], ids=str)
def test_a_pin_that_was_measured_decides_nothing_else(options, monkeypatch):
    """Times of one algorithm's own forms do not make it the choice where nothing is requested."""
    monkeypatch.delenv("VOXAX_AUTOTUNE")
    x, w, size = case((1, 6, 6), 3)
    with record_choices() as pinned:
        jax.jit(lambda s: dynamic_conv(x, w, size=s, algorithm="masked"))(size)
    assert [choice.source for choice in pinned] == ["measured"]
    with record_choices() as choices:
        jax.jit(lambda s: dynamic_conv(x, w, size=s, **options))(size)
    assert [(c.algorithm, c.source) for c in choices] == [("grouped", "predicted")]


@pytest.mark.usefixtures("own_cache")
def test_tune_and_explain():
    x, w, size = case()

    def f(x, w):
        return dynamic_conv(x, w, size=size, algorithm=["grouped", "masked"])

    report = vx.tune(f, x, w)
    assert [row.choice.source for row in report] == ["cached"]
    assert report.rows[0].pairs == int((np.asarray(size) ** 2).sum())
    explained = vx.explain(f, x, w)
    assert str(explained.rows[0].choice) == str(report.rows[0].choice)
    assert "dynamic" in str(explained)
    # No table of neighbors: 4 bytes each of x, w, y and the sizes.
    assert explained.rows[0].lower_bound.bytes == 4 * (144 * 3 + 25 * 12 + 144 * 4 + 144)
    with record_choices() as choices:
        f(x, w)
    assert [c.source for c in choices] == ["cached"]


def test_account(portable):
    x, w, size = case((1, 40, 40))
    table = strategies(lambda x: dynamic_conv(x, w, size=size, algorithm="masked"), x)
    taps = np.asarray(size).ravel() ** 2
    assert table.exact == 2 * 12 * int(taps.sum())
    assert table["masked"].operations == 2 * 12 * 25 * 1600
    ordered = np.sort(taps)[::-1]
    blocks = [ordered[i : i + 512] for i in range(0, 1600, 512)]
    assert table["grouped"].operations == 2 * 12 * sum(len(b) * b[0] for b in blocks)
    assert table["selected"].operations == table["masked"].operations
    assert sum(table.histogram) == 1600
    assert [row.name for row in table.rows] == list(names("dynamic"))
    assert re.search(r"grouped +0\.0", str(table))
    assert table.break_even is None


@needs_native
def test_native_kernels_multiply_what_there_is():
    x, w, size = case((1, 40, 40))
    table = strategies(lambda x: dynamic_conv(x, w, size=size, algorithm="masked"), x)
    assert table["grouped"].operations == table.exact < table["specialized"].operations
    assert table["specialized"].reason.startswith("cannot gain on CPUs")
    assert "cannot gain on CPUs" in str(table)


def test_account_of_one_size():
    x, w, _ = case((2, 8, 8))
    table = strategies(lambda x: dynamic_conv(x, w, size=3, algorithm="masked"), x)
    for name in ("grouped", "tiled", "selected", "specialized"):
        assert table[name].operations == table.exact


def test_account_of_nothing_dynamic():
    with pytest.raises(InputError, match="no sparse convolution"):
        strategies(lambda x: x + 1, jnp.ones(3))


@pytest.mark.slow
def test_measured_account(portable):
    x, w, size = case((1, 64, 64))
    table = strategies(lambda x: dynamic_conv(x, w, size=size, algorithm="masked"), x, measure=True)
    assert all(row.seconds > 0 and row.compile_seconds > 0 for row in table.rows)
    assert re.search(r"breaks even after \d+ calls|gains nothing here", str(table))


@pytest.mark.parametrize(("own", "calls"), [(0.01, 50), (0.03, None), (0.02, None)])
def test_break_even_is_a_number_of_calls(own, calls):
    rows = [Strategy("grouped", 1, None, 0.02, 1.0), Strategy("masked", 2, None, 0.05, 1.0)]
    table = Strategies((*rows, Strategy("specialized", 1, None, own, 0.5)), (0, 4), 1)
    assert table.break_even == (None if calls is None else pytest.approx(calls))
    words = str(table)
    assert "inf" not in words
    assert ("breaks even after 50 calls" if calls else "gains nothing here") in words


def test_a_bank_is_tuned_and_explained():
    """Check that its products are those of the strategies, rounded."""
    x, w, size = case()
    for options in ({}, {"coarse_from": 4}):
        report = vx.explain(
            lambda x, o=options: dynamic_conv(x, w, size=size, algorithm="bank", **o), x
        )
        assert {row.choice.problem.layer.kind for row in report} == {"dynamic"}


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize(
    "algorithm",
    [slow_unless(m == "grouped", m) for m in ("masked", "grouped", "tiled", "selected")],
)
def test_lowers_for_other_platforms(algorithm, platform, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    x, w, size = case((1, 6, 6), 3)

    def f(x, w, size):
        return dynamic_conv(x, w, size=size, algorithm=algorithm).sum()

    jax.jit(jax.grad(f, argnums=(0, 1))).trace(x, w, size).lower(lowering_platforms=(platform,))
