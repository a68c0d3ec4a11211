"""Whole networks, kernel maps included, as one program on the real TPU compiler.

21 programs of some minutes each: training steps of MinkUNet18 on five generations and at three
capacities, PTv3-base's forward pass on five and its training step on v5e. CI takes another one
with every change: ``VOXAX_TEST_EVERY=21 VOXAX_TEST_TURN=n pytest -n 0 -m "tpu_compile and slow"``.
"""

import functools

import pytest
from benchmarks.tpu import minkunet_step, ptv3_step

from problems import needs_libtpu
from voxax.coords import tile_sort
from voxax.predict import TOPOLOGIES, chip_named, compile_for

# A kernel of every convolution forward, and one for its gradients: of the first layer wgrad alone.
# Blocks of channels are calls of their own. Attention is one kernel forward and two backward.
MINKUNET = 2 * 42
PTV3 = {"forward": 23 + 22, "training": 2 * 23 + 3 * 22}


def programs():
    for chip in TOPOLOGIES:
        for rows in minkunet_step.CAPACITIES:
            make = functools.partial(minkunet_step.step, rows)
            yield pytest.param(chip, make, MINKUNET, id=f"MinkUNet18-{chip}-{rows}")
    for mode, chips in ptv3_step.MODES.items():
        make = functools.partial(ptv3_step.step, mode == "training")
        for chip in chips:
            # It takes 25 minutes of a core; benchmarks/tpu/ptv3_step.py compiles it.
            if (mode, chip) == ("training", "v6e"):
                continue
            yield pytest.param(chip, make, PTV3[mode], id=f"PTv3-base-{chip}-{mode}")


@pytest.mark.slow
@pytest.mark.tpu_compile
@needs_libtpu
@pytest.mark.lax_promotion  # optax relies on it
@pytest.mark.timeout(1700)
@pytest.mark.parametrize(("chip", "make", "least"), programs())
def test_a_network_compiles_and_fits(chip, make, least, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    program = compile_for(TOPOLOGIES[chip], *make())
    kernels = [line for line in program.as_text().splitlines() if "tpu_custom_call" in line]
    found = [line for line in kernels if tile_sort.NAME not in line.partition("=")[0]]
    assert len(found) >= least
    memory, facts = program.memory_analysis(), chip_named(chip)
    needed = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    # Of one core, which is stricter where a device joins two.
    assert 0 < memory.temp_size_in_bytes < needed < facts.hbm
