"""Default runs of one seed on one machine are equal, bit for bit, from the first step on."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from voxax.models.checkpoint import newest_step

TESTS = Path(__file__).resolve().parents[1]
CODE = "import sys; from cli.small_network import run; run(sys.argv[1:])"
CONFIG = """
seed = 3
[data]
format = "files"
folder = "."
train = ["scan*.npz"]
validation = ["held_out.npz"]
classes = {1 = "near", 2 = "far"}
[augment]
[model]
voxel_size = 1.0
[training]
steps = 6
"""


@pytest.fixture
def scans(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("scan1", "scan2", "held_out"):
        plan = rng.uniform(0, 40, (3000, 2))
        cloud = np.column_stack([plan, rng.uniform(0, 3, 3000)])
        np.savez(tmp_path / f"{name}.npz", xyz=cloud, label=(plan[:, 0] > 20) + 1)
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


def bits_of(folder, arguments, cache, cores=None):
    """Losses of a run in a process of its own, and the arrays of its checkpoint, as bytes."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VOXAX_", "JAX_COMP"))}
    kept |= {"VOXAX_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}

    def bind():
        if cores is not None:
            os.sched_setaffinity(0, cores)

    subprocess.run(
        [sys.executable, "-c", CODE, *arguments, "--out", str(folder)],
        env=kept,
        check=True,
        cwd=folder.parent,
        timeout=600,
        preexec_fn=bind,
        capture_output=True,
    )
    losses = (folder / "losses.csv").read_text()
    assert newest_step(folder / "checkpoint") == 6
    return losses, arrays(folder / "checkpoint" / "6" / "default")


def arrays(folder):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as reader:
        leaves = [np.asarray(leaf) for leaf in _leaves(reader.restore(folder))]
    assert len(leaves) > 10
    return [(leaf.dtype.name, leaf.shape, leaf.tobytes()) for leaf in leaves]


def _leaves(tree):
    import jax

    return jax.tree.leaves(tree)


DEMO = ["demo", "--input", "scan1.npz", "--voxel-size", "1.0", "--steps", "6", "--seed", "3"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("arguments", [DEMO, ["train", "config.toml"]], ids=["demo", "train"])
def test_default_runs_are_equal(scans, arguments):
    first = bits_of(scans / "first", arguments, scans / "cache")
    assert bits_of(scans / "again", arguments, scans / "cache") == first
    assert bits_of(scans / "anew", arguments, scans / "empty cache") == first


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be taken away")
def test_deterministic_runs_are_equal_on_fewer_cores(scans):
    arguments = [*DEMO, "--deterministic", "--width", "1"]
    every = bits_of(scans / "every", arguments, scans / "cache")
    cores = {min(os.sched_getaffinity(0))}
    assert bits_of(scans / "one", arguments, scans / "other", cores) == every
