"""GPUs that are not here: which Triton compiles for, for how many threads, and who is refused."""

import dataclasses
import itertools
import stat
import types

import pytest
from benchmarks.gpu.compiled import kernel_of
from benchmarks.gpu.lowered import PRODUCTS, module_of, problem_of
from benchmarks.gpu.sheets import gpu_sheet

import problems
from voxax import _compat
from voxax.kernels import triton_call
from voxax.kernels.implicit_gemm import gpu
from voxax.kernels.triton_call import _TRIED, refusal


@pytest.fixture(autouse=True)
def _forgotten():
    refusal.cache_clear()
    yield
    refusal.cache_clear()


def kernel_for(generation, product="forward", kind="dense"):
    target = "gfx942" if generation.startswith("gfx") else "sm_80"
    problem = problem_of(product, kind, "float16", (64, 64))
    parameters = module_of(problem).space(problem, gpu_sheet(target).info)[0]
    return kernel_of(problem, parameters, target)


@problems.needs_triton
@pytest.mark.parametrize(
    ("generation", "product", "kind"),
    list(itertools.product(_TRIED, PRODUCTS, ("dense", "depthwise"))),
)
def test_each_gpu_is_compiled_for(generation, product, kind):
    kernel = kernel_for(generation, product, kind)
    made = kernel.compiled(generation)
    amd = generation.startswith("gfx")
    # What JAX launches, whatever a warp has.
    threads = kernel.launch.warps * (64 if amd else 32)
    assert made.metadata.num_warps * made.metadata.target.warp_size == threads
    if amd:
        assert f"max_flat_workgroup_size: {threads}" in made.asm["amdgcn"]
    else:
        version = _compat.ptx_version(generation)
        assert f".version {version // 10}.{version % 10}\n" in made.asm["ptx"]
        assert f".reqntid {threads}\n" in made.asm["ptx"]


@problems.needs_triton
def test_another_number_of_threads_is_refused_before_a_launch(monkeypatch):
    import triton

    kernel = kernel_for("gfx1100")
    metadata = types.SimpleNamespace(num_warps=8, warp_size=64, name="kernel")
    made = types.SimpleNamespace(metadata=metadata)
    monkeypatch.setattr(triton, "compile", lambda *_, **__: made)
    with pytest.raises(RuntimeError, match="8 warps of 64 threads, and JAX would launch 64"):
        kernel.compiled("gfx1100")


@pytest.mark.parametrize(("generation", "known"), [("10.3", 87), ("12.1", 87), ("11.0", 88)])
def test_an_assembler_that_is_too_old_is_refused(generation, known, monkeypatch):
    monkeypatch.setattr(_compat, "assembled_ptx", lambda: known)
    assert f"JAX's assembler knows {known / 10}: install" in refusal(generation)
    monkeypatch.setattr(_compat, "assembled_ptx", lambda: 90)
    refusal.cache_clear()
    assert generation == "11.0" or refusal(generation) is None


@pytest.mark.parametrize(
    ("package", "version", "ptx"),
    [("nvidia-cuda-nvcc-cu12", "12.8.93", 87), ("nvidia-cuda-nvcc-cu12", "12.9.86", 88),
     ("nvidia-cuda-nvcc", "13.0.88", 90), ("nvidia-cuda-nvcc", "13.1", 91), (None, "", None)],
)  # fmt: skip
def test_the_version_that_the_assembler_takes(package, version, ptx, monkeypatch):
    def version_of(name):
        if name != package:
            raise _compat.importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(_compat.importlib.metadata, "version", version_of)
    here = package == "nvidia-cuda-nvcc-cu12"
    monkeypatch.setattr(_compat.importlib.util, "find_spec", lambda _: here or None)
    assert _compat.assembled_ptx() == ptx


@pytest.mark.parametrize(
    ("generation", "dtype", "wanted"),
    [("7.5", "float16", False), ("8.0", "float16", True), ("12.1", "bfloat16", True),
     ("gfx942", "float16", False), ("9.0", "float32", False), ("7.5", "float32", False)],
)  # fmt: skip
def test_where_the_rule_takes_triton(generation, dtype, wanted):
    """Before 8.0 Triton multiplies without matrix instructions, and XLA with them."""
    problem = problem_of("forward", dtype=dtype)
    info = dataclasses.replace(gpu_sheet("sm_90").info, generation=generation)
    assert module_of(problem).TRITON.preferred(problem, info) is wanted


@pytest.mark.parametrize(
    ("target", "dtype", "refused"),
    [("sm_75", "float16", True), ("sm_75", "float32", False), ("sm_80", "float16", False),
     ("gfx1100", "float32", True), ("gfx1201", "bfloat16", False), ("gfx942", "float32", False)],
)  # fmt: skip
def test_products_without_matrix_instructions_are_xlas(target, dtype, refused):
    reason = gpu.supports(problem_of("forward", dtype=dtype), gpu_sheet(target).info)
    assert ("without matrix instructions" in (reason or "")) is refused


@problems.needs_triton
def test_an_unknown_gpu_is_tried_in_another_process():
    with pytest.warns(UserWarning, match="does not compile for 99.9: .*run on XLA"):
        reason = refusal("99.9")
    problem = problem_of("forward")
    info = dataclasses.replace(gpu_sheet("sm_90").info, generation="99.9")
    assert module_of(problem).supports(problem, info) == reason


def test_a_crash_of_the_compiler_is_survived(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -ABRT $$\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(triton_call.sys, "executable", str(python))
    with pytest.warns(UserWarning, match="run on XLA"):
        assert "it ended with -6" in refusal("99.8")
