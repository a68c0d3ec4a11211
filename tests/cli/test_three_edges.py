"""Voxels of three edges, from the configuration to the commands that take a run's checkpoint."""

import json

import numpy as np
import pytest

from cli.small_network import small
from cli.test_train_classify import shapes
from cli.test_train_command import kitti, losses
from cli.test_train_detect import kitti as boxes
from voxax.cli import main
from voxax.cli.classification_task import ClassPreparation
from voxax.cli.detection_task import BoxPreparation
from voxax.cli.segmentation_task import Segmentation
from voxax.cli.tasks import task_of
from voxax.detection import Objects
from voxax.errors import InputError
from voxax.io import PointCloud
from voxax.io.annotated import AnnotatedScan
from voxax.io.examples import Preparation
from voxax.io.mean_features import MeanFeatures

EDGES = (0.5, 0.5, 0.25)
TASK = {"class_names": ("a", "b"), "width": 0.25, "learning_rate": 1e-3, "steps": 4}


def cloud(rng, labels=None):
    """Odd multiples of 1/128: exact, and never on a face."""
    positions = (rng.integers(-256, 256, (300, 3)) + 0.5) / 64
    return PointCloud(positions, {"intensity": rng.random(300)}, labels)


@pytest.mark.parametrize(
    ("preparation", "corner"),
    [
        (Preparation(EDGES), (0, 0, 0)),
        (ClassPreparation(EDGES), (0, 0, 0)),
        (MeanFeatures(EDGES), None),
        (BoxPreparation(("a",), EDGES, (-4.0, -4.0, -4.0), (4.0, 4.0, 4.0)), (-4, -4, -4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_cells(preparation, corner, rng):
    scan = cloud(rng, np.zeros(300, np.int32))
    given = scan
    if isinstance(preparation, BoxPreparation):
        given = AnnotatedScan(scan, Objects(np.zeros((0, 7)), np.zeros(0, str)), None)
    voxels = preparation(given).voxels
    cells = np.floor((scan.positions - (corner or (0, 0, 0))) / EDGES).astype(int)
    if corner is None:  # begins near the points
        cells -= cells.min(axis=0)
    expected = np.unique(cells, axis=0)
    np.testing.assert_array_equal(np.unique(voxels.valid_coords()[:, 1:], axis=0), expected)
    if isinstance(preparation, Preparation):
        offsets = np.asarray(voxels.valid_features())[:, 2:]
        assert np.abs(offsets).max() <= 1
        one = voxels.valid_coords()[0, 1:]
        own = (cells == one).all(axis=1)
        middle = (np.asarray(one) + 0.5) * EDGES
        mean = ((scan.positions[own] - middle) / np.asarray(EDGES) * 2).mean(axis=0)
        np.testing.assert_allclose(offsets[0], mean, atol=1e-5)


def test_equal_edges_are_one(rng):
    scan = cloud(rng)
    three, one = Preparation((0.3,) * 3)(scan), Preparation(0.3)(scan)
    np.testing.assert_array_equal(three.voxels.features, one.voxels.features)
    np.testing.assert_array_equal(three.inverse, one.inverse)


def test_settings_of_a_checkpoint():
    task = Segmentation(**TASK, voxel_size=EDGES, lovasz=1.0)
    assert task.longest_edge == 0.5
    assert Segmentation.from_json(json.loads(json.dumps(task.to_json()))) == task
    old = {**TASK, "voxel_size": 1, "class_names": ["a"]}
    assert Segmentation.from_json(old).voxel_size == 1.0
    assert Segmentation.from_json(old).lovasz == 0
    with pytest.raises(InputError, match=r"voxel_size = 1.0, 2.0: give one edge, or three"):
        Segmentation(**TASK, voxel_size=(1.0, 2.0))
    with pytest.raises(InputError, match=r"voxel_size 0.0 must be at least 1e-30"):
        Segmentation(**TASK, voxel_size=(1.0, 0.0, 1.0))
    with pytest.raises(InputError, match=r"lovasz = -1"):
        Segmentation(**TASK, voxel_size=1.0, lovasz=-1)


RUNS = {
    "segment": (kitti, "voxel_size = 1.0", "[1.0, 1.0, 0.5]", "08/velodyne/000000.bin"),
    "detect": (boxes, "voxel_size = 0.5", "[0.5, 0.5, 0.25]", "velodyne/000003.bin"),
    "classify": (shapes, "voxel_size = 0.25", "[0.25, 0.25, 0.2]", None),
}


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
@pytest.mark.parametrize("task", RUNS)
def test_a_run(task, tmp_path, rng, monkeypatch, capsys):
    monkeypatch.setattr(Segmentation, "model", small)
    make, old, edges, scan = RUNS[task]
    path = make(tmp_path, rng)
    more = "\nlovasz = 1.0" if task == "segment" else ""
    text = path.read_text().replace(old, f"voxel_size = {edges}")
    first, last = (text.replace("steps = 6", f"steps = {n}") for n in (2, 4))
    first, last = (t.replace("steps = 4", f"steps = {n}") for t, n in ((first, 2), (last, 4)))
    path.write_text(first + more)
    assert main(["train", str(path)]) == 0
    path.write_text(last + more)
    assert main(["train", str(path), "--resume"]) == 0
    assert len(losses(tmp_path / "runs")) == 4
    checkpoint = tmp_path / "runs/checkpoint"
    kept = task_of(checkpoint)
    assert list(kept.voxel_size) == json.loads(edges)
    out = ["--out", str(tmp_path / "out")]
    usual = ["--split", "validation", "--workers", "0", *out]
    assert main(["evaluate", str(checkpoint), str(path), *usual]) == 0
    if scan:
        (file,) = tmp_path.rglob(scan)
        assert main([task, str(file), "--checkpoint", str(checkpoint), *out]) == 0
    path.write_text(text + more)
    other = path.read_text().replace(edges, edges.replace("]", "1]"))
    path.write_text(other)
    assert main(["train", str(path), "--resume"]) == 2
    assert "has voxel_size = (" in capsys.readouterr().err
