"""A small run of the command line."""

import numpy as np
import pytest

from cli.small_network import small
from voxax.cli import main
from voxax.cli.demo import _Run
from voxax.cli.segmentation_task import Segmentation


@pytest.fixture
def demo(tmp_path, rng, monkeypatch):
    """``voxax demo`` of a small network on a small scan, which saves after every step."""
    monkeypatch.setattr(Segmentation, "model", small)
    monkeypatch.setattr(_Run, "_pictures", lambda self: None)
    monkeypatch.setattr("voxax.cli.demo.SAVE_EVERY", 1)
    plan = rng.uniform(0, 40, (2000, 2))
    scan = tmp_path / "scan.npz"
    np.savez(scan, xyz=np.column_stack([plan, np.zeros(2000)]), label=(plan[:, 0] > 20) + 1)
    usual = ["--input", str(scan), "--workers", "0", "--out", str(tmp_path / "run")]
    return lambda *more: main(["demo", *usual, "--voxel-size", "1.0", *more])
