"""Scores of KITTI and nuScenes for what a network found, from folders in their layouts."""

import json

import numpy as np
import pytest

import folders
from voxax.cli.folder_detection import KittiScore, NuscenesRunScore
from voxax.detection import Objects
from voxax.io.dataset import dataset


def test_kitti(tmp_path, rng):
    labels = folders.KITTI_LABELS.replace("Van", "Car")
    # The rectangles of these boxes: large enough for every difficulty.
    folders.kitti_objects(tmp_path, rng, ["a", "b"], points=50, labels=labels)
    found = dataset("kitti", tmp_path, ["a"], ["b"])
    scans = [scan() for scan in (*found.train, *found.validation)]
    perfect, nothing = KittiScore(found.class_names), KittiScore(found.class_names)
    for scan in scans * 25:  # fewer true boxes than recalls leave recalls at 0
        own = scan.objects
        real = own.classes != "DontCare"
        seen = Objects(own.boxes[real], own.classes[real], np.linspace(0.9, 0.5, real.sum()))
        perfect.add(scan, seen)
        nothing.add(scan, Objects(np.zeros((0, 7)), [], []))
    assert perfect.value() == pytest.approx(1)
    assert nothing.value() == 0
    metrics = perfect.metrics()
    assert metrics["val_frames"] == 50
    assert metrics["val_ap_3d"]["Cyclist"] == dict.fromkeys(("easy", "moderate", "hard"))
    assert metrics["val_ap_bev"]["Pedestrian"]["moderate"] == pytest.approx(1)
    assert metrics["val_ap_3d_11_recalls"]["Car"]["hard"] == pytest.approx(1)
    assert 0 <= metrics["val_aos"]["Pedestrian"]["hard"] <= 1
    json.dumps(metrics, allow_nan=False)
    columns, rows = perfect.table()
    assert columns == ("class", "easy", "moderate", "hard")
    assert rows[2] == ("Cyclist", "absent", "absent", "absent")


@pytest.mark.parametrize("width", [7, 9])
def test_nuscenes(width, tmp_path, rng):
    folders.nuscenes(tmp_path, rng, {"scene-0001": 2, "scene-0002": 1})
    found = dataset("nuscenes", tmp_path, ["scene-0001"], ["scene-0002"])
    score = NuscenesRunScore(found.class_names)
    for number, task in enumerate((*found.train, *found.validation)):
        scan = task()
        own = scan.objects
        boxes = np.nan_to_num(own.boxes[:, :width])
        score.add(scan, Objects(boxes, own.classes, np.full(len(own), 0.9 - 0.1 * number)))
    metrics = score.metrics()
    assert metrics["val_ap"]["car"]["0.5 m"] == pytest.approx(1)
    assert metrics["val_map"] == pytest.approx(0.3)  # three of ten classes
    assert 0.1 < metrics["val_nds"] < 0.6
    assert (metrics["val_errors"]["velocity"] <= 0.76) == (width == 9)
    assert metrics["val_samples"] == 3
    json.dumps(metrics, allow_nan=False)
    assert score.table()[1][0][:2] == ("car", "1.000")
