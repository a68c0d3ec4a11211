"""The packages of other libraries' names work in a process that has no JAX."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def test_they_work_without_jax():
    script = Path(__file__).with_name("without_jax.py")
    ran = subprocess.run(
        [sys.executable, str(script), "--hide"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("passed") == 6
