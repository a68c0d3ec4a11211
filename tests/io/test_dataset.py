"""Folders in the layouts of data sets become scans in their classes."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

import folders
from voxax.errors import FileFormatError, InputError
from voxax.io.dataset import dataset, layout_of
from voxax.io.layout import fold
from voxax.io.scannet import SCANNET_CLASSES


def test_semantic_kitti(tmp_path, rng):
    folders.semantic_kitti(tmp_path, rng, {"00": 2, "01": 1, "08": 1}, points=50)
    found = dataset("semantic_kitti", tmp_path, ["00", "01"], None)
    assert [len(found.train), len(found.validation)] == [3, 1]
    names = ["00/velodyne/000000.bin", "00/velodyne/000001.bin", "01/velodyne/000000.bin"]
    assert [str(scan)[-len(names[0]) :] for scan in found.train] == names
    cloud = pickle.loads(pickle.dumps(found.train[0]))()
    assert len(cloud) == 50
    names = np.asarray(found.class_names)[np.unique(cloud.labels)]
    assert set(names) == {"road", "building"}
    assert cloud.attributes["intensity"].shape == (50,)


def test_semantic_kitti_says_what_is_missing(tmp_path, rng):
    with pytest.raises(FileFormatError, match=r"no folder .*nowhere"):
        dataset("semantic_kitti", tmp_path / "nowhere", None, None)
    with pytest.raises(FileFormatError, match="no folder sequences"):
        dataset("semantic_kitti", tmp_path, None, None)
    folders.semantic_kitti(tmp_path, rng, {"00": 2, "08": 1}, points=5)
    with pytest.raises(FileFormatError, match="no sequence '01'; it has 00, 08"):
        dataset("semantic_kitti", tmp_path, ["00", "01"], None)
    with pytest.raises(InputError, match=r"1 scans are in train and in validation, .*08"):
        dataset("semantic_kitti", tmp_path, ["00", "08"], ["08"])
    (tmp_path / "sequences/00/labels/000001.label").unlink()
    with pytest.raises(FileFormatError, match=r"000001\.bin has no labels: .*000001\.label"):
        dataset("semantic_kitti", tmp_path, ["00"], None)
    np.asarray([40] * 4 + [77], "<u4").tofile(tmp_path / "sequences/08/labels/000000.label")
    (tmp_path / "sequences/00/velodyne/000001.bin").unlink()
    broken = dataset("semantic_kitti", tmp_path, ["00"], ["08"]).validation[0]
    with pytest.raises(FileFormatError, match=r"000000\.label: 1 ids are not .*77"):
        broken()


def test_scannet(tmp_path, rng):
    names = ["scene0000_00", "scene0001_00"]
    folders.scannet(tmp_path, rng, names, points=60)
    found = dataset("scannet", tmp_path, names[:1], names[1:])
    assert len(found.class_names) == 20
    cloud = found.train[0]()
    # Vertices, not points of the surface.
    assert len(cloud) == 60
    assert cloud.attributes["rgb"].shape == (60, 3)
    np.testing.assert_array_equal(cloud.labels == 1, cloud.positions[:, 2] == 0)
    assert (cloud.labels[cloud.positions[:, 0] == 0] == 0).all()
    assert (cloud.labels == -1).any()


def test_the_official_splits_of_scannet(tmp_path, rng):
    folders.scannet(tmp_path, rng, ["scene0000_00", "scene0001_00"], points=9)
    with pytest.raises(
        InputError, match=r"train is empty: .*list scannetv2_train\.txt there, from"
    ):
        dataset("scannet", tmp_path, None, None)
    (tmp_path / "meta_data").mkdir()
    (tmp_path / "scannetv2_train.txt").write_text("scene0000_00\n")
    (tmp_path / "meta_data/scannetv2_val.txt").write_text("scene0001_00\n")
    found = dataset("scannet", tmp_path, None, None)
    assert [Path(scan.mesh).parent.name for scan in found.train] == ["scene0000_00"]
    assert [Path(scan.mesh).parent.name for scan in found.validation] == ["scene0001_00"]
    layout = layout_of("scannet", tmp_path)
    assert list(layout.split("test")) == []
    (tmp_path / "scannetv2_test.txt").write_text("scene0707_00\n")
    assert list(layout.split("test")) == ["scene0707_00"]
    (tmp_path / "scannetv2_train.txt").write_text("\n")
    with pytest.raises(FileFormatError, match=r"scannetv2_train\.txt is empty"):
        layout.split("train")
    (tmp_path / "scannetv2_train.txt").write_text("scene0000_00\nscene0706_00\n")
    with pytest.raises(FileFormatError, match="scene 'scene0706_00' has no file"):
        dataset("scannet", tmp_path, None, None)


def test_scannet_says_what_is_missing(tmp_path, rng):
    folders.scannet(tmp_path, rng, ["a", "b"], points=9)
    with pytest.raises(InputError, match="train is empty"):
        dataset("scannet", tmp_path, None, ["b"])
    with pytest.raises(FileFormatError, match=r"scene 'c' has no file .*holds 2 scenes"):
        dataset("scannet", tmp_path, ["a", "c"], ["b"])
    found = dataset("scannet", tmp_path, ["a"], ["b"])
    folders.mesh(tmp_path / "scans/a/a_vh_clean_2.labels.ply", np.zeros((4, 3)))
    with pytest.raises(FileFormatError, match="have no property label"):
        found.train[0]()
    short = {"label": np.zeros(4, "u2")}
    folders.mesh(tmp_path / "scans/a/a_vh_clean_2.labels.ply", np.zeros((4, 3)), **short)
    with pytest.raises(FileFormatError, match=r"has 4 vertices, .* has 9"):
        found.train[0]()


def test_labeled_files(tmp_path, rng):
    folders.labeled(tmp_path, rng, ["train/a.npz", "train/b.ply", "val/c.npz"], points=40)
    (tmp_path / "train" / "notes.txt").write_text("no scan")
    found = dataset("files", tmp_path, ["train/*"], ["val/*.npz"], {6: "building", 2: "ground"})
    assert found.class_names == ("building", "ground")
    assert [str(scan)[-5:] for scan in found.train] == ["a.npz", "b.ply"]
    for scan in found.train:
        cloud = scan()
        np.testing.assert_array_equal(cloud.labels == 0, cloud.positions[:, 2] > 0)
    partial = dataset("files", tmp_path, ["train/*"], ["val/*"], {6: "building"})
    assert set(np.unique(partial.train[0]().labels)) == {-1, 0}
    assert partial.train[0].labels_found() == [2, 6]
    classes = {9: "other", 6: "all", 7: "other", 2: "all"}
    merged = dataset("files", tmp_path, ["train/*"], ["val/*"], classes)
    assert merged.class_names == ("other", "all")
    assert (pickle.loads(pickle.dumps(merged.train[0]))().labels == 1).all()


def test_a_file_of_several_clouds_is_no_scan(tmp_path):
    for name in ("many", "others"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["data"] = np.zeros((3, 5, 3), np.float32)
            file["label"] = np.zeros((3, 5), np.int32)
    (task,) = dataset("files", tmp_path, ["many.h5"], ["others.h5"], {0: "ground"}).train
    with pytest.raises(FileFormatError, match=r"many.h5 holds 3 clouds.*item=0"):
        task()


def test_labels_beside_a_scan(tmp_path, rng):
    rng.random((30, 4), np.float32).tofile(tmp_path / "a.bin")
    rng.random((30, 5), np.float32).tofile(tmp_path / "b.pcd.bin")
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.full(30, 7))
    found = dataset("files", tmp_path, ["a.bin"], ["b.pcd.bin"], {7: "seven"})
    assert (found.train[0]().labels == 0).all()
    assert (found.validation[0]().labels == 0).all()
    (tmp_path / "a.npy").unlink()
    bare = dataset("files", tmp_path, ["a.bin"], ["b.pcd.bin"], {7: "seven"})
    with pytest.raises(FileFormatError, match=r"a\.bin has no labels, and beside it"):
        bare.train[0]()


def test_columns_and_label_field_of_files(tmp_path, rng):
    rows = rng.random((30, 6), np.float32)
    rows[:, 3:] = [3, 7, 9]
    for name in "ab":
        rows.tofile(tmp_path / f"{name}.bin")
    names = ("x", "y", "z", "class", "kind", "_")
    for field, found in ((None, 3), ("kind", 7)):
        given = {"columns": names, "label_field": field}
        scans = dataset("files", tmp_path, ["a.bin"], ["b.bin"], {found: "it"}, **given)
        assert (scans.train[0]().labels == 0).all()


def test_labeled_files_say_what_is_missing(tmp_path, rng):
    folders.labeled(tmp_path, rng, ["a.npz"], points=5)
    with pytest.raises(InputError, match="classes is missing"):
        dataset("files", tmp_path, ["a*"], ["b*"])
    with pytest.raises(FileFormatError, match=r"no file .* fits 'b\*'.*\.las"):
        dataset("files", tmp_path, ["a*"], ["b*"], {1: "one"})
    for pattern in ("", "/tmp/*"):
        with pytest.raises(InputError, match="is no pattern of files below"):
            dataset("files", tmp_path, [pattern], ["a*"], {1: "one"})
    with pytest.raises(InputError, match="classes has the ids -1: ids are at least 0"):
        dataset("files", tmp_path, ["a*"], ["b*"], {1: "one", -1: "two"})
    with pytest.raises(InputError, match="classes is for format 'files'"):
        dataset("scannet", tmp_path, ["a"], ["b"], {1: "one"})
    with pytest.raises(InputError, match="format 'lyft' is unknown"):
        dataset("lyft", tmp_path, None, None)


def test_fold_is_a_table(rng):
    ids = tuple(SCANNET_CLASSES)
    raw = rng.integers(-5, 60, 500).astype(np.int32)
    expected = [ids.index(i) if i in ids else -1 for i in raw]
    np.testing.assert_array_equal(fold(raw, ids), expected)
    np.testing.assert_array_equal(fold(raw[:0], ids), [])
    np.testing.assert_array_equal(fold(raw, (9, 3)), [{9: 0, 3: 1}.get(i, -1) for i in raw])


@pytest.mark.slow
def test_a_real_sweep_in_its_folder(tmp_path, scans):
    """Places and labels of the whole sweep; skips where it is not."""
    sweep = scans / "nc" / "semantickitti_00_000000.bin"
    if not sweep.exists():
        pytest.skip(f"no {sweep}: data of non-commercial terms are not everywhere")
    for sequence in ("00", "08"):
        own = tmp_path / "sequences" / sequence
        for name in ("velodyne", "labels"):
            (own / name).mkdir(parents=True)
        (own / "velodyne" / "000000.bin").symlink_to(sweep)
        (own / "labels" / "000000.label").symlink_to(sweep.with_suffix(".label"))
    cloud = dataset("semantic_kitti", tmp_path, ["00"], None).train[0]()
    assert len(cloud) == 123_389
    assert len(np.unique(cloud.labels)) > 10
    # Classes lie where they lie in streets.
    height = {c: np.median(cloud.positions[cloud.labels == c, 2]) for c in (8, 12)}
    assert height[8] < height[12]
