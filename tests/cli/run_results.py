"""Runs of training that are interrupted, and what a run leaves in its folder."""

import contextlib
import csv
from pathlib import Path

import pytest


def losses(out):
    """The losses of its steps, which follow each other from 0."""
    with Path(out, "losses.csv").open() as lines:
        rows = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(lines)]
    assert [step for step, _ in rows] == list(range(len(rows)))
    return [loss for _, loss in rows]


@contextlib.contextmanager
def interrupted(trainer, steps):
    """Inside, a trainer of this class is interrupted where it has taken ``steps`` steps."""
    step = trainer.step

    def stop(self, *arguments):
        if self.steps == steps:  # a checkpoint has just been written
            raise KeyboardInterrupt
        return step(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "step", stop)
        yield
