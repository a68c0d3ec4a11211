"""`voxax bench --tpu`: what it asks for and refuses, and a small model through the compiler."""

import json

import pytest

from voxax import _compat
from voxax.cli import main
from voxax.cli.bench import passes_of
from voxax.predict import CompiledKernel

MODEL = """\
import jax.numpy as jnp
from voxax.nn.functional import spatially_sparse_conv

def small(voxels):
    return spatially_sparse_conv(voxels, jnp.ones((27, 4, 8), jnp.float32), 3)
"""


@pytest.mark.parametrize("options", [[], ["--tpu", ","]])
def test_needs_generations(options, capsys):
    assert main(["bench", *options]) == 2
    assert "--tpu is missing: give generations, such as v4,v5e" in capsys.readouterr().err


def test_without_libtpu_names_the_extra(monkeypatch, capsys):
    monkeypatch.setattr(_compat, "has_libtpu", lambda: False)
    assert main(["bench", "--tpu", "v5e"]) == 2
    assert 'pip install "voxax[tpu]"' in capsys.readouterr().err


def test_unknown_generations_and_files(monkeypatch, capsys):
    monkeypatch.setattr(_compat, "has_libtpu", lambda: True)
    assert main(["bench", "--tpu", "v5e,v9"]) == 2
    assert "TPU 'v9' is unknown: give v4, v5e" in capsys.readouterr().err
    assert main(["bench", "--tpu", "v5e", "--model", "none.py:small"]) == 2
    assert "there is no file none.py" in capsys.readouterr().err


@pytest.mark.parametrize(("scalars", "steps"), [((3,), 10), ((2,), 20), ((1,), 20)])
def test_a_window_kernel_visits_each_tile_once_in_one_of_its_stripes(scalars, steps):
    visits = [(), (40,), (20,), (180,), (180,), scalars]
    operands = [("s32", shape) for shape in [*visits, (32, 20 * 128)]]
    kernel = CompiledKernel(
        "run", "tpu_custom_call", "", 1, False, 0, (*operands, ("bf16", (2688, 64))), None
    )
    assert passes_of(kernel) == steps


@pytest.mark.tpu_compile
@pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed")
def test_a_model_of_a_file(tmp_path, capsys):
    pytest.importorskip("tyro")
    pytest.importorskip("flax")
    (tmp_path / "mine.py").write_text(MODEL)
    asked = ["--model", f"{tmp_path / 'mine.py'}:small", "--workload", "surface"]
    pinned = ["--algorithm", "implicit_gemm"]
    assert main(["bench", "--tpu", "v5e", *asked, *pinned, "--json"]) == 0
    (program,) = json.loads(capsys.readouterr().out)["predicted"]
    assert program["chip"]["name"] == "v5e"
    assert program["times_lower_bound"] > 1
    assert program["seconds"] >= max(kernel["seconds"] for kernel in program["kernels"])
    assert {kernel["bound"] for kernel in program["kernels"]} & {"bytes", "latency", "issue slots"}
