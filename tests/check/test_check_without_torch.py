"""PyTorch is imported by its users alone: checking a JAX function never does."""

import subprocess
import sys

SCRIPT = """
import sys

sys.path.insert(0, sys.argv[1])  # with a torch that must not be imported
import jax.numpy as jnp

import voxax as vx
import voxax.interop
import voxax.nn
from voxax.cli import main

import case

report = vx.check_static(case.model, jnp.ones(3), verify=True)
assert report.framework == "jax"
assert report.findings[0].suggestion
assert main(["check", f"{case.__file__}:model", "--inputs", "f32[3]"]) == 1
assert not [name for name in sys.modules if name.partition(".")[0] == "torch"]
try:
    import torch
except AssertionError:
    print("refused")
"""


def test_check_of_jax_imports_no_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise AssertionError('torch is imported')\n")
    (tmp_path / "case.py").write_text(
        "def model(x):\n    if x.sum() > 0:\n        x = x * 2\n    return x\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("refused\n")
