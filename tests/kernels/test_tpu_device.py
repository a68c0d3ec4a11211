"""Compare results of a TPU with the interpreter on the host, and with explicit_gemm.

    VOXAX_TEST_PLATFORM=tpu,cpu pytest -n 0 -m tpu_device

Nothing here has run on a TPU yet.
"""

import functools

import jax
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import problems
import voxax as vx
from oracle import relative_error
from samples import make_voxels
from voxax.hardware import HardwareInfo, describe
from voxax.kernels.explicit_gemm import xla

# The chip adds in another order than the host, in float32 too.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
RELATIONS = {
    "submanifold": {"kernel_size": 3},
    "strided": {"kernel_size": 2, "stride": 2},
    "wide": {"kernel_size": 5, "dilation": 2},
}
CASES = [
    (relation, product, kind, dtype, channels)
    for relation, channels in (("submanifold", 64), ("strided", 5), ("wide", 130))
    for product in ("forward", "dgrad", "wgrad")
    for kind in ("dense", "depthwise")
    for dtype in ("float32", "bfloat16")
]


@functools.cache
def made(relation, device):
    with jax.default_device(device):
        return vx.kernel_map(make_voxels(random_cube(3000), capacity=2048), **RELATIONS[relation])


def run_on(device, kernel, parameters, problem, operands, kmap):
    """The product there, in float32."""
    views = problems.views_of(kmap, kernel, problem, parameters)
    views = {name: np.asarray(view) for name, view in views.items()}
    arguments = jax.device_put((*operands, views), device)
    apply = functools.partial(kernel.apply, problem, parameters)
    return np.asarray(jax.jit(apply)(*arguments), np.float32)


def compare(device, host, windows, relation, product, kind, dtype, channels):
    """``windows``: ``problem`` to the parameters that the device runs."""
    kmap = made(relation, host)
    problem = problems.of_map(product, kmap, (channels, channels), dtype, "tpu", kind)
    operands = tuple(map(np.asarray, problems.operands_of(problem, kmap)))
    parameters = windows(problem)
    assert dict(parameters)["body"] == "windows"
    interpreted = tuple(sorted({**dict(parameters), "interpret": 1}.items()))
    kernel = problems.kernel_of(problem, parameters)
    actual = run_on(device, kernel, parameters, problem, operands, kmap)
    again = run_on(device, kernel, parameters, problem, operands, kmap)
    np.testing.assert_array_equal(actual, again)
    on_host = run_on(host, kernel, interpreted, problem, operands, kmap)
    expected = run_on(host, xla.EXPLICIT_GEMM, xla.IM2COL, problem, operands, kmap)
    assert relative_error(on_host, expected) < TOLERANCE[dtype]
    assert relative_error(actual, on_host) < TOLERANCE[dtype]


@pytest.mark.tpu_device
@pytest.mark.parametrize(("relation", "product", "kind", "dtype", "channels"), CASES)
def test_the_device_agrees_with_the_interpreter(relation, product, kind, dtype, channels):
    if jax.default_backend() != "tpu":
        pytest.skip(f"no TPU: JAX runs on {jax.default_backend()}")
    device, (host, *_) = jax.devices()[0], jax.devices("cpu")
    facts = describe(device)

    def first(problem):
        return problems.space_of(problem, facts)[0]

    compare(device, host, first, relation, product, kind, dtype, channels)


def test_the_comparison_itself_runs(monkeypatch):
    """Run the comparison with the host in place of the device, on a small map."""
    host = jax.devices("cpu")[0]
    monkeypatch.setitem(RELATIONS, "strided", {"kernel_size": 1})
    chip = HardwareInfo(
        platform="tpu", device_kind="some", vmem_bytes=2**27, smem_bytes=2**20, cores=1
    )

    def interpreted(problem):
        return tuple(sorted((*problems.space_of(problem, chip)[0], ("interpret", 1))))

    compare(host, host, interpreted, "strided", "forward", "dense", "bfloat16", 5)
    made.cache_clear()
