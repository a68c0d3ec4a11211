"""What commands show while they work, on a terminal and without one."""

import time
from pathlib import Path

import pytest

from voxax.cli import progress
from voxax.cli.progress import phase, result_table, training_bar, working


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.02)


def test_without_a_terminal_a_line_comes_regularly(capsys):
    with working("compiling"):
        time.sleep(0.1)
    first, *more = capsys.readouterr().out.splitlines()
    assert first == "compiling"
    assert len(more) > 1
    assert set(more) == {"compiling: 0 s so far"}


def test_where_the_output_is_read_they_go_to_the_other_stream(capsys):
    with working("compiling", begin=False):
        pass
    told = capsys.readouterr()
    assert told.out == told.err == ""
    with working("compiling", begin=False):
        time.sleep(0.1)
    told = capsys.readouterr()
    assert told.out == ""
    assert "compiling: 0 s so far\n" in told.err


def test_phases_are_timed_and_told(capsys):
    seconds = {}
    with phase("plan", seconds):
        time.sleep(0.1)
    assert seconds["plan"] >= 0.1
    assert "so far" in capsys.readouterr().out


def test_training_without_a_terminal_tells_its_state(capsys):
    with training_bar(10, 2) as bar:
        bar.update(0.5, "accuracy 0.9", 1)
        time.sleep(0.1)
    assert (
        "training: 3 of 10 steps, 0 s so far  loss 0.500  accuracy 0.9" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("task", "command"),
    [("detect", "detect FILE --checkpoint {}"), ("classify", "evaluate {} DATA")],
)
def test_the_next_command_is_for_the_shell(task, command, capsys):
    metrics = {"task": task, "steps": 1, "programs_compiled": 1, "voxels_dropped": 0}
    quoted = "'my [b]runs/checkpoint'"
    result_table("", ["a"], [], {**metrics, "seconds": {"total": 1}}, Path("my [b]runs"))
    assert f"next: voxax {command.format(quoted)}" in capsys.readouterr().out


def test_an_error_ends_the_lines(capsys):
    with pytest.raises(ValueError, match="wrong"), working("compiling"):
        raise ValueError("wrong")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().out == ""
