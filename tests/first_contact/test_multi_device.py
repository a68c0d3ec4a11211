"""A training step over all devices of a slice compiles, by JAX's own ahead-of-time path."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks.tpu.demo_step import devices, lowered
from flax import nnx
from jax.sharding import SingleDeviceSharding

import voxax as vx
from problems import needs_libtpu
from voxax.coords import tile_sort
from voxax.nn.functional import spatially_sparse_conv
from voxax.nn.modules import BatchNorm, Linear, ReLU, Sequential, SparseConv3d, SubMConv3d
from voxax.parallel import DataParallelTrainer
from voxax.tuning import record_choices
from voxax.tuning.cache import cache_for, device_name
from voxax.tuning.entry import key_of

pytestmark = [
    pytest.mark.tpu_compile,
    needs_libtpu,
    pytest.mark.lax_promotion,  # optax relies on it
]

SLICES = ["v5e:2x2", "v5e:2x4", "v6e:2x2", "v5p:2x2x1", "tpu7x:2x2x1"]
CAPACITY, CLASSES = 256, 3


def network():
    """A layer, one to half the resolution, and a head, in bfloat16."""
    options = {"rngs": nnx.Rngs(0), "dtype": jnp.bfloat16}
    return Sequential(
        SubMConv3d(4, 16, 3, **options),
        BatchNorm(16, rngs=nnx.Rngs(0)),
        ReLU(),
        SparseConv3d(16, 16, 2, 2, **options),
        Linear(16, CLASSES, rngs=nnx.Rngs(0)),
    )


def step_for(topology):
    """A step of the trainer over the slice's devices, and what its convolutions chose.

    The step is two programs: gradients and update.
    """
    here = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    trainer = DataParallelTrainer(network(), optax.adamw(1e-3), here)
    coords = np.full((CAPACITY, 4), vx.PAD, np.int32)
    coords[:8] = np.argwhere(np.ones((1, 2, 2, 2)))
    voxels = vx.Voxels.from_coords(
        coords, np.ones((CAPACITY, 4), np.float32), batch_size=1, capacity=CAPACITY
    )
    return lowered(trainer, topology, voxels, np.zeros(CAPACITY, np.int32))


@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"])
def test_a_program_for_an_absent_tpu_takes_what_ships_for_it(topology, monkeypatch, tmp_path):
    """Its facts, and the choice that was predicted for a layer of its sizes.

    For v5e and v6e choices ship; others take the window kernels without one.
    """
    monkeypatch.delenv("VOXAX_AUTOTUNE")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    one = SingleDeviceSharding(devices(topology)[0])
    shapes = ((2**16, 4), "int32"), ((2**16, 4), "bfloat16"), ((27, 4, 32), "bfloat16")

    def layer(coords, features, weight):
        voxels = vx.Voxels.from_coords(coords, features, batch_size=1, capacity=2**16)
        return spatially_sparse_conv(voxels, weight, 3).features

    with record_choices() as choices:
        jax.jit(layer).lower(*(jax.ShapeDtypeStruct(*s, sharding=one) for s in shapes))
    (choice,) = choices
    cache = cache_for(device_name(vx.hardware.describe(topology)))
    assert choice.entry == cache.get(key_of(choice.problem))
    assert dict(choice.parameters)["body"] == "windows"
    if not topology.startswith(("v5e", "v6e")):
        return
    assert choice.source == "predicted"
    best = choice.entry.ranked()[0]
    assert (choice.algorithm, choice.parameters) == (best.algorithm, best.parameters)


@pytest.mark.parametrize("topology", SLICES)
def test_a_step_over_a_slice_compiles(topology, monkeypatch):
    """With the window kernels, gradients added up over all devices, and donated parameters."""
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    gradients, update, choices = step_for(topology)
    assert {c.problem.platform for c in choices} == {"tpu"}
    assert {dict(c.parameters).get("body") for c in choices} == {"windows"}
    kind, cores = devices(topology)[0].device_kind, getattr(devices(topology)[0], "num_cores", 1)
    facts = vx.hardware.describe(topology)
    assert (facts.device_kind, facts.cores) == (kind, cores)
    text = gradients.compile().as_text()
    kernels = [line for line in text.splitlines() if "tpu_custom_call" in line]
    windows = [line for line in kernels if tile_sort.NAME not in line.partition("=")[0]]
    # Two products are one kernel: both gradients of the layer that is not the first.
    assert len(windows) >= len(choices) - 1 == 4
    assert "all-reduce" in text
    memory = update.compile().memory_analysis()
    # The rest of the output is a table of its arrays.
    assert memory.alias_size_in_bytes > 0.9 * memory.output_size_in_bytes > 0


PRINT = """
import hashlib, sys
import jax
from test_multi_device import step_for
with jax.numpy_dtype_promotion("standard"):
    text = step_for("v5e:2x2")[0].as_text()
print(len(text), hashlib.sha256(text.encode()).hexdigest())
"""


def test_every_process_lowers_the_same_program(tmp_path):
    """Else the second one would not find what the first one compiled."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    given = os.environ | {"PYTHONPATH": path, "VOXAX_CACHE_DIR": str(tmp_path)}
    del given["VOXAX_AUTOTUNE"]
    found = {
        subprocess.run(
            [sys.executable, "-c", PRINT], env=given | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE, check=True, timeout=300,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1
    assert int(next(iter(found)).split()[0]) > 10_000
