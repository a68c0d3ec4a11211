"""Triton's kernels through JAX's own launcher, on a stand-in of CUDA's driver: their numbers.

Every candidate of a small problem, as compiled for an A100. ``launcher/__init__.py`` says what is
covered.
"""

import dataclasses
import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.gpu.lowered import PRODUCTS, module_of, problem_of
from benchmarks.gpu.sheets import gpu_sheet

import launcher
import problems
from oracle import relative_error
from voxax import _compat
from voxax.geometry.host import invert_table, pair_lists
from voxax.kernels.implicit_gemm import gpu
from voxax.kernels.implicit_gemm.tap_order import sort_by_taps

CHIP = gpu_sheet("sm_80").info
IN_ROWS, OUT_ROWS, TAPS = 45, 70, 5
TOLERANCE = {"float32": 2e-6, "bfloat16": 1e-2, "float16": 2e-3}
KINDS = ("dense", "grouped", "depthwise")


def a_problem(product, kind, dtype):
    """Channels that are no whole number of blocks, and rows that are no whole number of tiles."""
    found = problem_of(product, kind, dtype, (24, 40))
    return problems.changed(found, in_capacity=IN_ROWS, out_capacity=OUT_ROWS, num_offsets=TAPS)


@functools.cache
def table():
    """``int32[M, K]``: a third of the neighbors, a row without any."""
    rng = np.random.default_rng(0)
    found = rng.integers(0, IN_ROWS, (OUT_ROWS, TAPS)).astype(np.int32)
    # An input row is at most one output row's neighbor by a tap.
    for tap in range(TAPS):
        found[:, tap] = -1
        rows = rng.permutation(OUT_ROWS)[: IN_ROWS // 2]
        found[rows, tap] = rng.permutation(IN_ROWS)[: IN_ROWS // 2]
    found[7] = -1
    return found


def views_of(problem, parameters):
    """The arrays that a kernel reads."""
    neighbors = table()
    inverse = invert_table(neighbors, IN_ROWS)
    pairs, starts = pair_lists(neighbors)
    made = {
        "sorted_neighbors": sort_by_taps(jnp.asarray(neighbors)),
        "transposed_sorted_neighbors": sort_by_taps(jnp.asarray(inverse)),
        "pairs": jnp.asarray(pairs),
        "pair_starts": jnp.asarray(starts),
    }
    names = module_of(problem).TRITON.views_of(problem, parameters)
    return {name: made[name] for name in names}


def expected(problem, a, b):
    """The product in float64, pair by pair."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    result = np.zeros(problem.result_shape)
    groups = problem.layer.groups
    depthwise = problem.layer.kind == "depthwise"

    def blocks(rows):
        return rows.reshape(len(rows), groups, -1)

    for tap in range(TAPS):
        outs = np.flatnonzero(table()[:, tap] >= 0)
        ins = table()[outs, tap]
        if problem.product == "wgrad":
            if depthwise:
                result[tap] = (a[ins] * b[outs]).sum(0)
            else:
                each = np.einsum("pgc,pgd->gcd", blocks(a[ins]), blocks(b[outs]))
                result[tap] = each.reshape(result.shape[1:])
            continue
        gathered, written = (ins, outs) if problem.product == "forward" else (outs, ins)
        if depthwise:
            product = a[gathered] * b[tap]
        else:
            weight = b[tap].reshape(groups, -1, b.shape[-1])
            rule = "pgc,gcd->pgd" if problem.product == "forward" else "pgd,gcd->pgc"
            product = np.einsum(rule, blocks(a[gathered]), weight).reshape(len(ins), -1)
        np.add.at(result, written, product)
    return result


@functools.cache
def cases():
    found = []
    for kind, product, dtype in itertools.product(KINDS, PRODUCTS, TOLERANCE):
        problem = a_problem(product, kind, dtype)
        for number in range(len(module_of(problem).space(problem, CHIP))):
            found.append((kind, product, dtype, number))
    return found


@problems.needs_triton
@pytest.mark.parametrize(("kind", "product", "dtype", "number"), cases())
def test_a_launch_gives_the_product(kind, product, dtype, number, record_property):
    problem = a_problem(product, kind, dtype)
    module = module_of(problem)
    parameters = module.space(problem, CHIP)[number]
    rng = np.random.default_rng(1)
    a, b = (jnp.asarray(rng.normal(size=s), dtype) for s in problem.operand_shapes)
    with launcher.launches(CHIP) as threads:
        got = module.apply(problem, parameters, a, b, views_of(problem, parameters))
    assert threads == [32 * dict(parameters)["num_warps"]]
    assert got.shape == problem.result_shape
    error = relative_error(got, expected(problem, a, b))
    record_property("error", error)
    assert error < TOLERANCE[dtype]


@problems.needs_triton
@pytest.mark.parametrize("product", PRODUCTS)
def test_three_passes_of_tf32_lose_two_digits_at_most(product, record_property):
    """Between all digits and one pass; never without being asked for."""
    errors = {}
    for precision in ("highest", "TF32_TF32_F32_X3", "high"):
        problem = problems.changed(a_problem(product, "dense", "float32"), precision=precision)
        parameters = gpu.space(problem, CHIP)[0]
        rng = np.random.default_rng(1)
        a, b = (jnp.asarray(rng.normal(size=s), "float32") for s in problem.operand_shapes)
        with launcher.launches(CHIP):
            got = gpu.apply(problem, parameters, a, b, views_of(problem, parameters))
        errors[precision] = relative_error(got, expected(problem, a, b))
        record_property(precision, errors[precision])
    ieee, three, one = errors.values()
    assert ieee < 1e-6
    assert three < 2e-6
    assert one > 50 * max(three, ieee)


def one_launch(channels=(24, 40), number=0, **changes):
    problem = dataclasses.replace(
        a_problem("forward", "dense", "float16"), in_channels=channels[0], out_channels=channels[1]
    )
    parameters = gpu.space(problem, CHIP)[number]
    arrays = [jnp.ones(shape, "float16") for shape in problem.operand_shapes]
    with launcher.launches(dataclasses.replace(CHIP, **changes)):
        gpu.apply(problem, parameters, *arrays, views_of(problem, parameters))


@problems.needs_triton
def test_the_launcher_refuses_more_shared_memory_than_a_block_has():
    problem = dataclasses.replace(
        a_problem("forward", "dense", "float16"), in_channels=128, out_channels=128
    )
    found = gpu.space(problem, CHIP)
    largest = max(range(len(found)), key=lambda i: gpu.shared_bytes(problem, found[i]))
    with pytest.raises(
        RuntimeError, match=r"execute: (Shared memory requested|an error in XLA's own form)"
    ):
        one_launch((128, 128), largest, shared_memory_bytes=50_000)


@problems.needs_triton
def test_arguments_in_another_order_are_noticed(monkeypatch):
    """The address of the table in the place of the features': reads outside of an operand."""
    real = _compat.gpu_triton.TritonKernelCall

    def exchanged(binary, x, y, z, parameters):
        first, *rest = parameters
        return real(binary, x, y, z, [*rest[:4], first, *rest[4:]])

    monkeypatch.setattr(_compat.gpu_triton, "TritonKernelCall", exchanged)
    with pytest.raises(IndexError):
        one_launch()
