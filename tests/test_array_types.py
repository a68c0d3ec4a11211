"""Shapes in annotations hold: beartype checks them while public functions run."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("check", ["check_functions", "check_refusals", "check_transformations"])
def test_annotations_hold(check):
    result = subprocess.run(
        [sys.executable, "-c", f"import checked_types\nchecked_types.{check}()"],
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
