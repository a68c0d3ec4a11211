"""Depthwise products through the real TPU compiler, without a TPU."""

import functools

import jax
import pytest
from benchmarks.tpu.program import TOPOLOGIES, compile_product, gradients, make_problem
from window_operands import assert_in_its_memory

import problems
from problems import needs_libtpu
from voxax.hardware import describe
from voxax.kernels.depthwise import tpu
from voxax.predict import compile_for

pytestmark = [pytest.mark.tpu_compile, needs_libtpu]

PRODUCTS = ("forward", "dgrad", "wgrad", "gradients")

facts = functools.cache(describe)  # a process of its own each time


def check(topology, product, dtype, window=0, **options):
    both = product == "gradients"
    problem = make_problem("dgrad" if both else product, dtype, **options)
    problem = problems.changed(problem, kind="depthwise")
    assert tpu.supports(problem, facts(topology)) is None
    if both:
        alone = tpu.space(problem, facts(topology))[0]
        parameters = tpu.WINDOWED.fused.heuristic(problem, facts(topology), alone)
        program = compile_for(topology, *gradients(problem, parameters))
    else:
        parameters = tpu.space(problem, facts(topology))[window]
        program = compile_product(topology, problem, parameters)
    assert_in_its_memory(program, dict(parameters)["resident"])
    # Three bfloat16 parts of one operand, float32 of the other, and the result before it is cut.
    rows, channels = 2 * problem.layer.in_capacity, -(-problem.in_channels // 128) * 128
    table = 4 * rows * (problem.layer.num_offsets + 8)
    assert program.memory_analysis().temp_size_in_bytes < rows * channels * 8 + 2 * table


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_depthwise_products_compile(topology, product):
    check(topology, product, "float32" if product == "dgrad" else "bfloat16")


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32", "channels": 512, "window": 1},
        {"dtype": "bfloat16", "kernel_size": 2, "stride": 2},
        {"dtype": "bfloat16", "kernel_size": 5, "channels": 1},
    ],
    ids=str,
)
def test_other_depthwise_relations_compile(options):
    check("v5e:2x2", "dgrad", **options)


@pytest.mark.parametrize("product", PRODUCTS)
def test_depthwise_products_compile_where_integers_have_64_bits(product):
    with jax.enable_x64(True):
        check("v5e:2x2", product, "bfloat16")
