"""A few trials of each part of the campaign, others with each day."""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from campaign import kills, poison, problems
from campaign.run import outcomes, run_part

RUN = Path(__file__).with_name("run.py")
LEARNS = {"command": "train", "start": "fresh", "workers": 0, "moment": 0.5, "overwrites": False}
# Trials that each notice a fault of tests/mutation; without one they pass.
NAMED = {
    "an export is killed": (
        "kills",
        {"command": "export", "start": "overwrite", "workers": 0, "signal": "SIGKILL"}
        | {"plan": {"kind": "change", "at": 1}, "moment": 0.5},
    ),
    "the first save is killed": (
        "kills",
        LEARNS | {"signal": "SIGKILL", "plan": {"kind": "save", "save": 0, "at": 0.05}},
    ),
    "a save is interrupted": (
        "kills",
        LEARNS | {"signal": "SIGINT", "plan": {"kind": "save", "save": 0, "at": 0.02}},
    ),
    "workers and their parent get SIGTERM": (
        "kills",
        LEARNS
        | {"workers": 1, "signal": "SIGTERM"}
        | {"plan": {"kind": "save", "save": 0, "at": 0.02}},
    ),
    "a terminal closes": (
        "kills",
        LEARNS
        | {"workers": 1, "signal": "SIGHUP"}
        | {"plan": {"kind": "save", "save": 1, "at": 0.0}},
    ),
    "a parent of workers is killed": (
        "kills",
        LEARNS
        | {"workers": 1, "signal": "SIGKILL"}
        | {"plan": {"kind": "save", "save": 0, "at": 0.05}},
    ),
    "a file claims too much": ("files", {"kind": "reader", "name": "binary.stl", "changes": 13}),
    "a face names other vertices": ("files", {"kind": "reader", "name": "mesh.off", "changes": 27}),
}
TRIALS = {"kills": 2, "files": 100, "problems": 20, "poison": 4}


def run(*arguments):
    # Of this process alone: pytest's settings, and a folder for programs, would reach the victims.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, RUN, *map(str, arguments)], capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", TRIALS)
def test_trials_of_the_day(part, tmp_path):
    seed = datetime.date.today().toordinal()
    arguments = ("--part", part, "--seed", seed, "--count", TRIALS[part])
    found = run(*arguments, "--folder", tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(TRIALS[part]))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_named_trial(name, tmp_path):
    part, trial = NAMED[name]
    path = tmp_path / "trial.json"
    path.write_text(json.dumps({"part": part, "seed": 0, "number": 0, "trial": trial}))
    found = run("--replay", path, "--folder", tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr


CHILD = r"""
import json, pathlib, sys
_, part, seed, folder, number = sys.argv[1:]
tried = {"part": part, "seed": int(seed), "number": int(number), "trial": {}}
(pathlib.Path(folder) / f"now-{part}.json").write_text(json.dumps(tried))
sys.stderr.buffer.write(b"the file \xff\xfe is broken")
sys.exit(3)
"""


def test_bytes_that_are_no_text_do_not_end_the_campaign(tmp_path, monkeypatch):
    """A child prints the name of a broken file, say, and ends."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    monkeypatch.setattr("campaign.run.__file__", str(script))
    run_part("files", 0, [7], 60, tmp_path)
    (line,) = outcomes(tmp_path)
    assert line["number"] == 7
    assert line["failure"] == "the process ended with 3: the file \ufffd\ufffd is broken"


def test_a_trial_depends_on_its_seed_and_number_alone():
    for part in (kills, problems, poison):
        assert part.draw(3, 17) == part.draw(3, 17) != part.draw(4, 17)
    assert {tuple(poison.draw(5, n).values()) for n in range(poison.WHOLE)} == set(poison.CASES)
