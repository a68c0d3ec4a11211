"""Check what the guard admits and what it refuses, with its reason."""

import jax.numpy as jnp
import numpy as np
import pytest

from voxax.tuning.measure import objection

DTYPES = ("float64", "float32", "float16", "bfloat16")


def sums(shape=(200, 8), terms=500):
    """``(one order, another order)`` of summing the same float32 products."""
    rng = np.random.default_rng(0)
    products = rng.normal(size=(terms, *shape)).astype(np.float32)
    one = np.zeros(shape, np.float32)
    for product in products:
        one += product
    return one, products[::-1].sum(0)


def values(shape=(200, 8), dtype="float32"):
    made = np.random.default_rng(0).normal(size=shape)
    return made.astype(np.dtype(jnp.dtype(dtype)))


def test_another_order_of_additions_passes():
    one, other = sums()
    assert not np.array_equal(one, other)
    assert objection(other, one, "float32", "highest") is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_and_its_rounding_pass(dtype):
    reference = values(dtype=dtype)
    assert objection(reference, reference, dtype, "highest") is None
    wide = reference.astype(np.float64)
    step = float(jnp.finfo(dtype).eps) * np.random.default_rng(1).uniform(-1, 1, wide.shape)
    rounded = (wide * (1 + step)).astype(reference.dtype)
    assert objection(rounded, reference, dtype, "highest") is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_element_is_an_objection(dtype):
    """One in 1600: the mean alone would not see it."""
    reference = values(dtype=dtype)
    wrong = reference.copy()
    wrong[17, 3] += np.asarray(0.5, wrong.dtype)
    reason = objection(wrong, reference, dtype, "highest")
    assert "differs from explicit_gemm" in reason
    assert "at worst" in reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_small_error_everywhere_is_an_objection(dtype):
    """Every element well below what the worst one may have: a term of the sum is missing."""
    reference = values(dtype=dtype).astype(np.float64)
    worst = {"float64": 3e-11, "float32": 3e-4, "float16": 1e-2, "bfloat16": 5e-2}[dtype]
    wrong = reference + worst * np.sign(reference)
    kind = np.dtype(jnp.dtype(dtype))
    if dtype == "bfloat16":  # its own rounding is of that size: compare unrounded
        kind = np.float64
    assert "differs" in objection(wrong.astype(kind), reference.astype(kind), dtype, "highest")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_an_objection(value):
    reference = values()
    wrong = reference.copy()
    wrong[0, 0] = value
    assert objection(wrong, reference, "float32", "highest") == "1 of 1600 values are not finite"
    assert "explicit_gemm itself" in objection(reference, wrong, "float32", "highest")
    assert "explicit_gemm itself" in objection(wrong, wrong, "float32", "highest")


def test_zeros_only_are_an_objection():
    reference = values()
    zeros = np.zeros_like(reference)
    assert objection(zeros, reference, "float32", "highest") == "returned zeros only"


def test_a_reference_of_zeros_admits_zeros_only():
    """A map without pairs: its error relative to the reference would be 0 / 0."""
    zeros = np.zeros((5, 2), np.float32)
    assert objection(zeros, zeros, "float32", "highest") is None
    assert objection(-zeros, zeros, "float32", "highest") is None
    wrong = zeros.copy()
    wrong[4, 1] = 1e-30
    assert "where explicit_gemm returns zeros" in objection(wrong, zeros, "float32", "highest")
    wrong[4, 1] = np.nan
    assert "not finite" in objection(wrong, zeros, "float32", "highest")


def test_rows_of_zeros_are_an_objection():
    """A tile that was never written."""
    reference = values()
    wrong = reference.copy()
    wrong[-4:] = 0
    assert "differs" in objection(wrong, reference, "float32", "highest")


def test_shape_and_dtype_must_be_the_references():
    reference = values()
    assert "returned shape (200, 7)" in objection(reference[:, :7], reference, "float32", "highest")
    assert "returned shape (8, 200)" in objection(reference.T, reference, "float32", "highest")
    assert "expected (1, 2)" in objection(
        np.ones((), np.float32), np.ones((1, 2), np.float32), "float32", "highest"
    )
    wide = reference.astype(np.float64)
    assert "returned float64, expected float32" in objection(wide, reference, "float32", "highest")


def test_nothing_is_as_good_as_nothing():
    nothing = np.zeros((0, 4), np.float32)
    assert objection(nothing, nothing, "float32", "highest") is None


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_integers_are_exact(dtype):
    reference = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
    assert objection(reference, reference, dtype, "highest") is None
    assert objection(np.zeros_like(reference), np.zeros_like(reference), dtype, "highest") is None
    wrong = reference.copy()
    wrong[0, 0] += 1
    wrong[2, 1] -= 1
    assert objection(wrong, reference, dtype, "highest") == "2 of 12 integers differ"


@pytest.mark.parametrize("precision", ["default", "high", "tensorfloat32", "bfloat16"])
def test_reduced_precision_has_the_tolerance_of_its_products(precision):
    """Check that a loss of ten-bit factors passes only if the caller asked for it."""
    reference = values()
    rounded = reference * (1 + 2**-9 * np.random.default_rng(1).uniform(-1, 1, (200, 8)))
    rounded = rounded.astype(np.float32)
    assert objection(rounded, reference, "float32", precision) is None
    for full in ("highest", "float32"):
        assert "differs" in objection(rounded, reference, "float32", full)
    wrong = reference.copy()
    wrong[17, 3] += 0.5
    assert "differs" in objection(wrong, reference, "float32", precision)


def test_the_scale_of_the_values_does_not_matter():
    one, other = sums()
    for factor in (np.float32(1e-20), np.float32(1e20)):
        assert objection(other * factor, one * factor, "float32", "highest") is None
        wrong = one * factor
        wrong[3, 3] = -wrong[3, 3]
        assert "differs" in objection(wrong, one * factor, "float32", "highest")


def test_reasons_name_the_reference():
    reference = values()
    zeros = np.zeros_like(reference)
    for got, want in (
        (2 * reference, reference),
        (reference, zeros),
        (zeros, np.full_like(reference, np.nan)),
    ):
        reason = objection(got, want, "float32", "highest", "masked")
        assert "masked" in reason
        assert "explicit_gemm" not in reason
