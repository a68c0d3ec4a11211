"""Ctrl-C in a command waits for the end of a step, and is never lost."""

import gc
import signal
import sys
import time
import weakref
from types import SimpleNamespace

import pytest

from voxax import _interrupts
from voxax.cli import learning, main, run_folder
from voxax.models.checkpoint import steps_of

pytestmark = [
    pytest.mark.lax_promotion,  # optax promotes step counts
    pytest.mark.usefixtures("takes_ctrl_c"),
]


def interrupt(*_):
    signal.raise_signal(signal.SIGINT)


def test_an_interruption_waits_for_the_end_of_a_step():
    """Halfway through, the old parameters are gone and the new ones are not there."""
    done = []

    def step():
        with _interrupts.uninterrupted():
            interrupt()
            done.append("the rest of the step")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interruption_waits_for_the_end_of_a_removal(tmp_path, monkeypatch):
    """Of the run before, which --overwrite deletes."""
    for name in ("checkpoint/3/default/_METADATA", "losses.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    remove = run_folder.shutil.rmtree

    def interrupted(*arguments):
        interrupt()
        interrupt()
        remove(*arguments)

    monkeypatch.setattr(run_folder.shutil, "rmtree", interrupted)
    run = SimpleNamespace(_overwrites=True, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        learning.Learning.train(run, None, [], 1, save_every=1)
    assert not list(tmp_path.iterdir())


def in_garbage_collection():
    gc.callbacks.append(interrupt)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(interrupt)


class Ended:
    def __del__(self):
        interrupt()


def in_a_finalizer():
    Ended()


def in_a_weak_reference():
    value = {1}
    kept = weakref.ref(value, interrupt)
    del value
    return kept


PLACES = [in_garbage_collection, in_a_finalizer, in_a_weak_reference]


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_that_python_drops_is_raised_again(place):
    def wait(seconds):
        with _interrupts.never_dropped():
            place()
            time.sleep(seconds)

    for seconds in (30, 0):  # it ends the block, or the block ends first
        with pytest.raises(KeyboardInterrupt):
            wait(seconds)
    time.sleep(3 * _interrupts._MOMENT)  # once alone


def test_other_errors_that_python_drops_are_told_as_before(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(found.exc_type))
    hook = sys.unraisablehook

    class Broken:
        def __del__(self):
            raise ValueError

    with _interrupts.never_dropped():
        Broken()
    assert told == [ValueError]
    assert sys.unraisablehook is hook


@pytest.mark.parametrize("place", PLACES)
def test_a_run_ends_although_python_drops_it(demo, tmp_path, capsys, monkeypatch, place):
    taken = []

    def step(self):
        taken.append(self)
        if len(taken) == 3:
            place()

    monkeypatch.setattr(learning.Trace, "step", step)
    assert demo("--steps", "2000") == 130
    told = capsys.readouterr()
    assert told.err == ""
    assert "continue with" in told.out
    newest, *_ = steps_of(tmp_path / "run" / "checkpoint")
    assert 2 <= newest < 2000
    assert demo("--steps", str(newest + 1), "--resume") == 0


def test_a_command_that_ends_first_says_that_it_was_interrupted(capsys, monkeypatch):
    def run(words):
        in_garbage_collection()
        return 0

    monkeypatch.setattr("voxax.cli._run", run)
    assert main(["hardware"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
