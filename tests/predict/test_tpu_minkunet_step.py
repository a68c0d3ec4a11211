"""A whole training step of MinkUNet18, kernel maps included, on the real TPU compiler.

Fifteen programs of some minutes each; CI takes another one with every change:
``VOXAX_TEST_EVERY=15 VOXAX_TEST_TURN=n pytest -n 0 -m "tpu_compile and slow"``.
"""

import pytest
from benchmarks.tpu.minkunet_step import CAPACITIES, step

from voxax import _compat
from voxax.coords import tile_sort
from voxax.predict import TOPOLOGIES, chip_named, compile_for

CONVOLUTIONS = 42


@pytest.mark.slow
@pytest.mark.tpu_compile
@pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed")
@pytest.mark.lax_promotion  # optax relies on it
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("chip", TOPOLOGIES)
def test_a_training_step_compiles_and_fits(chip, capacity, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    program = compile_for(TOPOLOGIES[chip], *step(capacity))
    # Three products of every convolution, but the input has no gradient; blocks of channels are
    # calls of their own.
    kernels = [line for line in program.as_text().splitlines() if "tpu_custom_call" in line]
    windows = [line for line in kernels if tile_sort.NAME not in line.partition("=")[0]]
    assert len(windows) >= 3 * CONVOLUTIONS - 1
    memory, facts = program.memory_analysis(), chip_named(chip)
    needed = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    # Of one core, which is stricter where a device joins two.
    assert 0 < memory.temp_size_in_bytes < needed < facts.hbm
