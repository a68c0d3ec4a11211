"""Several processes over loopback train as one device does, and after one was killed."""

import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from parallel import jobs
from voxax.models.checkpoint import load_arrays, newest_step
from voxax.models.training import Trainer

pytestmark = pytest.mark.slow

WORKER = """
import json, sys
from parallel import jobs
print(json.dumps(getattr(jobs, sys.argv[1])(*json.loads(sys.argv[2]))))
"""
DETECTED_WITHIN = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def python(*arguments, folder):
    environment = {
        **{k: v for k, v in os.environ.items() if "proxy" not in k.lower()},
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "JAX_PLATFORMS": "cpu",
        "VOXAX_AUTOTUNE": "off",
    }
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
    )


def start(processes, folder, *options, function="work"):
    port = free_port()
    given = [
        json.dumps([number, processes, port, str(folder), *options]) for number in range(processes)
    ]
    return [python("-c", WORKER, function, arguments, folder=folder) for arguments in given]


def finish(job):
    """Return the output of each process."""
    try:
        ends = [process.communicate(timeout=240) for process in job]
    finally:
        for process in job:
            process.kill()
    for process, (_, problems) in zip(job, ends, strict=True):
        assert process.returncode == 0, problems
    return [output.strip().splitlines() for output, _ in ends]


def losses(lines):
    return {int(step): loss for step, loss in json.loads(lines[-1]).items()}


@pytest.fixture(scope="module")
def single():
    """The loss curve of one device that has all scenes in one batch."""
    (voxels, labels) = jobs.sharded(*jobs.scenes_of(), 1)
    trainer = Trainer(jobs.small(), jobs.optimizer())
    batch = jobs.first(voxels), labels[0]
    return [float(trainer.step(*batch)[0]) for _ in range(jobs.STEPS)]


@pytest.mark.parametrize("processes", [2, 4])
def test_loss_curve(processes, single, tmp_path):
    curves = [losses(lines) for lines in finish(start(processes, tmp_path, jobs.STEPS))]
    assert all(curve == curves[0] for curve in curves)
    np.testing.assert_allclose([curves[0][k] for k in range(jobs.STEPS)], single, rtol=1e-5)


@pytest.mark.parametrize("restarted", [2, 1])
def test_a_killed_process_is_noticed_and_the_job_goes_on(restarted, single, tmp_path):
    """Check that the job continues, also on half the devices."""
    job = start(2, tmp_path, jobs.STEPS, 10)
    try:
        job[1].wait(timeout=240)
        begin = time.monotonic()
        job[0].wait(timeout=DETECTED_WITHIN)
        assert time.monotonic() - begin < DETECTED_WITHIN
        assert job[0].returncode != 0
    finally:
        for process in job:
            process.kill()
            process.communicate()
    curves = [losses(lines) for lines in finish(start(restarted, tmp_path, jobs.STEPS))]
    assert min(curves[0]) == 8, "the newest checkpoint is that of 8 steps"
    np.testing.assert_allclose([curves[0][k] for k in range(8, jobs.STEPS)], single[8:], rtol=1e-5)


def change_a_number(step, like):
    """Change one byte of a number, which orbax does not notice."""
    for path in sorted((step / "default").glob("ocdbt.process_*/d/*")):
        before = path.read_bytes()
        changed = bytearray(before)
        changed[len(changed) // 2] ^= 8
        path.write_bytes(changed)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            load_arrays(step.parent, like)
        if any("its checksum differs" in str(w.message) for w in told):
            return
        path.write_bytes(before)
    raise AssertionError("no change was noticed")


@pytest.mark.parametrize("fault", ["a byte", "a process"])
def test_a_step_that_one_process_cannot_read_is_taken_by_none(fault, tmp_path):
    """All fall back to the same step, say so, and save on from there."""
    finish(start(2, tmp_path, 8))
    like = Trainer(jobs.small(), jobs.optimizer()).tree()
    shutil.copytree(tmp_path / "4", tmp_path / "before" / "4")
    expected = load_arrays(tmp_path / "before", like)
    blind = 1 if fault == "a process" else None
    if blind is None:
        change_a_number(tmp_path / "8", like)
    ends = [json.loads(x[-1]) for x in finish(start(2, tmp_path, blind, function="load_again"))]
    for process, end in enumerate(ends):
        assert (end["step"], end["left"]) == (4, [4])
        assert end["sums"] == jobs.sums_of(expected)
        (said,) = end["said"]
        why = {None: "its checksum differs", 0: "by another", 1: os.strerror(errno.EIO)}
        assert re.search(rf"step 8 of .*({why[blind and process]}).*; step 4 is taken", said)
    assert newest_step(tmp_path) == 8
    assert jobs.sums_of(load_arrays(tmp_path, like)) == jobs.sums_of(expected)


@pytest.mark.parametrize(("processes", "network"), [(2, "mink"), (4, "small")])
def test_a_scene_over_processes(processes, network, tmp_path):
    """Each has a piece, and borrows from the others what its layers read."""
    job = start(processes, tmp_path, network, 600, 3, function="work_on_pieces")
    curves = [json.loads(lines[-1]) for lines in finish(job)]
    assert all(curve == curves[0] for curve in curves)
    build = {"mink": jobs.mink, "small": jobs.small}[network]
    (scene, labels), _ = jobs.pieces_of(1, build, 600)
    trainer = Trainer(build(), jobs.optimizer())
    single = [float(trainer.step(scene, labels)[0])]
    with np.load(tmp_path / "gradient.npz") as stored:
        jobs.close([stored[name] for name in stored.files], jobs.gradient_of(trainer), 1e-5)
    single += [float(trainer.step(scene, labels)[0]) for _ in range(2)]
    np.testing.assert_allclose(curves[0], single, rtol=1e-5)


def test_the_example_on_two_hosts_is_that_on_one(tmp_path):
    script = str(Path(__file__).resolve().parents[2] / "examples" / "several_hosts.py")
    curves = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        common = [script, "--address", f"127.0.0.1:{free_port()}", "--processes", str(processes)]
        given = [[*common, "--process", str(k)] for k in range(processes)]
        job = [python(*arguments, folder=folder) for arguments in given]
        # Gloo, through which processes talk on CPUs, prints lines of its own.
        steps = [[x for x in lines if re.fullmatch(r"\d+ [\d.e-]+", x)] for lines in finish(job)]
        curves += [[float(line.split()[1]) for line in lines] for lines in steps]
    assert len(curves[0]) == 6
    assert curves[1] == curves[2]
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-3)
