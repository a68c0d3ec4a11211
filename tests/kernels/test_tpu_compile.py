"""Every product through the real TPU compiler, without a TPU.

Needs libtpu (`pip install .[tpu]`); run with `pytest -m tpu_compile`. Nothing is executed.
"""

import jax
import pytest
from benchmarks.tpu.budgets import BUDGETS, cycles_per_row
from benchmarks.tpu.program import TOPOLOGIES, compile_product, facts, gradients, make_problem
from window_operands import assert_in_its_memory

from problems import needs_libtpu
from voxax.kernels.implicit_gemm import items_kernel, tpu, tpu_items
from voxax.predict import compile_for

pytestmark = [pytest.mark.tpu_compile, needs_libtpu]

PRODUCTS = ("forward", "dgrad", "wgrad")


def compiled(topology, product, dtype, window=0, **options):
    """The program, its problem and its parameters."""
    problem, hardware = make_problem(product, dtype, **options), facts(topology)
    assert tpu.supports(problem, hardware) is None
    parameters = tpu.space(problem, hardware)[window]
    program = compile_product(topology, problem, parameters)
    assert_in_its_memory(program, dict(parameters)["resident"])
    return program, problem, dict(parameters)


def compiled_gradients(topology, dtype, **options):
    """dgrad and wgrad at once, and the problem of dgrad."""
    problem = make_problem("dgrad", dtype, **options)
    alone = tpu.space(problem, facts(topology))[0]
    parameters = tpu.WINDOWED.fused.heuristic(problem, facts(topology), alone)
    program = compile_for(topology, *gradients(problem, parameters))
    assert_in_its_memory(program, dict(parameters)["resident"])
    return program, problem


def padded(channels):
    return -(-channels // 128) * 128


def check_memory(program, problem):
    """No more than the operands as the kernel wants them, and the result before it is cut."""
    rows = problem.layer.in_capacity + problem.layer.out_capacity
    channels = padded(problem.in_channels) + padded(problem.out_channels)
    # Three bfloat16 parts of one operand, float32 of the other; sums of blocks in float32.
    operands = rows * channels * 8
    weights = (
        problem.layer.num_offsets * padded(problem.in_channels) * padded(problem.out_channels) * 16
    )
    assert program.memory_analysis().temp_size_in_bytes < operands + weights


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_products_compile(topology, product, dtype):
    program, problem, _ = compiled(topology, product, dtype)
    assert "tpu_custom_call" in program.as_text()
    check_memory(program, problem)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_both_gradients_compile_at_once(topology, dtype):
    program, problem = compiled_gradients(topology, dtype)
    assert program.as_text().count("tpu_custom_call") == 1
    check_memory(program, problem)


@pytest.mark.parametrize(
    "options", [{"channels": (3, 200)}, {"kernel_size": 2, "stride": 2}, {"channels": 256}], ids=str
)
def test_both_gradients_of_other_relations_compile_at_once(options):
    compiled_gradients("v6e:2x2", "bfloat16", **options)


def test_gradients_whose_sums_do_not_fit_are_computed_one_after_the_other():
    problem = make_problem("dgrad", "float32", channels=512)
    hardware = facts(TOPOLOGIES[0])
    alone = tpu.space(problem, hardware)[0]
    assert tpu.WINDOWED.fused.heuristic(problem, hardware, alone) is None


@pytest.mark.parametrize("product", PRODUCTS)
def test_many_channels_in_little_vector_memory(product):
    """Blocks of channels, whose sums are added up."""
    program, problem, parameters = compiled(TOPOLOGIES[0], product, "float32", channels=512)
    assert parameters["in_block"] < 512 or parameters["out_block"] < 512
    check_memory(program, problem)


@pytest.mark.parametrize(
    "options",
    [
        {"channels": 1},
        {"rows": 94_444},
        {"channels": (3, 200)},
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 5},
        {"kernel_size": 3, "ndim": 4},
        {"kernel_size": 3, "ndim": 2, "rows": 1000},
        {"window": 1},
    ],
    ids=str,
)
def test_other_relations_compile(options):
    compiled("v5e:2x2", "dgrad", "bfloat16", **options)


@pytest.mark.parametrize("product", PRODUCTS)
def test_products_compile_where_integers_have_64_bits(product):
    """The chip has none of those, and a Python number in an index map would be one."""
    with jax.enable_x64(True):
        compiled("v5e:2x2", product, "bfloat16")
        if product == "dgrad":
            compiled_gradients("v5e:2x2", "bfloat16")


def test_cycles_of_a_row_stay_in_budget():
    """64 channels, bfloat16, forward, on a recorded LiDAR sweep."""
    found = {chip: cycles for chip, (cycles, _) in cycles_per_row(tuple(BUDGETS)).items()}
    assert all(0 < cycles <= BUDGETS[chip] for chip, cycles in found.items()), found


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_lists_of_items_compile(topology, dtype):
    problem = make_problem("forward", dtype, channels=128, rows=50_000).with_layer(density=1.0)
    found = tpu_items.candidates(problem, facts(topology))
    if not found:
        assert (facts(topology).cores or 1) > 1 or facts(topology).vmem_bytes < 2**27
        return
    program = compile_product(topology, problem, found[0])
    assert program.as_text().count("tpu_custom_call") == 1
    # The operands are as the kernel wants them, but for a conversion.
    operands = 50_000 * 128 * 8
    assert program.memory_analysis().temp_size_in_bytes < operands


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_items_are_listed_on_the_device(topology):
    table = jax.ShapeDtypeStruct((50_000, 27), "int32")
    assert "tpu_custom_call" in compile_for(topology, items_kernel.find_items, table).as_text()
