"""The native rows of maxima and minima against a loop over windows in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_native import simd  # noqa: F401

from problems import needs_native, random_table
from voxax.nn.functional.pooling import _find_natively, _scan_taps, extreme_rows

pytestmark = needs_native


def expected(x, table, largest):
    """The first of the best rows; a NaN is best of all."""
    found = np.full((len(table), x.shape[1]), -1, np.int32)
    for m, row in enumerate(table):
        present = row[row >= 0]
        if len(present):
            best = np.argmax if largest else np.argmin
            found[m] = present[best(x[present], axis=0)]
    return found


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("channels", [1, 7, 16, 37, 64])
def test_rows_of_extremes(simd, dtype, channels, largest, rng):  # noqa: F811
    with jax.enable_x64(dtype == "float64"):
        # Few values, so that many are equal.
        x = rng.integers(-3, 4, (61, channels)).astype(np.float64)
        x[rng.random(x.shape) < 0.1] = np.nan
        table = random_table(rng, 61, 300, 27, 0.2)
        table[::7] = -1
        features = jnp.asarray(x, dtype)
        found = extreme_rows(features, jnp.asarray(table), largest=largest)
        np.testing.assert_array_equal(found, expected(x, table, largest))


@pytest.mark.parametrize(("rows", "taps"), [(0, 27), (5, 0), (1, 1), (300, 125)])
def test_sizes(rows, taps, rng):
    x = rng.normal(size=(40, 9)).astype(np.float32)
    table = random_table(rng, 40, rows, taps, 0.5)
    found = extreme_rows(jnp.asarray(x), jnp.asarray(table), largest=True)
    np.testing.assert_array_equal(found, expected(x, table, True))


@pytest.mark.parametrize("row", [-2, 40, 2**31 - 1, -(2**31)])
def test_a_row_out_of_range_is_an_error(row):
    table = jnp.full((300, 27), -1, jnp.int32).at[200, 13].set(row)
    with pytest.raises(Exception, match=f"names input row {row} of 40"):
        jax.block_until_ready(extreme_rows(jnp.zeros((40, 3)), table, largest=True))


def test_the_same_as_on_other_platforms(rng):
    x = jnp.asarray(rng.normal(size=(50, 20)), jnp.float32)
    table = jnp.asarray(random_table(rng, 50, 90, 8, 0.4))
    for largest in (True, False):
        (here,), (there,) = (f(x, table, largest=largest) for f in (_find_natively, _scan_taps))
        np.testing.assert_array_equal(here, there)


def test_under_vmap(rng):
    x = jnp.asarray(rng.normal(size=(3, 50, 20)), jnp.float32)
    table = jnp.asarray(random_table(rng, 50, 90, 8, 0.4))
    mapped = jax.vmap(lambda x: extreme_rows(x, table, largest=True))(x)
    for one, found in zip(x, mapped, strict=True):
        np.testing.assert_array_equal(found, extreme_rows(one, table, largest=True))
