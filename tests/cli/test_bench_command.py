"""`voxax bench --tpu`: what it asks for and refuses, and a small model through the compiler."""

import json

import numpy as np
import pytest
from benchmarks.tpu.program import BY_CHIP, compile_product, facts, make_problem

import problems
from voxax import _compat
from voxax.cli import main
from voxax.cli.bench import passes_of
from voxax.kernels.depthwise import tpu as depthwise_tpu
from voxax.kernels.implicit_gemm import tpu
from voxax.kernels.implicit_gemm.windows import WINDOW_TILE, columns_of
from voxax.predict import CompiledKernel
from voxax.predict.candidates import steps
from voxax.predict.hlo import operations

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


@pytest.mark.parametrize(("stripes", "steps"), [(2, 10), (1, 20)])
def test_a_window_kernel_visits_each_group_of_tiles_once_in_one_of_its_stripes(stripes, steps):
    """Of four tiles; features are words, which are integers as the table is."""
    visits = [(), (40,), (20,), (720,), (720,), (stripes + 1,)]
    operands = [("s32", shape) for shape in [*visits, (27, 80 * 128), (32, 160 * 128 + 128)]]

    def kernel(operands):
        return CompiledKernel("run", "tpu_custom_call", "", 1, False, 0, tuple(operands), None)

    assert passes_of(kernel([*operands, ("bf16", (64, 1728))])) == steps
    assert passes_of(kernel(operands[2:])) is None


@pytest.mark.tpu_compile
@pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed")
@pytest.mark.parametrize("kind", ["dense", "depthwise"])
@pytest.mark.parametrize("chip", ["v5e", "v5p"])
def test_the_steps_of_compiled_kernels_are_found(kind, chip):
    rows = 2_000
    problem = problems.changed(make_problem("forward", "bfloat16", rows=rows), kind=kind)
    module = {"dense": tpu, "depthwise": depthwise_tpu}[kind]
    parameters = module.space(problem, facts(BY_CHIP[chip]))[0]
    columns = columns_of(problem.layer.spec, problem.layer.num_offsets)
    once = np.ones((2, -(-rows // WINDOW_TILE), len(columns)), np.int32)
    text = compile_product(BY_CHIP[chip], problem, parameters).as_text()
    kernels = [CompiledKernel(**vars(item), listing=None) for item in operations(text)]
    (found,) = [kernel for kernel in kernels if kernel.is_pallas]
    assert passes_of(found) == pytest.approx(steps(problem, parameters, once), abs=0.5)


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
