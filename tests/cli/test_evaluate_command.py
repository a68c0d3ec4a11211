"""``voxax evaluate``: scores of a whole split, for each task."""

import csv
import json

import numpy as np
import pytest

import folders
from cli.made_checkpoints import COMMON, detector, saved, segmenter
from cli.small_network import small
from voxax.cli import main
from voxax.cli.apply import Trained
from voxax.cli.classification_task import Classification
from voxax.cli.segmentation_task import Segmentation
from voxax.cli.split_data import split_data
from voxax.errors import FileFormatError, InputError
from voxax.io.dataset import recognized
from voxax.io.kitti_objects import KITTI_CLASSES
from voxax.io.scannet import SCANNET_CLASS_NAMES
from voxax.io.semantic_kitti import SEMANTIC_KITTI_CLASS_NAMES
from voxax.models.metrics import confusion, mean_iou


def evaluated(out):
    return json.loads((out / "metrics.json").read_text())


def test_segmentation(tmp_path, rng, capsys, monkeypatch):
    """The matrix is that of the network's predictions, scan by scan."""
    monkeypatch.setattr(Segmentation, "model", small)
    folder = folders.semantic_kitti(tmp_path / "kitti", rng, {"00": 1, "08": 3}, points=300)
    checkpoint = segmenter(tmp_path / "checkpoint", SEMANTIC_KITTI_CLASS_NAMES)
    out = tmp_path / "out"
    command = ["evaluate", str(checkpoint), str(folder), "--out", str(out), "--workers", "0"]
    assert main(command) == 0
    said = capsys.readouterr().out
    network, matrix = Trained(checkpoint), np.zeros((19, 19), np.int64)
    for scan in split_data(folder, None, "validation").scans:
        cloud = scan()
        matrix += confusion(cloud.labels, network.logits(cloud).argmax(-1), 19)
    metrics = evaluated(out)
    assert metrics["val_miou"] == pytest.approx(mean_iou(matrix))
    assert metrics["val_accuracy"] == pytest.approx(np.trace(matrix) / matrix.sum())
    assert [metrics["scans"], metrics["val_points"]] == [3, 900]
    assert metrics["val_iou"]["car"] is None
    recall = matrix[8, 8] / matrix[8].sum()
    assert metrics["val_class_accuracy"]["road"] == pytest.approx(recall)
    assert f"validation: mIoU {metrics['val_miou']:.3f}" in said
    with (out / "confusion.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0][1:] == list(SEMANTIC_KITTI_CLASS_NAMES)
    np.testing.assert_array_equal([list(map(int, row[1:])) for row in rows[1:]], matrix)
    assert (out / "confusion.png").stat().st_size > 5000


def test_other_tasks(tmp_path, rng):
    folder = folders.modelnet(tmp_path / "modelnet", rng)
    task = Classification(class_names=("flat", "tall"), voxel_size=0.2, **COMMON)
    checkpoint, out = saved(tmp_path / "classes", task), tmp_path / "out"
    command = ["--out", str(out), "--workers", "0"]
    assert main(["evaluate", str(checkpoint), str(folder), "--split", "test", *command]) == 0
    assert evaluated(out)["val_clouds"] == 2
    assert (out / "confusion.csv").read_text().count("\n") == 3
    split = {"train": ["000000"], "val": ["000001", "000002"]}
    folder = folders.kitti_objects(
        tmp_path / "kitti", rng, [f"{i:06d}" for i in range(3)], split=split
    )
    bounds = (8.0, -8.0, -3.0, 24.0, 8.0, 1.0)
    checkpoint = detector(tmp_path / "boxes", KITTI_CLASSES, "kitti", bounds)
    assert main(["evaluate", str(checkpoint), str(folder), *command]) == 0
    assert evaluated(out)["val_frames"] == 2
    assert set(evaluated(out)["val_ap_3d"]) == set(KITTI_CLASSES)


def test_a_configuration_names_the_scans(tmp_path, rng):
    folders.labeled(tmp_path, rng, ["val/a.npz", "val/b.npz", "test/c.npz"], points=50)
    config = tmp_path / "run.toml"
    config.write_text(
        '[data]\nformat = "files"\nfolder = "."\ntrain = ["test/*"]\nvalidation = ["val/*"]\n'
        'radius = 8\n[data.classes]\n2 = "ground"\n6 = "building"\n'
        "[model]\nvoxel_size = 1\n[training]\nsteps = 1\n"
    )
    found = split_data(config, None, "validation")
    assert found.class_names == ("ground", "building")
    assert len(found.scans) == 2
    assert 0 < len(found.scans[0]()) < 50
    assert len(split_data(config, None, "test/*").scans) == 1
    with pytest.raises(InputError, match=r"run\.toml: data: test is empty"):
        split_data(config, None, "test")
    with pytest.raises(InputError, match=r"has its own data\.format"):
        split_data(config, "scannet", "validation")


def test_layouts_are_recognized(tmp_path, rng):
    made = {
        "semantic_kitti": folders.semantic_kitti(tmp_path / "a", rng, {"08": 1}, 9),
        "scannet": folders.scannet(tmp_path / "b", rng, ["scene0000_00"], 9),
        "kitti": folders.kitti_objects(tmp_path / "c", rng, ["000000"]),
        "nuscenes": folders.nuscenes(tmp_path / "d", rng, {"scene-0001": 1}),
        "modelnet": folders.modelnet(tmp_path / "e", rng),
    }
    for name, folder in made.items():
        assert recognized(folder) == name
    folders.labeled(tmp_path / "f", rng, ["a.npz"], 9)
    with pytest.raises(InputError, match="has none of the layouts semantic_kitti, scannet"):
        split_data(tmp_path / "f", None, "validation")
    with pytest.raises(FileFormatError, match="no folder"):
        split_data(tmp_path / "nowhere", None, "validation")
    (tmp_path / "names.txt").write_text("scene0000_00\n\n")
    found = split_data(made["scannet"], None, str(tmp_path / "names.txt"))
    assert len(found.scans) == 1


def test_mistakes_are_one_line(tmp_path, rng, capsys, monkeypatch):
    monkeypatch.setattr(Segmentation, "model", small)
    folder = folders.semantic_kitti(tmp_path / "kitti", rng, {"08": 1}, points=50)
    checkpoint = segmenter(tmp_path / "checkpoint", SCANNET_CLASS_NAMES)
    usual = ["evaluate", str(checkpoint), str(folder), "--out", str(tmp_path / "out")]
    for more, message in (
        ([], "has the 20 classes wall, floor, cabinet, bed, ..., and"),
        (["--split", "09"], "has no sequence '09'; it has 08"),
        (["--split", ","], ", is empty: name the scans"),
        (["--format", "waymo2"], "format 'waymo2' is unknown"),
        (["--workers", "999"], "--workers 999 must be at most 256"),
    ):
        assert main([*usual, *more]) == 2
        said = capsys.readouterr().err
        assert message in said, said
        assert said.count("\n") == 1
    assert main(["evaluate", str(tmp_path), str(folder)]) == 2
    assert "no voxax checkpoint" in capsys.readouterr().err
