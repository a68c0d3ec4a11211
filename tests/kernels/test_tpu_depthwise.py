"""The TPU's depthwise kernels in interpret mode, where tiles, windows and blocks are many.

Small maps are in ``test_every_form.py`` and the conformance suite, under the form ``windows_128``.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import problems
import voxax as vx
from oracle import relative_error
from samples import make_voxels, slow_unless
from voxax.hardware import HardwareInfo
from voxax.kernels.depthwise import tpu
from voxax.kernels.explicit_gemm import xla

CHIP = HardwareInfo(platform="tpu", device_kind="some", vmem_bytes=2**27, smem_bytes=2**20, cores=1)
TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-2}
PRODUCTS = ("forward", "dgrad", "wgrad")
problem_of = functools.partial(problems.of_map, platform="tpu", kind="depthwise")


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(
    ("options", "dtype", "window", "block", "channels"),
    [
        slow_unless(fast, options, dtype, window, block, channels)
        for fast, options, dtype, window, block, channels in (
            (True, {"kernel_size": (1, 3, 3)}, "bfloat16", 256, 16, 5),
            (False, {"kernel_size": 3}, "bfloat16", 256, 16, 5),
            # Windows too short for any tile, and two blocks of channels.
            (False, {"kernel_size": 2, "stride": 2}, "float32", 128, 128, 130),
            (False, {"kernel_size": 3, "dilation": 2}, "float32", 128, 256, 200),
        )
    ],
)
def test_products_are_those_of_explicit(options, dtype, window, block, channels, product):
    kmap = vx.kernel_map(make_voxels(random_cube(300), capacity=384), **options)
    problem = problem_of(product, kmap, (channels, channels), dtype)
    blocks = tpu.Blocks(window, block, stripes=2, tiles=1)
    chosen = (*tpu.parameters(blocks), ("interpret", 1))
    a, b = problems.operands_of(problem, kmap)
    results = []
    for kernel, parameters in ((tpu.WINDOWED, chosen), (xla.EXPLICIT, xla.IM2COL)):
        views = problems.views_of(kmap, kernel, problem, parameters)
        run = jax.jit(lambda a, b, v, k=kernel, p=parameters: k.apply(problem, p, a, b, v))
        results.append(np.asarray(run(a, b, views), np.float32))
    actual, expected = results
    assert np.isfinite(actual).all()
    assert relative_error(actual, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("options", "dtype", "window", "block", "channels"),
    [
        ({"kernel_size": (1, 3, 3)}, "bfloat16", 256, 16, 5),
        slow_unless(False, {"kernel_size": 2, "stride": 2}, "float32", 128, 128, 130),
    ],
)
def test_gradients_at_once_are_those_of_the_two_products(options, dtype, window, block, channels):
    kmap = vx.kernel_map(make_voxels(random_cube(300), capacity=384), **options)
    problem, wgrad = (problem_of(p, kmap, (channels, channels), dtype) for p in PRODUCTS[1:])
    chosen = (*tpu.parameters(tpu.Blocks(window, block, stripes=2, tiles=1)), ("interpret", 1))
    (dy, w), (x, _) = (problems.operands_of(p, kmap) for p in (problem, wgrad))
    views = problems.views_of(kmap, tpu.WINDOWED, problem, chosen)
    found = tpu.WINDOWED.fused.apply(problem, chosen, dy, x, w, views)
    for product, operand, actual in zip(PRODUCTS[1:], ((dy, w), (x, dy)), found, strict=True):
        alone = dataclasses.replace(problem, product=product)
        views = problems.views_of(kmap, xla.EXPLICIT, alone, xla.IM2COL)
        expected = xla.EXPLICIT.apply(alone, xla.IM2COL, *operand, views)
        assert actual.dtype == expected.dtype
        assert np.isfinite(np.asarray(actual, np.float32)).all()
        assert relative_error(actual, expected) < TOLERANCE[dtype], product


def test_admitted_on_tpus_alone_and_refusals_say_why():
    kmap = vx.kernel_map(make_voxels(random_cube(100), capacity=128), 3)
    problem = problem_of("forward", kmap, (300, 300), "float32")

    def reason(hardware=CHIP, **changes):
        return tpu.supports(problems.changed(problem, **changes), hardware)

    assert reason() is None
    found = [dict(p) for p in problems.space_of(problem, CHIP) if dict(p).get("body") == "windows"]
    sizes = [(p["window_rows"], p["tiles"], p["channel_block"]) for p in found]
    assert sizes == [(256, 1, 384), (512, 1, 384), (256, 2, 384)]
    little = dataclasses.replace(CHIP, vmem_bytes=2**24)
    assert next(dict(p)["channel_block"] for p in tpu.space(problem, little)) < 384
    assert "dense" in reason(kind="dense")
    assert "not on cpu" in reason(platform="cpu")
    assert "float16" in reason(dtype="float16")
    assert "taps at most, got 999" in reason(num_offsets=999)
    assert "bytes of vector memory" in reason(dataclasses.replace(CHIP, vmem_bytes=2**19))
    assert "of scalar memory" in reason(in_capacity=2**24, out_capacity=2**24)
