"""Every GPU kernel lowers for CUDA and for ROCm, where neither is; layers do, with their maps.

What comes out holds machine code for the chip. Nothing runs.
"""

import itertools

import jax
import jax.numpy as jnp
import pytest
from benchmarks.gpu.lowered import (
    CHIPS,
    PRODUCTS,
    TRITON,
    as_if_here,
    custom_calls,
    lower,
    lowered_kernel,
    problem_of,
)
from benchmarks.gpu.sheets import gpu_sheet
from benchmarks.workloads import random_cube

import problems
import voxax as vx
from samples import make_voxels, slow_unless
from voxax.kernels import triton_call
from voxax.kernels.implicit_gemm import gpu
from voxax.nn.functional import spatially_sparse_conv


@problems.needs_triton
@pytest.mark.parametrize(
    ("platform", "product", "kind"),
    [
        slow_unless(platform == "cuda" and product == "wgrad", platform, product, kind)
        for platform, product, kind in itertools.product(CHIPS, PRODUCTS, ("dense", "depthwise"))
    ],
)
def test_a_kernel_lowers(product, kind, platform):
    chip = CHIPS[platform]
    problem = problem_of(product, kind)
    lowered = lowered_kernel(chip, problem, problems.space_of(problem, chip.info)[0])
    assert custom_calls(lowered) == [TRITON]


@problems.needs_triton
@pytest.mark.parametrize("platform", [slow_unless(name == "cuda", name) for name in CHIPS])
def test_a_layer_lowers_with_its_map(platform):
    """Strided and back, forward and backward, maps built inside: no call leaves the device."""
    voxels = make_voxels(random_cube(40), 3, capacity=48)
    weight = jnp.ones((27, 3, 3))

    def loss(w, v):
        pins = {"fwd_algo": "implicit_gemm", "bwd_algo": "implicit_gemm"}
        down = spatially_sparse_conv(v, w, 3, 2, **pins)
        up = spatially_sparse_conv(down, w, 3, 2, transposed=True, out_voxels=v, **pins)
        return up.features.sum()

    lowered = lower(CHIPS[platform], jax.value_and_grad(loss), weight, voxels)
    calls = custom_calls(lowered)
    assert calls.count(TRITON) == 5, "two forward, two wgrad, one dgrad"
    assert set(calls) == {TRITON}
    # Each pass of a loop starts its kernels anew: on an H100 a map took 2.6 ms with one.
    assert "stablehlo.while" not in lowered.as_text()


@problems.needs_triton
@pytest.mark.parametrize("pin", [None, "implicit_gemm"])
def test_triton_runs_unchecked_only_where_it_is_pinned(pin):
    """No device has run these kernels; without one nothing is compared."""
    voxels = make_voxels(random_cube(30), 16, capacity=64)
    voxels = voxels.replace_features(voxels.features.astype("bfloat16"))
    weight = jnp.ones((27, 16, 16), "bfloat16")

    def layer(w, v):
        return spatially_sparse_conv(v, w, 3, fwd_algo=pin)

    lowered = lower(CHIPS["cuda"], layer, weight, voxels)
    assert custom_calls(lowered) == [TRITON] * (pin is not None)


@problems.needs_triton
def test_an_exported_program_runs_on_xla():
    """JAX refuses to export calls that it does not promise to keep."""
    voxels = make_voxels(random_cube(30), 16, capacity=64)
    weight = jnp.ones((27, 16, 16))

    def layer(w, v):
        return spatially_sparse_conv(v, w, 3, fwd_algo="implicit_gemm").features

    with as_if_here(CHIPS["cuda"]):
        exported = jax.export.export(jax.jit(layer), platforms=["cuda"])(weight, voxels)
    assert TRITON not in exported.mlir_module()


def test_full_precision_unless_less_is_asked_for():
    for precision, name in (("highest", "ieee"), ("high", "tf32"), ("default", "tf32")):
        problem = problem_of("forward", dtype="float32", precision=precision)
        assert gpu.precision_of(problem, CHIPS["cuda"].info) == name
        assert gpu.precision_of(problem, CHIPS["rocm"].info) == "ieee"
    problem = problem_of("forward", dtype="float32", precision="TF32_TF32_F32_X3")
    chips = {"sm_75": "ieee", "sm_80": "tf32x3", "sm_90": "tf32x3", "gfx942": "ieee"}
    for target, name in chips.items():
        assert gpu.precision_of(problem, gpu_sheet(target).info) == name


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float64"}, "got float64"),
        ({"dtype": "int8"}, "got int8"),
        ({"kind": "depthwise"}, "not depthwise"),
    ],
)
def test_refusals_say_why(changes, reason):
    assert reason in gpu.supports(problem_of("forward", **changes), CHIPS["cuda"].info)


def test_without_the_packages_the_reason_is_named(monkeypatch):
    """Check that products in XLA stay."""
    monkeypatch.setattr(triton_call._compat, "missing_for_triton", lambda: "the package triton")
    problem, info = problem_of("forward"), CHIPS["cuda"].info
    assert gpu.supports(problem, info) == "the Triton kernels need the package triton"
    assert gpu.space(problem, info)
    assert not any(("body", "triton") in p for p in problems.space_of(problem, info))


def test_unknown_gpus_run_on_xla():
    unknown = vx.hardware.HardwareInfo(platform="gpu", device_kind="unknown")
    problem = problem_of("forward")
    assert "shared memory" in gpu.supports(problem, unknown)
    assert not any(("body", "triton") in p for p in problems.space_of(problem, unknown))
    assert ("body", "triton") in gpu.space(problem, CHIPS["cuda"].info)[0]


def test_blocks_fit_the_shared_memory_that_the_chip_has():
    """Many need more by the most that Triton takes: those are compiled."""
    for chip, product, dtype in itertools.product(CHIPS.values(), PRODUCTS, gpu.DTYPES):
        problem = problem_of(product, dtype=dtype, channels=(256, 256))
        limit = chip.info.shared_memory_bytes
        found = gpu.space(problem, chip.info)
        assert found
        for parameters in found:
            if gpu.shared_bytes(problem, parameters) > limit:
                kernel = gpu.compilation_of(problem, parameters, chip.info)
                assert kernel.compiled(chip.info.generation).metadata.shared <= limit
    many = problem_of("forward", channels=(128, 128)).with_layer(out_capacity=98_304)
    first = dict(gpu.space(many, CHIPS["rocm"].info)[0])
    assert first["out_block"] == (64 if triton_call.absence() else 128)
    small = vx.hardware.HardwareInfo("gpu", "small", generation="9.0", shared_memory_bytes=100)
    assert "a block has 100" in gpu.supports(problem_of("forward"), small)
