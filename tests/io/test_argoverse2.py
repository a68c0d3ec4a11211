"""Argoverse 2's sensor data."""

import pickle

import numpy as np
import pytest

import folders
from voxax.errors import FileFormatError, InputError
from voxax.io.dataset import dataset, layout_of, recognized

pyarrow = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")

ANNOTATIONS = "annotations.feather"


def changed(path, **columns):
    """Write a table again with other columns; None leaves one out."""
    table = feather.read_table(path, memory_map=False)
    values = {name: table.column(name) for name in table.column_names} | columns
    kept = {name: value for name, value in values.items() if value is not None}
    feather.write_feather(pyarrow.table(kept), str(path))


def test_sweeps(tmp_path, rng):
    true = folders.argoverse2(tmp_path, rng, {"train/a": 2, "train/b": 1, "val/a": 1, "test/c": 1})
    assert recognized(tmp_path) == "argoverse2"
    found = dataset("argoverse2", tmp_path, None, None)
    assert [len(found.train), len(found.validation), len(found.class_names)] == [3, 1, 26]
    scan = found.train[1]
    read = pickle.loads(pickle.dumps(scan))()
    np.testing.assert_allclose(read.objects.boxes, true["train/a", scan.timestamp], atol=1e-12)
    assert read.objects.classes.tolist() == ["REGULAR_VEHICLE", "PEDESTRIAN", "ANIMAL"]
    table = feather.read_table(str(scan))
    axes = np.column_stack([table.column(axis).to_numpy() for axis in "xyz"])
    np.testing.assert_array_equal(read.cloud.positions, axes)
    intensity = table.column("intensity").to_numpy()
    np.testing.assert_array_equal(read.cloud.attributes["intensity"], intensity)
    layout = layout_of("argoverse2", tmp_path)
    assert layout.scans(["train/b"]) == [found.train[2]]
    (bare,) = layout.scans(layout.split("test"), labeled=False)
    assert len(bare().objects) == 0


def test_turned_boxes(tmp_path, rng):
    """The yaw is the direction of the x axis, seen from above."""
    folders.argoverse2(tmp_path, rng, {"val/a": 1})
    quaternions = rng.normal(size=(3, 4))
    changed(
        tmp_path / "val/a" / ANNOTATIONS,
        **dict(zip(("qw", "qx", "qy", "qz"), quaternions.T, strict=True)),
    )
    (scan,) = layout_of("argoverse2", tmp_path).scans(["val"])
    for (w, *vector), yaw in zip(quaternions, scan().objects.boxes[:, 6], strict=True):
        x, heading = np.array([1.0, 0, 0]), np.asarray(vector)
        moved = x * (w * w - heading @ heading) + 2 * heading * heading[0]
        moved += 2 * w * np.cross(heading, x)
        assert yaw == pytest.approx(np.arctan2(moved[1], moved[0]))


def test_what_is_missing_or_broken(tmp_path, rng):
    folders.argoverse2(tmp_path, rng, {"val/a": 2, "test/b": 1})
    layout = layout_of("argoverse2", tmp_path)
    with pytest.raises(InputError, match="train is empty"):
        dataset("argoverse2", tmp_path, None, None)
    with pytest.raises(FileFormatError, match=r"train holds no logs: the layout is SPLIT/LOG/"):
        layout.scans(["train"])
    with pytest.raises(FileFormatError, match=r"b has no file annotations\.feather; logs of the"):
        layout.scans(["test"])
    path = tmp_path / "val/a" / ANNOTATIONS
    first, second = layout.scans(["val/a"])
    for columns, message in (
        ({"qz": None, "tx_m": None}, r"feather has no column tx_m, qz; it has length_m"),
        ({"length_m": ["long"] * 6}, "column length_m holds string, no numbers"),
        ({"category": [1] * 6}, "column category holds int64, no text"),
        ({"width_m": [1.0, 1, 1, 0, 1, 1]}, "row 3 has .*'width_m': 0.0.* sizes positive"),
        ({"tz_m": [1.0, 1, 1, 1, None, 1]}, "row 4 has .*'tz_m': nan.* must be finite"),
        (dict.fromkeys(("qw", "qx", "qy", "qz"), np.zeros(6)), "row 3 has .* quaternion not 0"),
        ({"timestamp_ns": [7] * 6}, "has 6 boxes, and none at the time of a sweep"),
    ):
        whole = path.read_bytes()
        changed(path, **columns)
        with pytest.raises(FileFormatError, match=message):
            second()
        path.write_bytes(whole)
    changed(path, timestamp_ns=[first.timestamp] * 6)
    assert [len(first().objects), len(second().objects)] == [6, 0]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FileFormatError, match=r"cannot read .*annotations\.feather as FEATHER"):
        first()
    for own in (tmp_path / "val/a/sensors/lidar").glob("*.feather"):
        own.unlink()
    with pytest.raises(FileFormatError, match="lidar holds no sweeps"):
        layout.scans(["val"])
