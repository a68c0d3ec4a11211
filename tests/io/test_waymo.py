"""Waymo in KITTI's layout."""

import pickle

import numpy as np
import pytest

import folders
from voxax.errors import FileFormatError
from voxax.io.dataset import dataset, layout_of, recognized


def test_frames(tmp_path, rng):
    true = folders.waymo(tmp_path, rng, ["0000000", "0000001", "1000000"])
    assert recognized(tmp_path) == "waymo"
    found = dataset("waymo", tmp_path, None, None)  # the first digit says the split
    assert [scan.name for scan in found.train] == ["0000000", "0000001"]
    assert [scan.name for scan in found.validation] == ["1000000"]
    assert found.class_names == ("Car", "Pedestrian", "Cyclist")
    for scan in (*found.train, *found.validation):
        read = pickle.loads(pickle.dumps(scan))()
        expected = true[scan.name]
        np.testing.assert_allclose(read.objects.boxes[:, :6], expected[:, :6], atol=1e-8)
        turns = read.objects.boxes[:, 6] - expected[:, 6]
        np.testing.assert_allclose(np.cos(turns), 1, atol=1e-12)
        assert read.objects.classes.tolist() == list(found.class_names)
        rows = np.fromfile(str(scan), "<f4").reshape(-1, 6)
        np.testing.assert_array_equal(read.cloud.positions, rows[:, :3])  # all around
        np.testing.assert_array_equal(read.cloud.attributes["elongation"], rows[:, 4])
        assert set(read.cloud.attributes) == {"intensity", "elongation"}


def test_lists_and_frames_without_boxes(tmp_path, rng):
    folders.waymo(tmp_path, rng, ["0000000", "0000001", "0000002"])
    (tmp_path / "ImageSets").mkdir()
    (tmp_path / "ImageSets/train.txt").write_text("0000002\n")
    layout = layout_of("waymo", tmp_path)
    assert list(layout.split("train")) == ["0000002"]
    assert list(layout.split("validation")) == list(layout.split("test")) == []
    (tmp_path / "testing/velodyne").mkdir(parents=True)
    rows = rng.random((5, 6)).astype("<f4")
    rows.tofile(tmp_path / "testing/velodyne/2000000.bin")
    assert list(layout.split("test")) == ["2000000"]
    (scan,) = layout.scans(["2000000"], labeled=False)
    assert [len(scan().cloud), len(scan().objects)] == [5, 0]
    (tmp_path / "training/label_all/0000000.txt").write_text("")
    (empty,) = layout.scans(["0000000"])
    assert len(empty().objects) == 0


def test_what_is_missing_or_broken(tmp_path, rng):
    folders.waymo(tmp_path, rng, ["0000000"])
    layout = layout_of("waymo", tmp_path)
    (scan,) = layout.scans(["0000000"])
    parts = {
        name: tmp_path / f"training/{name}/0000000.{end}"
        for name, end in (("label_all", "txt"), ("calib", "txt"), ("velodyne", "bin"))
    }
    for name, old, new, message in (
        ("label_all", " 1.7", " -1.7", r"0000000\.txt:1: Car has height, width, length \[-1\.7"),
        ("label_all", "-10 0", "-10", r"txt:1: 15 columns, rows of label_all have 16 or 17"),
        ("label_all", "-10", "ten", r"txt:1: could not convert .* 'ten'"),
        ("calib", "cam_0", "cam", r"has no line Tr_velo_to_cam_0: .* have P0, R0_rect, Tr_velo"),
    ):
        whole = parts[name].read_text()
        parts[name].write_text(whole.replace(old, new))
        with pytest.raises(FileFormatError, match=message):
            scan()
        parts[name].write_text(whole)
    parts["velodyne"].write_bytes(parts["velodyne"].read_bytes()[:-4])
    with pytest.raises(FileFormatError, match="is not a whole sweep: 9596 bytes"):
        scan()
    parts["calib"].unlink()
    with pytest.raises(FileFormatError, match=r"frame '0000000' has no file .*calib"):
        layout.scans(["0000000"])
    parts["label_all"].unlink()
    parts["label_all"].parent.rmdir()
    with pytest.raises(FileFormatError, match=r"has no folder label_all .* version 1\.3") as told:
        layout.scans(["0000000"])
    assert "pickle" not in str(told.value)
    (tmp_path / "waymo_infos_train.pkl").write_bytes(b"")
    with pytest.raises(FileFormatError, match=r"label_all.*waymo_infos_train\.pkl .* is a pickle"):
        dataset("waymo", tmp_path, ["0000000"], None)
