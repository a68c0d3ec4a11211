"""The Triton kernels as machine code for five GPUs, none of which is here: what they need.

Only counts are checked: copies ahead, spills, memory. Nothing runs.
"""

import itertools
import json
from pathlib import Path

import pytest
from benchmarks.gpu.compiled import kernel_of, resources
from benchmarks.gpu.lowered import PRODUCTS, module_of, problem_of

import problems
from voxax.hardware import gpu_sheet, known_gpus
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
    assert found.wide > 0 or (target.startswith("gfx") and narrow)
    assert found.shared_bytes <= sheet.info.shared_memory_bytes
    assert found.programs_per_core >= 1
    if problem.layer.kind != "depthwise":
        assert found.shared_bytes <= gpu.shared_bytes(problem, parameters)
        assert found.products
    # On AMD's GPUs loads of loops without a product go into registers, ahead as well.
    if problem.layer.kind != "depthwise" or target.startswith("sm"):
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
    problem = make(product, kind, "float16", 64)
    check(problem, module_of(problem).space(problem, gpu_sheet(target).info)[0], target)


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
        assert row["buffers"] >= 2 or not (dense or row["target"].startswith("sm")), row


@problems.needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("target", known_gpus())
@pytest.mark.parametrize(("kind", "dtype", "channels"), CASES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_every_candidate(product, kind, dtype, channels, target):
    """With the first number of parts: the others are the same loop."""
    problem = make(product, kind, dtype, channels)
    found = module_of(problem).space(problem, gpu_sheet(target).info)
    parts = dict(found[0]).get("split_k_factor", 1)
    for parameters in found:
        if dict(parameters).get("split_k_factor", 1) == parts:
            check(problem, parameters, target)
