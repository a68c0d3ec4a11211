"""A few trials of each part of the campaign, others with each day."""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from campaign import kills, poison, problems

RUN = Path(__file__).with_name("run.py")
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


def test_a_trial_depends_on_its_seed_and_number_alone():
    for part in (kills, problems, poison):
        assert part.draw(3, 17) == part.draw(3, 17) != part.draw(4, 17)
    assert {tuple(poison.draw(5, n).values()) for n in range(poison.WHOLE)} == set(poison.CASES)
