"""A whole training step of MinkUNet18, maps and optimizer included, through the TPU compiler.

One program, of the smallest size, which takes minutes: it has 2,600 kernels. The other sizes are in
`benchmarks/tpu/minkunet_step.py`. Needs libtpu (`pip install .[tpu]`); run with
`pytest -n 0 -m "tpu_compile and slow"`. Nothing is executed.
"""

import pytest
from benchmarks.tpu.minkunet_step import CAPACITIES, step
from benchmarks.tpu.program import compile_for, facts

from voxax import _compat

pytestmark = [
    pytest.mark.tpu_compile,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed"),
]
TOPOLOGY = "v5e:2x2"


def test_a_training_step_compiles_and_fits_the_memory():
    pytest.importorskip("flax")
    pytest.importorskip("optax")
    program = compile_for(TOPOLOGY, *step(CAPACITIES[0]))
    # 42 convolutions of three products, but for the first one's dgrad.
    assert program.as_text().count("tpu_custom_call") >= 42 * 3 - 1
    memory = program.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    assert held + memory.temp_size_in_bytes < facts(TOPOLOGY).memory_bytes
