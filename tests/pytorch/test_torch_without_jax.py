"""The packages of other libraries' names work in a process that has no JAX."""

from pathlib import Path

import pytest

from own_process import run_python

pytestmark = pytest.mark.torch


def test_they_work_without_jax():
    script = Path(__file__).with_name("without_jax.py")
    assert run_python(script, "--hide", timeout=300).count("passed") == 6
