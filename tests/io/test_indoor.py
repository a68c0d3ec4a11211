"""Indoor data sets as they are published: ScanNet with 200 classes, S3DIS, Pointcept's folders."""

import json
import pickle

import numpy as np
import pytest

import folders
from voxax.errors import FileFormatError
from voxax.io.dataset import dataset, layout_of, recognized
from voxax.io.s3dis import S3DIS_CLASSES
from voxax.io.scannet import SCANNET200_CLASS_NAMES, SCANNET200_CLASSES
from voxax.io.submission import S3disSubmission, ScanNet200Submission

SCENES = ("scene0000_00", "scene0001_00")


@pytest.mark.parametrize(
    ("kind", "labels", "train", "validation", "classes"),
    [
        ("scannet_pointcept", "segment20.npy", "train/scene0000_00", "val/scene0001_00", 20),
        ("scannet200_pointcept", "segment200.npy", "train/scene0000_00", "val/scene0001_00", 200),
        ("s3dis_pointcept", "segment.npy", "Area_1/office_1", "Area_5/hallway_2", 13),
    ],
)
def test_arrays_of_pointcept(kind, labels, train, validation, classes, tmp_path, rng):
    folders.pointcept(tmp_path, rng, [train, validation], labels, classes=classes)
    if kind.startswith("s3dis"):
        for area in (2, 3, 4, 6):
            folders.pointcept(tmp_path, rng, [f"Area_{area}/office_1"], labels, classes=classes)
    if kind != "scannet200_pointcept":
        assert recognized(tmp_path) == kind
    found = dataset(kind, tmp_path, None, None)
    assert len(found.class_names) == classes
    assert [str(scan) for scan in found.validation] == [str(tmp_path / validation)]
    cloud = pickle.loads(pickle.dumps(found.train[0]))()
    own = tmp_path / train
    np.testing.assert_array_equal(cloud.positions, np.load(own / "coord.npy"))
    np.testing.assert_array_equal(cloud.attributes["rgb"], np.load(own / "color.npy"))
    np.testing.assert_array_equal(cloud.attributes["normals"], np.load(own / "normal.npy"))
    np.testing.assert_array_equal(cloud.attributes["instance"], np.load(own / "instance.npy")[:, 0])
    np.testing.assert_array_equal(cloud.labels, np.load(own / labels))
    (bare,) = layout_of(kind, tmp_path).scans([validation], labeled=False)
    assert bare().labels is None


def test_broken_arrays(tmp_path, rng):
    folders.pointcept(tmp_path, rng, ["train/scene0000_00", "val/scene0001_00"], "segment20.npy")
    (scan,) = dataset("scannet_pointcept", tmp_path, None, None).train
    own = tmp_path / "train/scene0000_00"
    np.save(own / "segment20.npy", np.full(40, 99))
    assert (scan().labels == -1).all()
    np.save(own / "color.npy", np.zeros((39, 3), "u1"))
    with pytest.raises(FileFormatError, match=r"color\.npy has the shape \[39, 3\], .* \[40, 3\]"):
        scan()
    np.save(own / "color.npy", np.full((40, 3), "red"))
    with pytest.raises(FileFormatError, match=r"color\.npy holds <U3, no numbers"):
        scan()
    # A claim of more than the file holds takes no memory.
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 3), }\n"
    magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    (own / "coord.npy").write_bytes(magic + header + bytes(24))
    with pytest.raises(FileFormatError, match=r"coord\.npy is cut short: .* 299999999997 numbers"):
        scan()
    (own / "segment20.npy").unlink()
    with pytest.raises(FileFormatError, match=r"has no labels: segment20\.npy is missing"):
        dataset("scannet_pointcept", tmp_path, None, None)
    with pytest.raises(FileFormatError, match=r"office holds no scenes"):
        layout_of("scannet_pointcept", tmp_path).scans(["office"])


def test_scannet200(tmp_path, rng):
    folder = folders.scannet200(tmp_path / "scannet", rng, SCENES)
    found = dataset("scannet200", folder, SCENES[:1], SCENES[1:])
    assert found.class_names == SCANNET200_CLASS_NAMES
    assert len(set(SCANNET200_CLASS_NAMES)) == len(SCANNET200_CLASSES) == 200
    cloud = pickle.loads(pickle.dumps(found.train[0]))()
    path = folder / "scans" / SCENES[0] / f"{SCENES[0]}_vh_clean_2.0.010000.segs.json"
    objects = np.asarray(json.loads(path.read_text())["segIndices"]) // 14
    # Of five objects the first is a chair, the third a wall; others are not among the classes.
    names = [SCANNET200_CLASS_NAMES.index("chair"), -1, SCANNET200_CLASS_NAMES.index("wall"), -1]
    expected = np.array([*names, -1])[objects]
    np.testing.assert_array_equal(cloud.labels, expected)
    np.testing.assert_array_equal(cloud.attributes["instance"], np.where(objects > 3, -1, objects))
    submission = ScanNet200Submission(tmp_path, layout_of("scannet200", folder), "test")
    submission.add(found.train[0], cloud, np.arange(60))
    written = np.loadtxt(tmp_path / f"{SCENES[0]}.txt", dtype=int)
    np.testing.assert_array_equal(written, list(SCANNET200_CLASSES)[:60])


def test_broken_scannet200(tmp_path, rng):
    folder = folders.scannet200(tmp_path / "scannet", rng, SCENES)
    (scan,) = layout_of("scannet200", folder).scans(SCENES[:1])
    segments, objects, listed = map(type(tmp_path), scan.labels)
    for path, text, message in (
        (listed, "a\tb\n1\t2\n", "must have columns id and raw_category"),
        (objects, '{"segGroups": [{"label": "wall"}]}', r"segGroups\[0\] must have a label and"),
        (objects, "[]", "is no JSON with a list segGroups"),
        (segments, '{"segIndices": [1, 2]}', "has 2 vertices, .* has 60"),
        (segments, json.dumps({"segIndices": ["a"] * 60}), "segIndices must be whole numbers"),
        (segments, '{"segIndices": 3}', "segIndices must be a list"),
    ):
        whole = path.read_text()
        path.write_text(text)
        with pytest.raises(FileFormatError, match=message):
            scan()
        path.write_text(whole)
    objects.unlink()
    with pytest.raises(FileFormatError, match=r"has no labels: .*aggregation\.json is missing"):
        layout_of("scannet200", folder).scans(SCENES[:1])


def test_s3dis(tmp_path, rng):
    folders.s3dis(tmp_path, rng, [f"Area_{i}/office_{k}" for i in range(1, 7) for k in (1, 2)])
    assert recognized(tmp_path) == "s3dis"
    found = dataset("s3dis", tmp_path, None, None)
    assert [len(found.train), len(found.validation)] == [10, 2]
    assert found.class_names == S3DIS_CLASSES
    cloud = pickle.loads(pickle.dumps(found.validation[1]))()
    place = tmp_path / "Area_5/office_2/Annotations"
    files = [place / f"{name}_1.txt" for name in ("chair", "floor", "stairs")]
    rows = np.concatenate([np.loadtxt(path) for path in files])
    np.testing.assert_allclose(cloud.positions, rows[:, :3])
    assert cloud.attributes["rgb"].dtype == np.uint8
    np.testing.assert_array_equal(cloud.attributes["rgb"], rows[:, 3:])
    labels = [S3DIS_CLASSES.index(name) for name in ("chair", "floor", "clutter")]
    np.testing.assert_array_equal(cloud.labels, np.repeat(labels, 20))
    np.testing.assert_array_equal(cloud.attributes["instance"], np.repeat([0, 1, 2], 20))
    (bare,) = layout_of("s3dis", tmp_path).scans(["Area_5/office_2"], labeled=False)
    assert bare().labels is None
    submission = S3disSubmission(tmp_path / "out", layout_of("s3dis", tmp_path), "validation")
    (tmp_path / "out").mkdir()
    submission.add(bare, bare(), cloud.labels)
    written = np.loadtxt(tmp_path / "out/Area_5/office_2.txt", dtype=int)
    np.testing.assert_array_equal(written, cloud.labels)


def test_broken_s3dis(tmp_path, rng):
    folders.s3dis(tmp_path, rng, ["Area_5/office_1"])
    layout = layout_of("s3dis", tmp_path)
    with pytest.raises(FileFormatError, match="Area_7 holds no rooms"):
        layout.scans(["Area_7"])
    (scan,) = layout.scans(["Area_5"])
    path = tmp_path / "Area_5/office_1/Annotations/floor_1.txt"
    path.write_text(path.read_text() + "1 2 3 185\x10 187 200\n")  # as in a published file
    with pytest.raises(FileFormatError, match=r"floor_1\.txt"):
        scan()
    for own in path.parent.glob("*.txt"):
        own.unlink()
    with pytest.raises(FileFormatError, match=r"Annotations holds no objects"):
        layout.scans(["Area_5"])
