"""A forward product with its epilogue in one kernel: its numbers, on the stand-in of CUDA's driver,
and what it needs, as machine code. Nothing runs on a GPU.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.gpu.compiled import kernel_of, resources
from benchmarks.gpu.lowered import alone, problem_of
from benchmarks.gpu.sheets import gpu_sheet, known_gpus
from test_gpu_launches import CHIP, OUT_ROWS, TOLERANCE, a_problem, expected, views_of

import launcher
import problems
from oracle import relative_error
from samples import slow_unless
from voxax.hardware import targeting
from voxax.kernels import Epilogue
from voxax.kernels.implicit_gemm import gpu
from voxax.kernels.triton_call import noting_calls

BESIDE = [
    (bias, residual, relu) for bias, residual, relu in itertools.product((False, True), repeat=3)
]
INVALID = (3, 50, 69)


def an_epilogue(problem, dtype, bias, residual, relu):
    """Statistics are float32, as a module keeps them; rows that are no voxels hold NaN."""
    rng = np.random.default_rng(2)
    channels = problem.out_channels
    valid = np.ones(OUT_ROWS, bool)
    valid[list(INVALID)] = False
    added = np.where(valid[:, None], rng.normal(size=(OUT_ROWS, channels)), np.nan)

    def of_channels(kind=dtype, least=-1.0):
        return jnp.asarray(rng.uniform(least, 2, channels), kind)

    return Epilogue(
        valid=jnp.asarray(valid),
        mean=of_channels("float32"),
        variance=of_channels("float32", 0.1),
        scale=of_channels(),
        shift=of_channels(),
        bias=of_channels() if bias else None,
        residual=jnp.asarray(added, dtype) if residual else None,
        epsilon=1e-3,
        relu=relu,
    )


def after(y, e):
    """What the epilogue makes of a product in float64."""
    of = {f.name: getattr(e, f.name) for f in dataclasses.fields(e)}
    of = {k: np.asarray(v, float) for k, v in of.items() if hasattr(v, "shape")}
    y = (y + of.get("bias", 0) - of["mean"]) / np.sqrt(of["variance"] + e.epsilon)
    y = y * of["scale"] + of["shift"] + of.get("residual", 0)
    y = np.maximum(y, 0) if e.relu else y
    return np.where(np.asarray(e.valid)[:, None], y, 0)


def one_launch(problem, parameters, epilogue):
    """The result, what it should be, and how many kernels were launched."""
    rng = np.random.default_rng(1)
    a, b = (jnp.asarray(rng.normal(size=s), problem.dtype) for s in problem.operand_shapes)
    views = views_of(problem, parameters)
    with launcher.launches(CHIP) as threads:
        got = gpu.with_epilogue(problem, parameters, a, b, views, epilogue)
    return got, after(expected(problem, a, b), epilogue), len(threads)


def check(problem, parameters, epilogue):
    got, exact, number = one_launch(problem, parameters, epilogue)
    assert number == 1
    assert got.dtype == problem.dtype
    assert relative_error(got, exact) < TOLERANCE[problem.dtype]
    assert not np.asarray(got, float)[list(INVALID)].any()


def candidates():
    for kind, dtype in itertools.product(("dense", "grouped"), TOLERANCE):
        found = gpu.space(a_problem("forward", kind, dtype), CHIP)
        whole = [i for i, p in enumerate(found) if dict(p).get("split_k_factor", 1) == 1]
        yield from ((kind, dtype, number) for number in whole)


@problems.needs_triton
@pytest.mark.parametrize(("kind", "dtype", "number"), list(candidates()))
def test_one_launch_gives_the_layers(kind, dtype, number):
    problem = a_problem("forward", kind, dtype)
    epilogue = an_epilogue(problem, dtype, bias=True, residual=True, relu=True)
    check(problem, gpu.space(problem, CHIP)[number], epilogue)


@problems.needs_triton
@pytest.mark.parametrize(("bias", "residual", "relu"), BESIDE)
def test_what_is_left_out_is_not_read(bias, residual, relu):
    problem = a_problem("forward", "grouped", "float16")
    check(
        problem, gpu.space(problem, CHIP)[0], an_epilogue(problem, "float16", bias, residual, relu)
    )


@problems.needs_triton
@pytest.mark.parametrize("out_channels", [136, 300])
def test_wide_blocks_are_written_in_pieces(out_channels):
    """In Triton's interpreter: four pieces, the last ones behind the last channel."""
    problem = dataclasses.replace(
        a_problem("forward", "dense", "float32"), in_channels=8, out_channels=out_channels
    )
    rng = np.random.default_rng(1)
    a, b = (jnp.asarray(rng.normal(size=s), "float32") for s in problem.operand_shapes)
    epilogue = an_epilogue(problem, "float32", bias=True, residual=True, relu=True)
    values = {"body": "triton", "fwd_block_size": 32, "in_block": 16, "interpret": 1}
    values |= {"num_stages": 2, "num_warps": 4, "out_block": 128 if out_channels == 136 else 256}
    parameters = tuple(sorted(values.items()))
    got = gpu.with_epilogue(problem, parameters, a, b, views_of(problem, parameters), epilogue)
    exact = after(expected(problem, a, b), epilogue)
    assert relative_error(got, exact) < TOLERANCE["float32"]


@problems.needs_triton
def test_parts_of_a_sum_are_added_before():
    problem = a_problem("forward", "dense", "float16")
    epilogue = an_epilogue(problem, "float16", bias=False, residual=False, relu=True)
    parts = [p for p in gpu.space(problem, CHIP) if dict(p).get("split_k_factor", 1) > 1]
    got, _, number = one_launch(problem, parts[0], epilogue)
    assert got is None
    assert number == 0


def compiled(problem, parameters, target):
    """The kernel with a whole epilogue, for a map of many rows."""
    shape = jax.ShapeDtypeStruct
    rows, channels = problem.result_shape
    epilogue = Epilogue(
        shape((rows,), "bool"),
        *[shape((channels,), "float32")] * 2,
        *[shape((channels,), problem.dtype)] * 3,
        shape((rows, channels), problem.dtype),
        epsilon=1e-3,
        relu=True,
    )
    _, (a, b, views) = alone(problem, parameters)
    with noting_calls() as found, targeting(gpu_sheet(target).info):
        jax.eval_shape(functools.partial(gpu.apply, problem, parameters), a, b, views, epilogue)
    (kernel,) = found
    return resources(kernel, target)


@problems.needs_triton
@pytest.mark.parametrize("target", known_gpus())
@pytest.mark.parametrize("channels", [slow_unless(c == 128, c) for c in (64, 128, 256)])
def test_as_many_programs_fit_a_core(channels, target):
    """The registers that the epilogue needs are free by then; nothing spills."""
    problem = problem_of("forward", "dense", "float16", (channels, channels))
    problem = problems.changed(problem, in_capacity=98_304, out_capacity=98_304)
    info = gpu_sheet(target).info
    if gpu.supports(problem, info) is not None:
        pytest.skip("Triton has no matrix instructions for it")
    parameters = gpu.space(problem, info)[0]
    plain = resources(kernel_of(problem, parameters, target), target)
    found = compiled(problem, parameters, target)
    assert found.spilled == 0
    assert found.shared_bytes <= info.shared_memory_bytes
    assert found.buffers == plain.buffers
    assert found.programs_per_core == plain.programs_per_core
