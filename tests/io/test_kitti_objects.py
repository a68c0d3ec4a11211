"""KITTI's boxes come into the scanner's frame."""

import pickle

import numpy as np
import pytest

import folders
from voxax.detection import KittiObjects, corners, kitti_ap
from voxax.errors import FileFormatError, InputError
from voxax.io.dataset import dataset
from voxax.io.kitti_objects import read_calibration, read_kitti_objects


def test_boxes_are_those_of_the_camera(tmp_path, rng):
    """Each corner that KITTI's readme defines in the camera's frame, brought back one by one."""
    folders.kitti_objects(tmp_path, rng, ["000007"])
    place = tmp_path / "training"
    calibration = read_calibration(place / "calib/000007.txt")
    found = read_kitti_objects(place / "label_2/000007.txt", calibration)
    entries = {}
    for line in (place / "calib/000007.txt").read_text().split("\n"):
        if line:
            name, _, rest = line.partition(":")
            entries[name] = np.array(rest.split(), np.float64)
    whole, rectify = np.eye(4), np.eye(4)
    whole[:3], rectify[:3, :3] = (entries[n].reshape(3, -1) for n in ("Tr_velo_to_cam", "R0_rect"))
    back = np.linalg.inv(rectify @ whole)
    assert found.classes.tolist() == ["Car", "Pedestrian", "DontCare", "Van"]
    for row, line in enumerate(folders.KITTI_LABELS.splitlines()):
        if line.startswith("DontCare"):
            assert not found.boxes[row].any()
            continue
        h, w, length, x, y, z, yaw = map(float, line.split()[8:15])
        front = []
        for along, up in ((0.5, 0), (0.5, 1), (-0.5, 0), (-0.5, 1)):
            inside = np.array([along * length, -up * h, 0])
            turned = [
                np.cos(yaw) * inside[0] + np.sin(yaw) * inside[2],
                inside[1],
                -np.sin(yaw) * inside[0] + np.cos(yaw) * inside[2],
            ]
            front.append((back @ [turned[0] + x, turned[1] + y, turned[2] + z, 1])[:3])
        front = np.array(front)
        np.testing.assert_allclose(found.boxes[row, :3], front.mean(0), atol=1e-9)
        np.testing.assert_allclose(found.boxes[row, 3:6], [length, w, h])
        heading = front[:2].mean(0) - front[2:].mean(0)
        expected = np.arctan2(heading[1], heading[0])
        assert np.isclose(np.cos(found.boxes[row, 6] - expected), 1, atol=1e-12)
    np.testing.assert_allclose(found.rectangles[0], [387.63, 181.54, 423.81, 203.12])
    assert found.occlusion.tolist() == [0, 1, -1, 2]
    assert found.truncation.tolist() == [0, 0.3, -1, 0]
    # The rectangle around the car's corners, point by point.
    camera = entries["P2"].reshape(3, 4)
    places = []
    for corner in corners(found.boxes[0]):
        there = rectify @ whole @ [*corner, 1]
        u, v, depth = camera @ there
        places.append((u / depth, v / depth))
    expected = np.concatenate([np.min(places, 0), np.max(places, 0)])
    np.testing.assert_allclose(calibration.rectangles(found.boxes[:1])[0], expected, atol=1e-9)


def test_frames(tmp_path, rng):
    split = {"train": ["000000", "000001"], "val": ["000002"]}
    folders.kitti_objects(tmp_path, rng, [f"{i:06d}" for i in range(3)], split=split)
    found = dataset("kitti", tmp_path, None, None)
    assert found.class_names == ("Car", "Pedestrian", "Cyclist")
    assert [len(found.train), len(found.validation)] == [2, 1]
    scan = pickle.loads(pickle.dumps(found.train[1]))()
    assert str(found.train[1]).endswith("velodyne/000001.bin")
    assert 100 < len(scan.cloud) < 750  # those that the camera sees
    assert scan.about.in_image(scan.cloud.positions).all()
    assert isinstance(scan.objects, KittiObjects)
    # What a perfect detector finds: the true boxes, whose rectangles are projected.
    boxed = scan.objects.classes != "DontCare"
    said = scan.objects.boxes[boxed], scan.objects.classes[boxed], np.full(3, 0.9)
    result = scan.about.found(*said)
    # By the file's own numbers: the yaw, less the direction of the place.
    rows = [line.split() for line in folders.KITTI_LABELS.splitlines() if "Dont" not in line]
    expected = [float(row[14]) - np.arctan2(float(row[11]), float(row[13])) for row in rows]
    np.testing.assert_allclose(np.cos(result.alphas - expected), 1, atol=1e-3)
    np.testing.assert_allclose(scan.objects.alphas, [1.85, 0.2, -10, 1.9])
    score = kitti_ap([scan.objects], [result])
    assert score["Car"]["moderate"] == 1 or np.isnan(score["Car"]["moderate"])
    picture = tmp_path / "training/image_2/000001.png"
    picture.parent.mkdir()
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (600).to_bytes(4) + (300).to_bytes(4))
    assert found.train[1]().about.image_size == (600, 300)
    picture.write_bytes(b"GIF89a")
    with pytest.raises(FileFormatError, match=r"000001\.png is no PNG picture"):
        found.train[1]()


def test_a_frame_without_boxes(tmp_path, rng):
    folders.kitti_objects(tmp_path, rng, ["a", "b"], labels="\n")
    scan = dataset("kitti", tmp_path, ["a"], ["b"]).train[0]()
    assert len(scan.objects) == 0
    assert scan.objects.boxes.shape == (0, 7)
    assert len(scan.about.found(np.zeros((0, 7)), np.zeros(0), np.zeros(0))) == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1.67 1.87 3.69", "1.67 -1.87 3.69", r"a\.txt:1: Car has height, width, length \[1\.67"),
        ("1.67 1.87 3.69", "1.67 nan 3.69", r"a\.txt:1: numbers must be finite"),
        ("387.63", "left", r"a\.txt:1: could not convert .* 'left'"),
        (" 1.57\n", "\n", r"a\.txt:1: 14 columns, rows of .* have 15 or 16"),
        (" 1.57\n", " 1.57 0.5\n", r"a\.txt: some rows have a score"),
    ],
)
def test_broken_labels(old, new, message, tmp_path, rng):
    text = folders.KITTI_LABELS.replace(old, new, 1)
    folders.kitti_objects(tmp_path, rng, ["a", "b"], points=20, labels=text)
    with pytest.raises(FileFormatError, match=message):
        dataset("kitti", tmp_path, ["a"], ["b"]).train[0]()


def test_broken_folders(tmp_path, rng):
    with pytest.raises(InputError, match="train is empty: name the scans"):
        dataset("kitti", tmp_path, None, None)
    with pytest.raises(FileFormatError, match="has no folder training"):
        dataset("kitti", tmp_path, ["a"], ["b"])
    folders.kitti_objects(tmp_path, rng, ["a", "b"], points=20, split={"train": []})
    with pytest.raises(FileFormatError, match=r"ImageSets/train\.txt is empty"):
        dataset("kitti", tmp_path, None, None)
    calibration = tmp_path / "training/calib/a.txt"
    whole = calibration.read_text()
    scan = dataset("kitti", tmp_path, ["a"], ["b"]).train[0]
    for old, new, message in (
        ("R0_rect", "R_rect", r"a\.txt has no line R0_rect: calibrations of this layout have P2"),
        ("P2: ", "P2: 1.0 ", r"a\.txt:2: P2 has 13 numbers, it must have 12"),
        ("R0_rect: ", "R0_rect: 3", r"a\.txt: .* is no rotation"),
    ):
        calibration.write_text(whole.replace(old, new))
        with pytest.raises(FileFormatError, match=message):
            scan()
    calibration.unlink()
    with pytest.raises(FileFormatError, match=r"frame 'a' has no file .*calib/a\.txt"):
        dataset("kitti", tmp_path, ["a"], ["b"])
