"""Products with SparseCores through the real TPU compiler, without a TPU.

Needs libtpu (`pip install .[tpu]`); run with `pytest -m tpu_compile`. Nothing is executed.
"""

import pytest
from benchmarks.tpu.program import BY_CHIP, facts, make_problem
from benchmarks.tpu.sparse_core import operands

from voxax import _compat
from voxax.algorithms.explicit_gemm import sparse_core
from voxax.predict import compile_for

pytestmark = [
    pytest.mark.tpu_compile,
    pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed"),
]


@pytest.mark.parametrize(
    ("chip", "product", "dtype"),
    [
        ("v5p", "forward", "bfloat16"),
        ("v5p", "wgrad", "float32"),
        ("v6e", "forward", "bfloat16"),
        ("v6e", "dgrad", "float32"),
        ("7x", "wgrad", "bfloat16"),
    ],
)
def test_products_compile(chip, product, dtype):
    """In blocks: what is gathered of one alone is in memory at a time."""
    topology, rows = BY_CHIP[chip], 9_000
    channels = 64 if dtype == "bfloat16" else 32  # half of the time to compile
    problem = make_problem(product, dtype, channels, rows, stride=2)
    hardware = facts(topology)
    assert sparse_core.supports(problem, hardware) is None
    parameters = sparse_core.space(problem, hardware)[0]
    program = compile_for(topology, *operands(problem, parameters))
    assert 'execution_thread="sparsecore"' in program.as_text()
    # Gathered words, and both halves of them as TensorCores take them; operands and results.
    words = sparse_core.layout_of(channels, dtype).groups(27) * 512
    most = dict(parameters)["block_rows"]
    assert program.memory_analysis().temp_size_in_bytes < 3 * most * words + 20 * rows * 128 * 4


@pytest.mark.parametrize("chip", ["v4", "v5e"])
def test_chips_without_sparse_cores_are_refused(chip):
    hardware = facts(BY_CHIP[chip])
    problem = make_problem("forward", "bfloat16")
    assert "has no SparseCores" in sparse_core.supports(problem, hardware)
    assert sparse_core.space(problem, hardware) == ()
