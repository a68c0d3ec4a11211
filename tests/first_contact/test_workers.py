"""Processes that prepare scenes leave the TPUs to the process that trains: each has one owner."""

import dataclasses
import os
import pickle
import subprocess
import sys

import pytest

from voxax.cli.demo_kinds import KINDS
from voxax.cli.scenes import MakeTask, Prepare, run
from voxax.geometry import Plan

# To start its backend would be an error there: the process has no such TPU.
WORKER = """
import pickle, sys
for made in map(pickle.loads, pickle.load(sys.stdin.buffer)):
    example = made()
    print(type(getattr(example, "voxels", example)).__name__)
from voxax.hardware import describe
try:
    describe()
except Exception as error:
    print("no backend:", type(error).__name__)
"""


@pytest.mark.parametrize("name", sorted(KINDS))
def test_workers_start_no_backend(name):
    """Streets are simulated, voxelized, planned and packed for eight chips there."""
    kind = KINDS[name](scenes=1)
    streets = kind.streets(0)
    scene = run(streets.train[0])
    task = kind.task([scene], streets.class_names, 0.5)
    shards = 8
    draft = Prepare(scene, task.preparation(), 0, None)()
    plan = Plan.record(task.model(), draft.voxels).fitted([draft.voxels], 1.3)
    preparation = dataclasses.replace(task.preparation(), plan=plan)
    equal = task.shares_equally(task.network)
    step = MakeTask(preparation, shards, shards, task.augmentation(), equal)
    tasks = streets.train[0], step((scene,) * shards, tuple(range(shards)))
    found = subprocess.run(
        [sys.executable, "-c", WORKER], input=pickle.dumps([pickle.dumps(t) for t in tasks]),
        capture_output=True, env=os.environ | {"JAX_PLATFORMS": "tpu"}, timeout=300,
    )  # fmt: skip
    told = found.stdout.decode()
    assert found.returncode == 0, found.stderr.decode()
    assert told.splitlines()[1:] == ["Voxels", "no backend: RuntimeError"]
