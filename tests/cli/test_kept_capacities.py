"""A resumed run, and the commands that read its checkpoint, take the capacities of the run."""

import json

import pytest

from voxax.cli import demo as demo_module
from voxax.cli import learning
from voxax.geometry import Plan
from voxax.geometry.level_fit import Fit
from voxax.models.checkpoint import load_description, newest_step

pytestmark = pytest.mark.lax_promotion  # optax promotes step counts


@pytest.fixture
def plans(monkeypatch):
    """Each plan that a run was prepared with."""
    found, prepare = [], learning.Learning._prepare_with

    def noted(self, plan):
        found.append(plan)
        prepare(self, plan)

    monkeypatch.setattr(learning.Learning, "_prepare_with", noted)
    return found


def test_a_resumed_run_takes_the_capacities_of_its_checkpoint(demo, plans, tmp_path, monkeypatch):
    assert demo("--steps", "2") == 0
    kept = load_description(tmp_path / "run" / "checkpoint")["capacities"]
    (first,) = plans
    assert first.on_ladder
    assert Fit.from_json(kept) == first.fit
    before = (tmp_path / "run" / "losses.csv").read_text()

    def refused(self, samples, margin):
        raise AssertionError("fitted anew")

    monkeypatch.setattr(Plan, "fitted", refused)
    monkeypatch.setattr(demo_module, "SAVE_EVERY", 100)
    assert demo("--steps", "4", "--resume") == 0
    assert plans[1].fit == first.fit
    assert (tmp_path / "run" / "losses.csv").read_text().startswith(before)
    assert load_description(tmp_path / "run" / "checkpoint")["capacities"] == kept


def test_broken_capacities_end_a_resumed_run(demo, tmp_path, capsys):
    assert demo("--steps", "2") == 0
    checkpoint = tmp_path / "run" / "checkpoint"
    description = load_description(checkpoint) | {"capacities": {"levels": 3}}
    step = checkpoint / str(newest_step(checkpoint))
    (step / "description" / "metadata").write_text(json.dumps(description))
    for sums in (step / "checksums").rglob("*"):
        if sums.is_file():
            sums.write_text("{}")
    assert demo("--steps", "4", "--resume") == 2
    assert "has other capacities: no capacities of levels" in capsys.readouterr().err
