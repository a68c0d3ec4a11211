"""Test where ``cutlass_implicit_gemm`` runs and why it refuses; needs no CUTLASS."""

import dataclasses
import importlib.metadata

import pytest
from benchmarks.gpu.lowered import CHIPS, PRODUCTS, problem_of

import problems
from voxax.kernels import lookup
from voxax.kernels.implicit_gemm import gpu_cutlass

(CUTLASS,) = lookup("cutlass_implicit_gemm")
H100 = CHIPS["cuda"].info


@pytest.fixture
def installed(monkeypatch):
    """Pretend that this version of the package is installed; None: none."""

    def pretend(version):
        def found(name):
            if version is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(importlib.metadata, "version", found)

    pretend("4.8.1")
    return pretend


def test_what_it_does_not_run_is_refused_with_the_reason(installed):
    fitting = problem_of("forward")
    for changes, hardware, reason in (
        ({}, CHIPS["rocm"].info, "NVIDIA GPUs only, not on gfx942"),
        ({}, dataclasses.replace(H100, generation="8.6"), "capability 9.0, this GPU has 8.6"),
        ({}, dataclasses.replace(H100, shared_memory_bytes=40_000), "no tile that fits 40000"),
        ({"dtype": "float32"}, H100, "float16 and bfloat16 on tensor cores, got float32"),
        ({"dtype": "float64"}, H100, "got float64"),
        ({"in_channels": 3}, H100, "multiples of 8 channels, as it copies 16 bytes at a time"),
        ({"kind": "grouped", "groups": 12}, H100, "got 4 and 8"),
        ({"platform": "cpu"}, H100, "not on cpu"),
    ):
        problem = problems.changed(fitting, **changes)
        assert reason in CUTLASS.supports(problem, hardware)
    assert CUTLASS.supports(fitting, H100) is None
    assert CUTLASS.supports(fitting, dataclasses.replace(H100, generation="10.0")) is None


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "which is not installed: install it with pip install 'nvidia-cutlass-dsl>=4.8'"),
        ("4.7.0", "needs nvidia-cutlass-dsl 4.8, 4.7.0 is installed"),
        ("4.8.0.dev0", None),
        ("4.10.1", None),
        ("5.0", None),
    ],
)
def test_its_package_is_asked_for(version, reason, installed):
    installed(version)
    given = CUTLASS.supports(problem_of("forward"), H100)
    assert given is None if reason is None else reason in given


def test_every_tile_and_slice_is_a_candidate(installed):
    for product in PRODUCTS:
        space = CUTLASS.space(problem_of(product), H100)
        assert {dict(p)["mma_tile"] for p in space} == {0, 1, 2, 3}
        assert {dict(p)["split_k_slices"] for p in space} == {1, 2, 4, 8}


def test_few_rows_are_cut_into_slices():
    """Check the default without measurements, with fewer tiles than cores."""
    few = problem_of("forward")
    many = problems.changed(few, out_capacity=10**6)
    assert dict(CUTLASS.heuristic(few, H100))["split_k_slices"] == 8
    assert dict(CUTLASS.heuristic(many, H100))["split_k_slices"] == 1


def test_tiles_are_what_threads_can_copy():
    """All threads of a block copy a whole number of pieces, of both operands."""
    for product in PRODUCTS:
        for channels in ((8, 8), (32, 256), (256, 32)):
            problem = problem_of(product, channels=channels)
            for parameters in CUTLASS.space(problem, H100):
                shape = gpu_cutlass.shape_of(problem, parameters)
                threads = 32 * shape["warps"][0] * shape["warps"][1]
                for side in (shape["rows"], shape["columns"]):
                    assert side * shape["depth"] % (8 * threads) == 0
                assert gpu_cutlass.shared_bytes(problem, parameters) <= 232_448
