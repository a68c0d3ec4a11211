"""Every layout through the command line: small made folders, and samples that others publish.

The samples are those of clones, unmodified: ``VOXAX_TEST_MMDETECTION3D`` names one of
open-mmlab/mmdetection3d, ``VOXAX_TEST_OPENPCDET`` of open-mmlab/OpenPCDet,
``VOXAX_TEST_ARGOVERSE2`` of argoverse/av2-api, and ``VOXAX_TEST_NUSCENES_DEVKIT`` folders to import
nuScenes' kit from. OpenPCDet and the kit have lists of frames and scenes, and no scan.
"""

import ast
import csv
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import folders
from cli.made_checkpoints import detector, segmenter
from cli.small_network import small
from voxax.cli import main
from voxax.cli.segmentation_task import Segmentation
from voxax.detection import points_in_boxes
from voxax.errors import FileFormatError
from voxax.io.argoverse2 import ARGOVERSE2_CLASSES
from voxax.io.dataset import FORMATS, layout_of, recognized
from voxax.io.kitti_objects import KITTI_CLASSES
from voxax.io.nuscenes import MINI_VALIDATION, NUSCENES_CLASSES, VALIDATION
from voxax.io.s3dis import S3DIS_CLASSES
from voxax.io.scannet import SCANNET_CLASS_NAMES
from voxax.io.semantic_kitti import SEMANTIC_KITTI_CLASS_NAMES

RUN = """
task = "{task}"
out = "runs"
[data]
format = "{kind}"
folder = "{folder}"
{data}
workers = 0
{classes}
[model]
{model}
[training]
steps = 2
batch_size = 1
learning_rate = 1e-3
checkpoint_every = 1
samples = 1
"""
FRONT, AROUND = "[8, -8, -3, 24, 8, 1]", "[-16, -16, -4, 16, 16, 4]"
CLASSIFIER = "voxel_size = 0.25\n[model.options]\nblocks = [1, 1]\nchannels = [8, 8]\nstem = 8\n"


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    monkeypatch.setattr(Segmentation, "model", small)


def through(tmp_path, capsys, kind, folder, *, data="", classes="", voxel_size=1.0, region=AROUND):
    """Train two steps, resume for a third, evaluate, and apply; return the scores."""
    task, path = FORMATS[kind], tmp_path / "run.toml"
    model = f"voxel_size = {voxel_size}\n"
    if task == "detect":
        model += f"width = 0.25\nregion = {region}\n"
    text = RUN.format(
        task=task,
        kind=kind,
        folder=folder,
        data=data,
        classes=classes,
        model=CLASSIFIER if task == "classify" else model,
    )
    path.write_text(text)
    assert main(["train", str(path)]) == 0, capsys.readouterr().err
    path.write_text(text.replace("steps = 2", "steps = 3"))
    assert main(["train", str(path), "--resume"]) == 0, capsys.readouterr().err
    with (tmp_path / "runs/losses.csv").open() as lines:
        losses = [float(row["loss"]) for row in csv.DictReader(lines)]
    assert len(losses) == 3
    assert np.isfinite(losses).all()
    checkpoint, out = tmp_path / "runs/checkpoint", tmp_path / "out"
    usual = ["--out", str(out), "--workers", "0", "--split", "validation"]
    assert main(["evaluate", str(checkpoint), str(path), *usual]) == 0, capsys.readouterr().err
    if task != "classify":
        # Of a folder with a layout its name is told by what is there, unless two would fit.
        given = [str(folder), *([] if recognized(folder) == kind else ["--format", kind])]
        if data:
            given = [str(path)]
        command = [task, *given, "--checkpoint", str(checkpoint), *usual]
        assert main(command) == 0, capsys.readouterr().err
        assert any(p.name != "metrics.json" for p in out.rglob("*") if p.is_file())
    return json.loads((out / "metrics.json").read_text())


def scannet(folder, rng):
    scenes = ("scene0000_00", "scene0001_00")
    folders.scannet(folder, rng, scenes)
    return lists(folder, scenes)


def lists(folder, scenes):
    for split, name in zip(("train", "val"), scenes, strict=True):
        (folder / f"scannetv2_{split}.txt").write_text(f"{name}\n")
    return folder


def pointcept(labels, places, classes):
    return lambda folder, rng: folders.pointcept(folder, rng, places, labels, 300, classes)


def kitti(folder, rng):
    split = {"train": ["000000"], "val": ["000001"]}
    return folders.kitti_objects(folder, rng, ["000000", "000001"], split=split)


def waymo(folder, rng):
    folders.waymo(folder, rng, ["0000000", "1000000"])
    return folder


def argoverse2(folder, rng):
    pytest.importorskip("pyarrow")
    folders.argoverse2(folder, rng, {"train/a": 1, "val/b": 1})
    return folder


def nuscenes(folder, rng):
    return folders.nuscenes(folder, rng, {"scene-0061": 1, "scene-0103": 1})


def lidarseg(folder, rng):
    return folders.lidarseg(nuscenes(folder, rng), lambda rows: np.abs(rows[:, 0]).astype(int) % 16)


def scannet200(folder, rng):
    scenes = ("scene0000_00", "scene0001_00")
    return lists(folders.scannet200(folder, rng, scenes), scenes)


def modelnet_hdf5(folder, rng):
    pytest.importorskip("h5py")
    folder.mkdir()
    return folders.modelnet_hdf5(folder, rng)


AREAS = [f"Area_{i}/office_1" for i in range(1, 7)]
SCENES = ["train/scene0000_00", "val/scene0001_00"]
LABELED = '[data.classes]\n2 = "ground"\n6 = "building"'
# A maker, and what the configuration says beside the usual.
MADE = {
    "semantic_kitti": (
        lambda folder, rng: folders.semantic_kitti(folder, rng, {"00": 1, "08": 1}, 300),
        {"data": 'train = ["00"]'},
    ),
    "scannet": (scannet, {"voxel_size": 0.5}),
    "scannet200": (scannet200, {"voxel_size": 0.5}),
    "scannet_pointcept": (pointcept("segment20.npy", SCENES, 20), {}),
    "scannet200_pointcept": (pointcept("segment200.npy", SCENES, 200), {}),
    "s3dis": (lambda folder, rng: folders.s3dis(folder, rng, AREAS, 100), {}),
    "s3dis_pointcept": (pointcept("segment.npy", AREAS, 13), {}),
    "shapenet_part": (folders.shapenet_part, {"voxel_size": 0.5}),
    "files": (
        lambda folder, rng: folders.labeled(folder, rng, ["train/a.npz", "val/b.ply"]),
        {"data": 'train = ["train/*"]\nvalidation = ["val/*"]', "classes": LABELED},
    ),
    "waymo": (waymo, {}),
    "kitti": (kitti, {"region": FRONT, "voxel_size": 0.5}),
    "nuscenes": (nuscenes, {}),
    "nuscenes_lidarseg": (lidarseg, {}),
    "argoverse2": (argoverse2, {}),
    "modelnet": (folders.modelnet, {}),
    "modelnet as HDF5": (modelnet_hdf5, {}),
}


def test_there_is_a_small_folder_of_each_layout():
    assert {name.partition(" ")[0] for name in MADE} == set(FORMATS)


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
@pytest.mark.parametrize("name", MADE)
def test_made_folders(name, tmp_path, rng, capsys):
    make, more = MADE[name]
    folder = make(tmp_path / "data", rng)
    through(tmp_path, capsys, name.partition(" ")[0], folder, **more)


def clone_of(variable):
    place = os.environ.get(variable)
    if not place:
        pytest.skip(f"set {variable} to a clone, as the docstring of this file says")
    return Path(place)


@pytest.fixture
def mmdetection3d():
    return clone_of("VOXAX_TEST_MMDETECTION3D")


@pytest.mark.slow
@pytest.mark.lax_promotion
def test_semantic_kitti_of_mmdetection3d(mmdetection3d, tmp_path, capsys):
    """Its one sweep is in sequence 00; a link makes it 08 too, to validate with."""
    own = mmdetection3d / "tests/data/semantickitti/sequences/00"
    (tmp_path / "data/sequences").mkdir(parents=True)
    for name in ("00", "08"):
        (tmp_path / "data/sequences" / name).symlink_to(own)
    data = 'train = ["00"]'
    scores = through(tmp_path, capsys, "semantic_kitti", tmp_path / "data", data=data)
    assert scores["scans"] == 1
    labels = np.fromfile(own / "labels/000000.label", "<u4")
    assert 0 < scores["val_points"] <= len(labels)


@pytest.mark.slow
@pytest.mark.lax_promotion
def test_argoverse2_of_its_interface(tmp_path, capsys):
    """Two real sweeps; the log is linked into two splits."""
    pytest.importorskip("pyarrow")
    clone = clone_of("VOXAX_TEST_ARGOVERSE2") / "tests/unit/test_data/sensor"
    (log,) = (clone / "val").iterdir()
    for split in ("train", "val"):
        (tmp_path / "data" / split).mkdir(parents=True)
        (tmp_path / "data" / split / log.name).symlink_to(log)
    scores = through(tmp_path, capsys, "argoverse2", tmp_path / "data")
    assert sum(scores["val_objects"].values()) > 10
    for scan in layout_of("argoverse2", clone).scans(["val"]):
        _check_counts(log, scan)
    (first, _) = layout_of("argoverse2", clone).scans(["test"], labeled=False)
    assert len(first().cloud) > 90_000


def _check_counts(log, scan):
    """The annotations say how many points are in each box."""
    from pyarrow import feather

    table = feather.read_table(log / "annotations.feather")
    columns = {
        name: np.asarray(table.column(name)) for name in ("timestamp_ns", "num_interior_pts")
    }
    expected = columns["num_interior_pts"][columns["timestamp_ns"] == scan.timestamp]
    read = scan()
    found = points_in_boxes(read.cloud.positions, read.objects.boxes).sum(axis=0)
    assert len(found) == len(expected) > 50
    # Positions are of half precision: a point on a face may be counted on the other side.
    np.testing.assert_allclose(found, expected, atol=3, rtol=0.02)


COLORED = "x,y,z,red,green,blue"
ELONGATED = "x,y,z,intensity,elongation,_"
# Preprocessed files: what command reads each, and as what columns.
FILES = [
    ("segment", "tests/data/semantickitti/sequences/00/velodyne/000000.bin", None),
    ("segment", "tests/data/scannet/points/scene0000_00.bin", COLORED),
    ("segment", "tests/data/s3dis/points/Area_1_office_2.bin", COLORED),
    ("segment", "tests/data/sunrgbd/points/000001.bin", COLORED),
    ("segment", "demo/data/scannet/scene0000_00.bin", COLORED),
    ("segment", "demo/data/sunrgbd/000017.bin", COLORED),
    ("detect", "tests/data/kitti/training/velodyne_reduced/000000.bin", None),
    ("detect", "tests/data/waymo/kitti_format/training/velodyne/0000000.bin", ELONGATED),
    ("detect", "demo/data/kitti/000008.bin", None),
    ("detect", "demo/data/nuscenes/{nuscenes}", None),
    ("detect", "tests/data/nuscenes/samples/LIDAR_TOP/{sample}", None),
]
NAMES = {
    "nuscenes": "n015-2018-07-24-11-22-45+0800__LIDAR_TOP__1532402927647951.pcd.bin",
    "sample": "n015-2018-08-02-17-16-37+0800__LIDAR_TOP__1533201470948018.pcd.bin",
}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "file", "columns"), FILES)
def test_files_of_mmdetection3d(command, file, columns, mmdetection3d, tmp_path, capsys):
    path = mmdetection3d / file.format(**NAMES)
    if command == "segment":
        attributes = ("rgb",) if columns else ("intensity",)
        classes = SCANNET_CLASS_NAMES if columns else SEMANTIC_KITTI_CLASS_NAMES
        checkpoint = segmenter(tmp_path / "checkpoint", classes, 0.5, attributes=attributes)
    else:
        bounds = (-64.0, -64.0, -4.0, 64.0, 64.0, 4.0)
        checkpoint = detector(tmp_path / "checkpoint", KITTI_CLASSES, "kitti", bounds, 1.0)
    given = ["--checkpoint", str(checkpoint), "--out", str(tmp_path / "out")]
    given += ["--columns", columns] if columns else []
    assert main([command, str(path), *given]) == 0, capsys.readouterr().err
    assert any((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_waymo_of_mmdetection3d_without_its_boxes(mmdetection3d, tmp_path, capsys):
    folder = mmdetection3d / "tests/data/waymo/kitti_format"
    assert recognized(folder) == "waymo"
    bounds = (-64.0, -64.0, -4.0, 64.0, 64.0, 4.0)
    checkpoint = detector(tmp_path / "checkpoint", KITTI_CLASSES, "waymo", bounds, 1.0)
    usual = ["--checkpoint", str(checkpoint), "--out", str(tmp_path), "--workers", "0"]
    assert main(["detect", str(folder), "--split", "validation", *usual]) == 0
    assert (tmp_path / "1000000_bin_boxes.json").is_file(), sorted(tmp_path.iterdir())


# What is no folder of a data set as it is published, and why it is refused.
REFUSED = [
    ("kitti", "tests/data/kitti", "frame '000000' has no file .*label_2"),
    ("waymo", "tests/data/waymo/kitti_format", r"no folder label_all .* up to version 1\.3"),
    ("nuscenes", "tests/data/nuscenes", r"has no folder v1\.0-\*"),
    ("scannet", "tests/data/scannet", "has no folder scans"),
    ("s3dis", "tests/data/s3dis", "holds no rooms: the layout is .*/ROOM/Annotations"),
]
TRAINED = {"kitti": '["000000"]', "waymo": '["0000000"]', "nuscenes": '["scene-0061"]'}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "folder", "message"), REFUSED)
def test_refused_folders_of_mmdetection3d(kind, folder, message, mmdetection3d, tmp_path, capsys):
    names = TRAINED.get(kind, '["a"]')
    model = f"voxel_size = 1\n{f'region = {AROUND}' if FORMATS[kind] == 'detect' else ''}"
    given = {
        "task": FORMATS[kind],
        "kind": kind,
        "folder": mmdetection3d / folder,
        "model": model,
        "classes": "",
    }
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(**given, data=f'train = {names}\nvalidation = ["other"]'))
    assert main(["train", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert re.search(message, said), said
    # All of them keep what is missing in a pickle, and the message says so.
    assert "is a pickle, which may run code, and is not read; give the data set's own" in said
    checkpoint = _checkpoint(kind, tmp_path)
    given = [str(mmdetection3d / folder), "--format", kind, "--split", ast.literal_eval(names)[0]]
    assert main(["evaluate", str(checkpoint), *given, "--out", str(tmp_path / "out")]) == 2
    assert re.search(message, capsys.readouterr().err)


def _checkpoint(kind, tmp_path):
    place, bounds = tmp_path / "checkpoint", (-16.0, -16.0, -4.0, 16.0, 16.0, 4.0)
    if FORMATS[kind] == "detect":
        classes = NUSCENES_CLASSES if kind == "nuscenes" else KITTI_CLASSES
        return detector(place, classes, kind, bounds, 1.0)
    return segmenter(place, S3DIS_CLASSES if kind == "s3dis" else SCANNET_CLASS_NAMES)


def test_lyft_has_other_categories(mmdetection3d):
    """Its tables are those of nuScenes; reading them found no boxes, and said nothing."""
    layout = layout_of("nuscenes", mmdetection3d / "tests/data/lyft/v1.01-train/v1.01-train")
    with pytest.raises(
        FileFormatError, match=r"category\.json has .*, and no category of nuScenes"
    ):
        layout.scans(layout.split("train"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sunrgbd", "scannet", "nuscenes", "kitti"])
def test_a_folder_without_a_layout_is_told_why(name, mmdetection3d, tmp_path, capsys):
    checkpoint = segmenter(tmp_path / "checkpoint", SCANNET_CLASS_NAMES)
    command = ["evaluate", str(checkpoint), str(mmdetection3d / "tests/data" / name)]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pickle" in said or name == "kitti", said


def test_the_lists_of_openpcdet(tmp_path, capsys):
    clone = clone_of("VOXAX_TEST_OPENPCDET")
    layout = layout_of("kitti", clone / "data/kitti")
    sizes = [len(layout.split(name)) for name in ("train", "validation", "test")]
    assert sizes == [3712, 3769, 7518]
    for kind, folder, message in (
        ("kitti", "data/kitti", "has no folder training"),
        ("waymo", "data/waymo", "has no folder label_all"),
        ("argoverse2", "data/argo2", "train is empty: name the scans"),
    ):
        path = tmp_path / "run.toml"
        given = {
            "task": "detect",
            "kind": kind,
            "folder": clone / folder,
            "data": "",
            "classes": "",
        }
        path.write_text(RUN.format(**given, model=f"voxel_size = 1\nregion = {AROUND}"))
        assert main(["train", str(path)]) == 2
        assert message in capsys.readouterr().err


def test_the_splits_of_the_nuscenes_devkit():
    places = os.environ.get("VOXAX_TEST_NUSCENES_DEVKIT", "").split(os.pathsep)
    files = [Path(place) / "nuscenes/utils/splits.py" for place in places if place]
    file = next((path for path in files if path.is_file()), None)
    if file is None:
        pytest.skip("set VOXAX_TEST_NUSCENES_DEVKIT to folders to import nuScenes' kit from")
    found = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    assert set(found["val"]) == VALIDATION
    assert set(found["mini_val"]) == MINI_VALIDATION
    assert not set(found["val"]) & set(found["train_detect"] + found["train_track"])


def test_the_classes_of_argoverse2():
    clone = clone_of("VOXAX_TEST_ARGOVERSE2")
    tree = ast.parse((clone / "src/av2/evaluation/detection/constants.py").read_text())
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and node.target.id == "HIERARCHY"
    )
    assert set(ast.literal_eval(value)["FINEGRAIN"]) == set(ARGOVERSE2_CLASSES)
