"""Warnings of voxax and JAX fail a test; those of pytest's plugins do not stop it from starting."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PLUGIN = """
import warnings

warnings.warn("at import", DeprecationWarning)

def pytest_configure(config):
    warnings.warn("when configured", UserWarning)
"""
TESTS = """
import warnings

import jax.numpy as jnp
import numpy as np

def test_of_its_own():
    warnings.warn("own", UserWarning)

def test_of_numpy():
    np.mean(np.zeros(0))

def test_of_jax():
    jnp.zeros(3, "float64")

def test_without():
    pass
"""


def test_plugins_may_warn_and_the_library_may_not(tmp_path):
    (tmp_path / "warning_plugin.py").write_text(PLUGIN)
    (tmp_path / "test_warnings.py").write_text(TESTS)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "warning_plugin", "-n", "0", "-q"),
            *("-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"),
            *("--rootdir", str(tmp_path), str(tmp_path / "test_warnings.py")),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^FAILED \S+::(\w+)", result.stdout, re.M)
    assert failed == ["test_of_its_own", "test_of_numpy", "test_of_jax"], result.stdout
    assert "1 passed" in result.stdout, result.stdout
