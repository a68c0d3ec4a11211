"""Settings and fixtures that every test shares."""

import os
from pathlib import Path

# Before JAX is imported anywhere: tests run on CPU unless a platform is asked for, and draw
# pictures without a screen.
os.environ["JAX_PLATFORMS"] = os.environ.get("VOXAX_TEST_PLATFORM", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import numpy as np
import pytest

pytest.register_assert_rewrite("conformance", "oracles")

ROOT = Path(__file__).resolve().parents[1]
DATA_VARIABLE = "VOXAX_TEST_DATA"

if _cache := os.environ.get("VOXAX_TEST_COMPILE_CACHE"):
    jax.config.update("jax_compilation_cache_dir", _cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture(autouse=True)
def _strict_jax(request):
    """Implicit dtype or rank promotion in the library is an error, unless a test relaxes it."""
    if request.node.get_closest_marker("lax_promotion"):
        yield
        return
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed, fresh for each test."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def scans() -> Path:
    """The folder of real scans; skips where there is none."""
    given = os.environ.get(DATA_VARIABLE)
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real scans at {folder}; set {DATA_VARIABLE} to a folder that has them")
    return folder
