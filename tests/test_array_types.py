"""Annotations of arrays: readable without jaxtyping, and true where jaxtyping checks them."""

import inspect
import os
import subprocess
import sys

import pytest

import public_calls
import voxax.nn.modules

# Before voxax is imported: its annotations then mean jaxtyping's types.
SCRIPT = """
import sys, jaxtyping
sys.modules["voxax._array_types"] = jaxtyping
import checked_types
checked_types.check_{}()
"""


@pytest.mark.parametrize("check", ["functions", "refusals", "results", "transformations"])
def test_annotations_hold(check):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(check)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "VOXAX_AUTOTUNE": "off",
        },
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_annotations_resolve():
    """Tools of users, which read annotations without jaxtyping, know every name in them."""
    functions = [
        getattr(module, name)
        for module in public_calls.MODULES.values()
        for name in public_calls.functions(module)
    ]
    calls = [
        module.__call__
        for _, module in inspect.getmembers(voxax.nn.modules)
        if inspect.isclass(module) and "__call__" in vars(module)
    ]
    assert len(functions) > 80
    assert len(calls) > 30
    for function in functions + calls:
        inspect.get_annotations(inspect.unwrap(function), eval_str=True)
