"""The Triton kernels as machine code for GPUs that are not here: what they need.

Only counts are checked: copies ahead, spills, memory. Nothing runs.
"""

import itertools
import json
from pathlib import Path

import pytest
from benchmarks.gpu.compiled import kernel_of, resources
from benchmarks.gpu.lowered import PRODUCTS, module_of, problem_of
from benchmarks.gpu.resources import tile_of
from benchmarks.gpu.sheets import gpu_sheet, known_gpus

import problems
from voxax.kernels.implicit_gemm import gpu

ROWS = 98_304
TABLE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "gpu_resources.json"


def check(problem, parameters, target):
    """No spill, 16 bytes a copy, two steps under way, and memory as counted."""
    sheet, found = gpu_sheet(target), resources(kernel_of(problem, parameters, target), target)
    assert found.spilled == 0
    # AMD's warps are too large for 16 bytes a thread of 16 channels; float32 it copies by 4 bytes
    # where it transposes.
    narrow = problem.in_channels < 64 or problem.dtype == "float32"
    # The first GPU that copies without waiting is an A100.
    ahead = target != "sm_75"
    assert found.wide > 0 or (target.startswith("gfx") and narrow) or not ahead
    assert found.shared_bytes <= sheet.info.shared_memory_bytes
    assert found.programs_per_core >= 1
    if problem.layer.kind != "depthwise":
        assert found.shared_bytes <= gpu.shared_bytes(problem, parameters)
        assert found.products
    # On AMD's GPUs loads of loops without a product go into registers, ahead as well.
    if ahead and (problem.layer.kind != "depthwise" or target.startswith("sm")):
        assert found.buffers >= 2


def make(product, kind, dtype, channels):
    problem = problem_of(product, kind, dtype, (channels, channels))
    return problems.changed(problem, in_capacity=ROWS, out_capacity=ROWS)


@problems.needs_triton
@pytest.mark.parametrize(
    ("kind", "product", "target"),
    list(itertools.product(("dense", "depthwise"), PRODUCTS, known_gpus())),
)
def test_the_default_of_large_maps(product, kind, target):
    problem = supported(make(product, kind, "float16", 64), target)
    check(problem, module_of(problem).space(problem, gpu_sheet(target).info)[0], target)


def supported(problem, target):
    reason = module_of(problem).supports(problem, gpu_sheet(target).info)
    if reason is not None:
        assert "without matrix instructions" in reason
        pytest.skip(reason)
    return problem


AMD = {"gfx90a": 2, "gfx942": 2, "gfx950": 1}


@problems.needs_triton
@pytest.mark.parametrize("target", [target for target in known_gpus() if target.startswith("gfx")])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_options_for_matrix_cores_of_amd(dtype, product, target):
    """Candidates that differ in them alone: other instructions, and as many programs a core."""
    problem = supported(make(product, "dense", dtype, 64), target)
    found = gpu.space(problem, gpu_sheet(target).info)
    others = [p for p in found if {"kpack", "matrix_instr_nonkdim"} & set(dict(p))]
    assert len(others) == AMD.get(target, 0)
    first = kernel_of(problem, found[0], target)
    for parameters in others:
        check(problem, parameters, target)
        other = kernel_of(problem, parameters, target)
        texts = [
            k.compiled(gpu_sheet(target).info.generation).asm["amdgcn"] for k in (first, other)
        ]
        assert texts[0] != texts[1], "the option reaches the compiler"
        programs = [resources(k, target).programs_per_core for k in (first, other)]
        assert programs[0] == programs[1]


@problems.needs_triton
def test_nvidia_has_no_options_of_amd():
    found = gpu.space(make("forward", "dense", "float16", 64), gpu_sheet("sm_90").info)
    assert not {"kpack", "matrix_instr_nonkdim"} & set().union(*map(dict, found))


CASES = (
    ("dense", "float16", 16),
    ("dense", "bfloat16", 64),
    ("dense", "float32", 64),
    ("grouped", "float16", 64),
    ("dense", "float16", 256),
    ("depthwise", "float32", 64),
)


def test_the_table_says_so_too():
    rows = json.loads(TABLE.read_text())["rows"]
    assert {row["target"] for row in rows} == set(known_gpus())
    for row in rows:
        dense = row["case"].startswith("dense")
        assert row["spilled"] == 0, row
        assert row["shared_bytes"] <= gpu_sheet(row["target"]).info.shared_memory_bytes, row
        assert row["programs_per_core"] >= 1, row
        if row["target"] != "sm_75":
            assert row["buffers"] >= 2 or not (dense or row["target"].startswith("sm")), row


@problems.needs_triton
def test_the_table_has_the_first_candidates():
    """What each GPU gets without a measurement."""
    for row in json.loads(TABLE.read_text())["rows"]:
        kind, dtype, channels = row["case"].split()
        problem = make(row["product"], kind, dtype, int(channels[1:]))
        info = gpu_sheet(row["target"]).info
        assert row["tile"] == tile_of(dict(module_of(problem).space(problem, info)[0])), row


@problems.needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("target", known_gpus())
@pytest.mark.parametrize(("kind", "dtype", "channels"), CASES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_every_candidate(product, kind, dtype, channels, target):
    """With the first number of parts: the others are the same loop."""
    problem = supported(make(product, kind, dtype, channels), target)
    found = module_of(problem).space(problem, gpu_sheet(target).info)
    parts = dict(found[0]).get("split_k_factor", 1)
    for parameters in found:
        if dict(parameters).get("split_k_factor", 1) == parts:
            check(problem, parameters, target)
