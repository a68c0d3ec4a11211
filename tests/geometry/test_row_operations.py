"""Operations on rows: eagerly in NumPy, with the bits, derivatives and batches of compiled ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from problems import needs_native
from voxax import _native
from voxax.geometry.row_operations import add_rows, add_to_rows, clear_rows, relu, take_rows

ROWS, CHANNELS = 37, 5
# Without subnormal numbers: XLA takes them as zero.
SPECIAL = (0.0, -0.0, np.nan, np.inf, -np.inf, 1.2e-38, 3.3e38)
FLOATS = ("float32", "bfloat16", "float16", "float64")
VALID = np.arange(ROWS) < 30
HOLES = np.arange(ROWS) % 3 > 0
# Some rows are read several times, others never.
TAKEN = np.random.default_rng(5).integers(-2, ROWS // 2, (20, CHANNELS)).clip(-1).astype(np.int32)


def rows(dtype, seed=0, special=True):
    x = np.random.default_rng(seed).normal(size=(ROWS, CHANNELS)) * 4
    if special:
        x.reshape(-1)[7 : 7 * (len(SPECIAL) + 1) : 7] = SPECIAL
        x[31, 0] = np.nan
    with np.errstate(over="ignore"):
        return jnp.asarray(x, dtype)


OPERATIONS = {
    "clear": (lambda x, y, row: clear_rows(x, VALID), lambda x, y, row: x * VALID[:, None]),
    "clear holes": (lambda x, y, row: clear_rows(x, HOLES), lambda x, y, row: x * HOLES[:, None]),
    "relu": (lambda x, y, row: relu(x), lambda x, y, row: np.maximum(x, 0)),
    "take": (
        lambda x, y, row: take_rows(x, TAKEN),
        lambda x, y, row: np.where(TAKEN < 0, 0, np.take_along_axis(x, TAKEN.clip(0), 0)),
    ),
    "add": (lambda x, y, row: add_rows(x, y), lambda x, y, row: x + y),
    "add to rows": (lambda x, y, row: add_to_rows(x, row), lambda x, y, row: x + row),
}


def bits(x):
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int32"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_values_have_the_bits_of_jit(name, dtype):
    """Against NumPy in float64 too."""
    if name == "relu" and not dtype.startswith(("float", "bfloat")):
        pytest.skip("of floats alone")
    with jax.enable_x64(dtype == "float64"):
        function, expected = OPERATIONS[name]
        is_float = "float" in dtype
        x, y = rows(dtype, special=is_float), rows(dtype, 1, special=False)
        row = rows("float32" if dtype == "float16" else dtype, 2, special=False)[0]
        eager, compiled = function(x, y, row), jax.jit(function)(x, y, row)
        assert eager.dtype == compiled.dtype == x.dtype
        nan = np.isnan(np.asarray(compiled, np.float64))
        np.testing.assert_array_equal(np.isnan(np.asarray(eager, np.float64)), nan)
        np.testing.assert_array_equal(bits(eager)[~nan], bits(compiled)[~nan])
        finite = [np.nan_to_num(np.asarray(v, np.float64), posinf=9, neginf=-9) for v in (x, y)]
        wanted = expected(*finite, np.asarray(row, np.float64))
        sane = np.isfinite(np.asarray(compiled, np.float64)) & np.isfinite(wanted.astype(dtype))
        if name != "take":
            sane &= np.isfinite(np.asarray(x, np.float64))
        np.testing.assert_allclose(
            np.asarray(eager, np.float64)[sane], wanted[sane], rtol=2**-7, atol=1e-6
        )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_have_the_bits_of_jit(name, dtype):
    function, _ = OPERATIONS[name]
    with jax.enable_x64(dtype == "float64"):
        given = rows(dtype, special=False), rows(dtype, 1, special=False), rows(dtype, 2)[0]

        def pulled(ct, *given):
            return jax.vjp(function, *given)[1](ct)

        for ct in (rows(dtype, 3, special=False), rows(dtype, 4)):
            ct = ct[: function(*given).shape[0]]
            eager, compiled = pulled(ct, *given), jax.jit(pulled)(ct, *given)
            for a, b in zip(eager, compiled, strict=True):
                assert a.dtype == b.dtype
                nan = np.isnan(np.asarray(b, np.float64))
                np.testing.assert_array_equal(np.isnan(np.asarray(a, np.float64)), nan)
                np.testing.assert_array_equal(bits(a)[~nan], bits(b)[~nan])


@pytest.mark.parametrize("name", OPERATIONS)
def test_derivatives_of_second_order(name):
    """Eagerly, in both modes, and of a function that is not linear."""
    function, _ = OPERATIONS[name]
    with jax.enable_x64(True):
        given = [rows("float64", seed, special=False) for seed in range(2)]
        given.append(rows("float64", 2, special=False)[0])
        check_grads(lambda *given: function(*given) ** 3, given, order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("name", OPERATIONS)
def test_vmap_is_a_loop(name):
    """Of the function and of its gradient, eagerly; some operands have no batch."""
    function, _ = OPERATIONS[name]
    x, y = (jnp.stack([rows("float32", s, special=False) for s in (a, a + 1)]) for a in (0, 2))
    row = rows("float32", 4, special=False)[:2]
    gradient = jax.grad(lambda *given: (function(*given) ** 2).sum(), (0, 1, 2))
    for call in (function, gradient):
        for axes in ((0, 0, 0), (0, None, None), (None, 0, 0)):
            given = [v if axis == 0 else v[0] for v, axis in zip((x, y, row), axes, strict=True)]
            found = jax.vmap(call, axes)(*given)
            pick = [
                lambda i, v=v, axis=axis: v[i] if axis == 0 else v
                for v, axis in zip(given, axes, strict=True)
            ]
            each = [call(*(take(i) for take in pick)) for i in range(2)]
            wanted = jax.tree.map(lambda *parts: jnp.stack(parts), *each)
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_rows_that_are_clear_are_not_copied():
    x = rows("float32", special=False).at[30:].set(0)
    assert clear_rows(x, VALID) is x
    negative = x.at[33, 2].set(-0.0)
    assert not np.signbit(clear_rows(negative, VALID)).any(axis=1)[30:].any()
    assert clear_rows(x, HOLES) is not x


@needs_native
def test_few_programs_for_many_sizes(programs):
    """Forward and backward; the cotangent comes from outside."""

    def run(number):
        x, y = (np.ones((number, 4), np.float32) * s for s in (1, 2))
        valid = np.arange(number) < number - 1
        x, y, row = map(jax.device_put, (x, y, y[0]))

        def both(x, y, row):
            return relu(clear_rows(add_to_rows(add_rows(x, y), row), valid))

        return jax.vjp(both, x, y, row)[1](x)

    run(3)
    programs.clear()
    for number in range(4, 12):
        run(number)
    assert not programs


def test_a_sum_of_columns_without_the_library(monkeypatch):
    row, ct = rows("float32")[0], rows("float32", 3, special=False)
    pulled = jax.vjp(functools.partial(add_to_rows, ct), row)[1]
    expected = pulled(ct)[0]
    monkeypatch.setattr(_native, "unavailable", lambda: "for this test")
    np.testing.assert_allclose(pulled(ct)[0], expected, rtol=1e-5)
