"""Saves that something ends: Ctrl-C, a full disk, a step that cannot be read any more."""

import contextlib
import gc
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from voxax.cli import learning, process
from voxax.cli.run_folder import claim_folder
from voxax.models.checkpoint import load_arrays, load_description, save_checkpoint, steps_of

pytestmark = [
    pytest.mark.lax_promotion,  # optax promotes step counts
    pytest.mark.usefixtures("takes_ctrl_c"),
]


def with_save(monkeypatch, number, around):
    """Let the save of that number be called by ``around(save)``."""
    calls = []

    def save(*arguments):
        calls.append(arguments[-1])
        if len(calls) == number:
            return around(lambda: save_checkpoint(*arguments))
        return save_checkpoint(*arguments)

    monkeypatch.setattr(learning, "save_checkpoint", save)
    return calls


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def before(save):
    interrupt()
    interrupt()  # twice: whoever waits presses again
    return save()


def inside(save):
    timers = [threading.Timer(seconds, interrupt) for seconds in (0.005, 0.02, 0.05)]
    for timer in timers:
        timer.start()
    try:
        return save()
    finally:
        for timer in timers:
            timer.join()


def behind(save):
    saved = save()
    interrupt()
    return saved


@pytest.mark.parametrize("moment", [before, inside, behind])
def test_an_interrupted_save_is_whole(demo, tmp_path, capsys, monkeypatch, moment):
    calls = with_save(monkeypatch, 2, moment)
    assert demo("--steps", "4") == 130
    told = capsys.readouterr()
    assert told.err == ""
    assert "interrupted at step 2" in told.out
    assert calls == [1, 2]
    checkpoint = tmp_path / "run" / "checkpoint"
    assert steps_of(checkpoint) == [2, 1]
    assert load_description(checkpoint)["step"] == 2
    assert not [path for path in checkpoint.iterdir() if "tmp" in path.name]
    assert demo("--steps", "4", "--resume") == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"] == 4


def test_an_interrupt_before_the_first_step_leaves_no_run(demo, tmp_path, capsys):
    from cli.run_results import interrupted  # not where this file is a command of its own
    from voxax.models.training import Trainer

    with interrupted(Trainer, 0):
        assert demo("--steps", "2") == 130
    assert "interrupted before the first step, so nothing was saved" in capsys.readouterr().out
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert demo("--steps", "2") == 0  # and no --resume or --overwrite is needed


def test_an_interrupted_last_save_is_whole(demo, tmp_path, capsys, monkeypatch):
    with_save(monkeypatch, 3, inside)
    assert demo("--steps", "3") == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert steps_of(tmp_path / "run" / "checkpoint") == [3, 2]


@contextlib.contextmanager
def full_disk():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def full(save):
    with full_disk():
        return save()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of tensorstore
def test_a_disk_that_is_full_keeps_the_steps_before(demo, tmp_path, capsys, monkeypatch):
    with_save(monkeypatch, 2, full)
    assert demo("--steps", "4") == 2
    error = capsys.readouterr().err
    assert error.startswith("voxax: step 2 was not saved to ")
    assert error.endswith(": File too large. Free some space, and go on with --resume\n")
    assert error.count("\n") == 1
    assert steps_of(tmp_path / "run" / "checkpoint") == [1]
    monkeypatch.setattr(learning, "save_checkpoint", save_checkpoint)
    assert demo("--steps", "3", "--resume") == 0
    assert steps_of(tmp_path / "run" / "checkpoint") == [3, 2]


def test_a_first_save_that_ends_at_once_can_be_resumed(demo, tmp_path, monkeypatch):
    def killed(*arguments):
        raise SystemExit

    monkeypatch.setattr(learning, "write_atomically", killed)
    with pytest.raises(SystemExit):
        demo("--steps", "2")
    for resume in (True, False):
        assert not claim_folder(tmp_path / "run", resume=resume, overwrite=False)


def test_losses_that_are_something_else_are_left_out(tmp_path):
    path = tmp_path / "losses.csv"
    path.write_text("step,loss\n0,1.5\nx,2\n1,nan\n,\n" + "9" * 5000 + ",1\n2,0.5\n")
    assert learning._losses_before(path, 2) == ["0,1.5", "1,nan"]
    path.write_bytes(b"\xff\x00")
    assert learning._losses_before(path, 2) == []


def test_a_step_that_cannot_be_read_prints_nothing_but_the_warning(tmp_path, monkeypatch, caplog):
    """orbax and tensorstore tell each failure again, some after the error was caught."""
    told, log = [], logging.getLogger("asyncio")
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(found.exc_value))
    level = log.level
    process.drop_late_reports.__wrapped__()
    values = {str(number): np.full(40, number) for number in range(20)}
    try:
        for step in (1, 2):
            save_checkpoint(tmp_path, values, {}, step)
        for path in (tmp_path / "2" / "default" / "d").iterdir():
            path.write_bytes(bytes(len(path.read_bytes())))
        with pytest.warns(UserWarning, match="step 2 of .* cannot be read: .*; step 1 is taken"):
            load_arrays(tmp_path, values)
        gc.collect()
        time.sleep(0.2)  # for callbacks of other threads
    finally:
        log.setLevel(level)
    assert told == []
    assert caplog.records == []
    ours = ValueError("ours")
    sys.unraisablehook(SimpleNamespace(exc_value=ours))
    assert told == [ours]


def test_a_broken_step_is_passed_over_aloud(demo, tmp_path):
    checkpoint = tmp_path / "run" / "checkpoint"
    assert demo("--steps", "3") == 0
    shutil.rmtree(checkpoint / "3" / "default")
    with pytest.warns(UserWarning, match="step 3 of .* cannot be read: .*; step 2 is taken"):
        assert demo("--steps", "4", "--resume") == 0
    assert steps_of(checkpoint) == [4, 3]


def interrupted_saves(folder):
    """Save twelve steps without the command line, each with a Ctrl-C at another moment."""

    def tree(step):
        return {"a": np.full((64, 64), float(step)), "steps": np.asarray(step)}

    signal.signal(signal.SIGINT, signal.default_int_handler)
    save_checkpoint(folder, tree(1), {"step": 1}, 1)
    newest, given_up = 1, 0
    for seconds in np.linspace(0.001, 0.06, 12):
        timer = threading.Timer(seconds, interrupt)
        step = newest + 1
        try:
            timer.start()  # on a busy machine it interrupts its own start
            save_checkpoint(folder, tree(step), {"step": step}, step)
            timer.join()
            time.sleep(0.01)  # for the signal
        except (KeyboardInterrupt, OSError) as error:
            # An interrupted shutil.rmtree closes a folder twice, and OSError comes of the second.
            if KeyboardInterrupt not in (type(error), type(error.__context__)):
                raise
            given_up += steps_of(folder)[0] < step
        assert steps_of(folder)[0] in (newest, step)
        newest = steps_of(folder)[0]
        assert load_description(folder) == {"step": newest}
        found = load_arrays(folder, tree(0))
        assert int(found["steps"]) == newest
        assert (found["a"] == newest).all()
    assert given_up


def test_saves_that_are_interrupted_leave_the_steps_before(tmp_path):
    """Each save is whole or given up, wherever Ctrl-C comes; it is sent to a process of its own."""
    command = [sys.executable, __file__, tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("error", [MemoryError("no"), OSError(24, "Too many open files")])
def test_a_step_that_may_be_whole_is_not_passed_over(tmp_path, monkeypatch, error):
    tree = {"a": np.zeros(8)}
    for step in (1, 2):
        save_checkpoint(tmp_path, tree, {}, step)

    def failing(self, *arguments, **options):
        raise error

    monkeypatch.setattr("voxax.models.checkpoint.check_same_arrays", failing)
    with pytest.raises(type(error)):
        load_arrays(tmp_path, tree)
    assert steps_of(tmp_path) == [2, 1]


if __name__ == "__main__":
    interrupted_saves(Path(sys.argv[1]))
