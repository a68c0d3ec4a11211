"""A folder belongs to one run: a second run never uses the first one's weights."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from cli.run_results import interrupted
from cli.small_network import small
from voxax.cli import learning, main
from voxax.cli.demo import _Run
from voxax.cli.run_folder import _FILES, check_space, claim_folder, remove_run
from voxax.cli.run_lock import locks_released
from voxax.cli.segmentation_task import Segmentation
from voxax.errors import FileFormatError, InputError, WorkerError
from voxax.models.checkpoint import load_description, newest_step, save_checkpoint, steps_of
from voxax.models.training import Trainer


@pytest.fixture
def demo(tmp_path, rng, monkeypatch):
    """``voxax demo`` of a small network on a small scan, without pictures."""
    monkeypatch.setattr(Segmentation, "model", small)
    monkeypatch.setattr(_Run, "_pictures", lambda self: None)
    plan = rng.uniform(0, 40, (2000, 2))
    scan = tmp_path / "a scan.npz"
    np.savez(scan, xyz=np.column_stack([plan, np.zeros(2000)]), label=(plan[:, 0] > 20) + 1)
    usual = ["--input", str(scan), "--workers", "0", "--out", str(tmp_path / "run")]
    return lambda *more, size="1.0": main(["demo", *usual, "--voxel-size", size, *more])


@pytest.mark.lax_promotion  # optax promotes step counts
def test_a_run_owns_its_folder(demo, tmp_path, capsys):
    run = tmp_path / "run"
    assert demo("--steps", "3") == 0
    assert demo("--steps", "3") == demo("--steps", "2") == 2
    assert "holds a run already, up to step 3: give --resume" in capsys.readouterr().err
    assert demo("--resume", "--steps", "4", size="0.5") == 2
    said = "has voxel_size = 1.0, --voxel-size is 0.5"
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert demo("--resume", "--steps", "4", "--width", "3") == 2
    assert "width = 1.0, --width is 3.0" in capsys.readouterr().err.replace("\n", " ")
    assert steps_of(run / "checkpoint") == [3]

    with interrupted(Trainer, 1):
        assert demo("--overwrite", "--steps", "2", "--seed", "7") == 130
    told = capsys.readouterr().out
    assert "--resume" in told
    assert f"--input '{tmp_path}/a scan.npz'" in told
    assert all(f" {option}" in told for option in ("--seed 7", "--steps 2", "--voxel-size 1.0"))
    assert "--overwrite" not in told
    # The larger step of the run before is gone.
    assert steps_of(run / "checkpoint") == [1]
    assert not (run / "metrics.json").exists()


@pytest.mark.lax_promotion  # optax promotes step counts
def test_a_first_save_that_was_killed_leaves_a_folder_that_works(demo, tmp_path, capsys):
    run = tmp_path / "run"
    (run / "checkpoint" / "2.orbax-checkpoint-tmp").mkdir(parents=True)
    assert demo("--resume", "--steps", "2") == 0
    assert "holds no whole step: the run begins anew" in capsys.readouterr().out
    assert json.loads((run / "metrics.json").read_text())["steps"] == 2
    shutil.rmtree(run / "checkpoint" / "2")
    (run / "checkpoint" / "2.orbax-checkpoint-tmp").mkdir()
    assert not claim_folder(run, resume=False, overwrite=False)


@pytest.mark.lax_promotion  # optax promotes step counts
def test_a_run_that_loses_its_workers_keeps_its_steps(demo, tmp_path, capsys, monkeypatch):
    taken = []

    def step(self):
        taken.append(self)
        if len(taken) == 4:
            raise WorkerError("a worker process was killed")

    monkeypatch.setattr(learning.Trace, "step", step)
    assert demo("--steps", "9") == 2
    assert "a worker process was killed" in capsys.readouterr().err
    assert newest_step(tmp_path / "run" / "checkpoint") == 3


HOLDER = """
import sys
from pathlib import Path
from voxax.cli.run_lock import lock_folder
lock_folder(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_in_which_another_process_trains_is_refused(options, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    asked = {"resume": False, "overwrite": False} | options
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(InputError, match=r"another process trains in .*--out"):
            claim_folder(tmp_path, **asked)
        other.kill()
    with locks_released():
        claim_folder(tmp_path, **asked)


def test_folders_that_cannot_be_written_to_are_refused_at_once(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below"):
        with pytest.raises(InputError, match="file is in its place"):
            claim_folder(folder, resume=False, overwrite=False)
    for name, message in (("checkpoint", "file is in its place"), ("losses.csv", "is a folder")):
        place = tmp_path / f"run with {name}" / name
        place.parent.mkdir()
        place.touch() if name == "checkpoint" else place.mkdir()
        with pytest.raises(InputError, match=message):
            claim_folder(place.parent, resume=False, overwrite=False)
    with pytest.raises(InputError, match=r"/proc/run cannot be written to \(.*\): give another"):
        claim_folder(type(file)("/proc/run"), resume=False, overwrite=False)
    with pytest.raises(FileFormatError, match="no run to resume, leave --resume out"):
        claim_folder(tmp_path, resume=True, overwrite=False)
    with pytest.raises(InputError, match="give one of them"):
        claim_folder(tmp_path, resume=True, overwrite=True)
    disk = shutil.disk_usage(tmp_path)._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: disk)
    with pytest.raises(InputError, match="has 1 MB free, and checkpoints take 3 MB"):
        check_space(tmp_path, {"a": np.zeros(2**20 + 1, np.uint8)})


def with_a_run(folder, files):
    for step in ("1", "2"):
        for item in ("default", "description"):
            (folder / "checkpoint" / step / item).mkdir(parents=True)
            (folder / "checkpoint" / step / item / "metadata").touch()
    for name in files:
        (folder / name).touch()


def test_a_removal_that_ends_anywhere_leaves_a_whole_run_or_none(tmp_path, monkeypatch):
    """Also where it is killed, which nothing can wait for."""
    for place in range(100):
        folder = tmp_path / str(place)
        with_a_run(folder, [*_FILES, "of the user"])
        whole = sorted(folder.rglob("*"))
        with monkeypatch.context() as patch:
            calls = []

            def counted(call, calls=calls, place=place):
                def change(*arguments, **options):
                    if len(calls) == place:
                        raise KeyboardInterrupt
                    calls.append(call)
                    return call(*arguments, **options)

                return change

            for name in ("mkdir", "rename", "rmdir", "unlink"):
                patch.setattr(os, name, counted(getattr(os, name)))
            try:
                remove_run(folder)
            except KeyboardInterrupt:
                pass
            else:
                break
        if sorted(folder.rglob("*")) == whole:
            assert claim_folder(folder, resume=True, overwrite=False)
            continue
        assert steps_of(folder / "checkpoint") == []
        assert not claim_folder(folder, resume=False, overwrite=False)
        assert [path.name for path in folder.iterdir()] == ["of the user"]
    assert place > len(_FILES) + 10
    assert [path.name for path in folder.iterdir()] == ["of the user"]


def test_a_folder_without_checkpoint_and_a_linked_one_are_removed(tmp_path):
    (tmp_path / "losses.csv").touch()
    remove_run(tmp_path)
    assert not list(tmp_path.iterdir())
    with_a_run(tmp_path / "elsewhere", [])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "elsewhere" / "checkpoint")
    remove_run(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())
    assert steps_of(tmp_path / "elsewhere" / "checkpoint") == [2, 1]


def test_steps_ascend(tmp_path):
    save_checkpoint(tmp_path, {"a": np.zeros(3)}, {"name": "first"}, 5)
    for step in (5, 4):
        with pytest.raises(InputError, match=f"step {step} cannot be saved .* holds step 5"):
            save_checkpoint(tmp_path, {"a": np.zeros(3)}, {"name": "second"}, step)
    assert load_description(tmp_path) == {"name": "first"}
