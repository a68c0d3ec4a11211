"""Every GPU kernel lowers for CUDA and for ROCm, where neither is; layers do, with their maps.

What comes out is Triton's language: neither PTX nor a run. On newer JAX the chip is named.
"""

import itertools

import jax
import jax.numpy as jnp
import pytest
from benchmarks.gpu.compile import PRODUCTS, lowered_kernel, problem_of
from benchmarks.gpu.lowered import CHIPS, TRITON, custom_calls, lower, triton_modules
from benchmarks.workloads import random_cube

import problems
import voxax as vx
from samples import make_voxels, slow_unless
from voxax.algorithms.implicit_gemm import gpu
from voxax.nn.functional import spatially_sparse_conv


@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize(
    ("product", "kind"), list(itertools.product(PRODUCTS, ("dense", "depthwise")))
)
def test_a_kernel_lowers(product, kind, platform):
    chip = CHIPS[platform]
    problem = problem_of(product, kind)
    lowered = lowered_kernel(chip, problem, problems.space_of(problem, chip.info)[0])
    ((_, module, warps, stages),) = triton_modules(lowered)
    assert module[:4] == b"ML\xefR"
    assert warps >= 1
    assert stages >= 1


CHANNELS = ((1, 1), (3, 65), (16, 16), (256, 256))


@pytest.mark.slow
@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize("kind", ["dense", "grouped", "depthwise"])
@pytest.mark.parametrize(("product", "number"), [(p, n) for n, p in enumerate(PRODUCTS)])
def test_every_candidate_lowers(product, number, kind, platform):
    """In each dtype, with channels that take turns."""
    chip = CHIPS[platform]
    for turn, dtype in enumerate(gpu.DTYPES):
        channels = CHANNELS[(number + turn) % len(CHANNELS)]
        channels = (4, 6) if kind == "grouped" else channels
        problem = problem_of(product, kind, dtype, channels)
        found = [p for p in problems.space_of(problem, chip.info) if ("body", "triton") in p]
        assert found
        for parameters in found:
            assert triton_modules(lowered_kernel(chip, problem, parameters))


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


@pytest.mark.parametrize(
    ("platform", "dtype", "calls"),
    [("cuda", "bfloat16", 1), ("cuda", "float32", 0), ("rocm", "float16", 0)],
)
def test_half_precision_takes_triton_untuned_on_nvidia(platform, dtype, calls):
    """There it was measured."""
    voxels = make_voxels(random_cube(30), 16, capacity=64)
    voxels = voxels.replace_features(voxels.features.astype(dtype))
    weight = jnp.ones((27, 16, 16), dtype)
    lowered = lower(CHIPS[platform], lambda w, v: spatially_sparse_conv(v, w, 3), weight, voxels)
    assert custom_calls(lowered) == [TRITON] * calls


def test_full_precision_unless_less_is_asked_for():
    """In Triton's language the precision of a product of float32 is an attribute."""
    for precision, exact in (("highest", True), ("high", False), ("default", False)):
        problem = problem_of("forward", dtype="float32", precision=precision)
        assert (gpu.precision_of(problem) is jax.lax.Precision.HIGHEST) == exact


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


def test_unknown_gpus_run_on_xla():
    unknown = vx.hardware.HardwareInfo(platform="gpu", device_kind="unknown")
    problem = problem_of("forward")
    assert "shared memory" in gpu.supports(problem, unknown)
    assert not any(("body", "triton") in p for p in problems.space_of(problem, unknown))
    assert ("body", "triton") in problems.space_of(problem, CHIPS["cuda"].info)[0]


def test_blocks_fit_the_shared_memory_that_the_chip_has():
    for chip, product, dtype in itertools.product(CHIPS.values(), PRODUCTS, gpu.DTYPES):
        problem = problem_of(product, dtype=dtype, channels=(256, 256))
        found = gpu.space(problem, chip.info)
        assert found
        assert all(gpu.shared_bytes(problem, p) <= chip.info.shared_memory_bytes for p in found)
    small = vx.hardware.HardwareInfo(platform="gpu", device_kind="small", shared_memory_bytes=100)
    assert "a block has 100" in gpu.supports(problem_of("forward"), small)
