"""Dynamic operators: exact, in one program, differentiable twice, compiled for every platform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamic_cases import CASES, cast, slopes, smooth, widened
from oracle.derivatives import check_derivatives
from samples import slow_unless
from voxax.nn.dynamic import neighbor_conv

# One of each family by default.
FAST = ("deform_v2", "local", "blur", "selective", "mixture_of_gated", "kernel_point_deformable")
HALF = ("deform_v2", "local", "pixel_adaptive", "blur", "selective", "mixture_of_gated")
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 0.05}
# What another case differentiates as well, with more that varies.
CONTAINED = {
    *("dynamic_masked", "dynamic_grouped", "dynamic_tiled", "dynamic_selected"),
    *("continuous_1d", "continuous_identity", "kernel_point", "blur_normalized", "mixture"),
}


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch, request):
    """Return neighbors of queries among points, the last one with padding."""
    monkeypatch.setattr(neighbor_conv, "_BLOCK", 1000)
    if request.getfixturevalue("name") == "dynamic_specialized":
        request.getfixturevalue("portable")  # refused beside the native kernels


def draws(name, number=2):
    return [CASES[name](np.random.default_rng(seed)) for seed in range(number)]


def check(name, dtype):
    """Two sets of everything through one program; tolerances are of the largest value."""
    (first, run, want), (second, *_) = draws(name)
    program = jax.jit(run)
    for values in (first, second):
        held = cast(values, dtype)
        y = program(held)
        assert y.dtype == dtype
        expected = want(widened(held))
        scale = 1 if dtype == "float64" else max(1, np.abs(expected).max())
        atol = TOLERANCE[dtype] * scale
        np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=0, atol=atol)
    assert program._cache_size() == 1


@pytest.mark.parametrize("name", [slow_unless(n in FAST, n) for n in CASES])
def test_exact_in_one_program(name):
    with jax.enable_x64(True):
        check(name, "float64")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_exact_in_float32(name):
    check(name, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("name", HALF)
def test_half_precision(name):
    """Sums of up to a hundred products of normal numbers: a few units of the dtype's rounding."""
    check(name, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in CONTAINED])
def test_derivatives(name):
    """Check derivatives of every float array to order two; one program for all values."""
    (first, run, _), (second, *_) = draws(name)
    with jax.enable_x64(True):
        rng = np.random.default_rng(2)
        check_derivatives(run, smooth(name, first), rng, others=[smooth(name, second)])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_lowers(name):
    """Lower for accelerators that are not present, with traced sizes if there are any."""
    values, run, _ = draws(name, 1)[0]
    traced = jax.jit(slopes(run)).trace(cast(values, jnp.float32))
    # TPUs refuse it.
    platforms = ("cuda",) if name == "dynamic_specialized" else ("tpu", "cuda")
    for platform in platforms:
        assert traced.lower(lowering_platforms=(platform,)).as_text()
