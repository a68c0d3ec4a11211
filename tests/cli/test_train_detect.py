"""`voxax train` with task = "detect", on folders in the layouts of KITTI and nuScenes."""

import json

import numpy as np
import pytest

import folders
from cli.run_results import interrupted, losses
from parallel.own_devices import on_devices
from voxax.cli import main
from voxax.cli.detection_task import BoxPreparation
from voxax.cli.folder_detection import FolderDetection, box_transform
from voxax.detection import points_in_boxes
from voxax.io.annotated import AnnotatedScan
from voxax.io.dataset import dataset
from voxax.models.center_training import CenterTrainer

LEAST = """
task = "detect"
out = "runs"
[data]
format = "{kind}"
folder = "{kind}"
{split}
workers = 0
[model]
name = "{name}"
voxel_size = {voxel_size}
width = {width}
region = {region}
[training]
steps = 4
batch_size = 2
learning_rate = 1e-3
checkpoint_every = 2
validate_every = 1
samples = 2
"""
FRONT = "[8, -8, -3, 24, 8, 1]"
AROUND = "[-16, -16, -4, 16, 16, 4]"


def kitti(folder, rng, name="small", **more):
    frames = [f"{i:06d}" for i in range(4)]
    split = {"train": frames[:3], "val": frames[3:]}
    folders.kitti_objects(folder / "kitti", rng, frames, split=split)
    given = {"kind": "kitti", "split": "", "voxel_size": 0.5, "width": 0.25, "region": FRONT}
    path = folder / "run.toml"
    path.write_text(LEAST.format(**given | more, name=name))
    return path


def nuscenes(folder, rng, name="small", **more):
    folders.nuscenes(folder / "nuscenes", rng, {"scene-0001": 3, "scene-0002": 1})
    split = 'train = ["scene-0001"]\nvalidation = ["scene-0002"]'
    given = {"kind": "nuscenes", "split": split, "voxel_size": 0.5, "width": 0.25}
    path = folder / "run.toml"
    path.write_text(LEAST.format(**given | {"region": AROUND} | more, name=name))
    return path


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
def test_an_interrupted_run_goes_on_as_if_nothing_was(tmp_path, rng, capsys, monkeypatch):
    path, whole, parts = kitti(tmp_path, rng), tmp_path / "whole", tmp_path / "parts"
    assert main(["train", str(path), "--out", str(whole)]) == 0
    said = capsys.readouterr().out
    assert "3 scans to train on, 1 to validate with, 3 classes" in said
    metrics = json.loads((whole / "metrics.json").read_text())
    assert metrics["task"] == "detect"
    assert metrics["voxels_dropped"] == 0
    assert metrics["val_frames"] == 1
    assert set(metrics["val_ap_3d"]) == {"Car", "Pedestrian", "Cyclist"}
    with interrupted(CenterTrainer, 2):
        assert main(["train", str(path), "--out", str(parts)]) == 130
    assert main(["train", str(path), "--out", str(parts), "--resume"]) == 0
    assert losses(parts) == losses(whole)

    scan = str(tmp_path / "kitti/training/velodyne/000003.bin")
    found = ["--checkpoint", str(parts / "checkpoint"), "--out", str(tmp_path), "--min-score", "0"]
    assert main(["detect", scan, *found]) == 0
    said = json.loads((tmp_path / "000003_bin_boxes.json").read_text())
    assert len(said["boxes"]) > 0
    assert len(said["boxes"][0]["box"]) == 7
    assert (tmp_path / "000003_bin_boxes.png").stat().st_size > 1000
    np.savez(tmp_path / "far.npz", xyz=np.full((9, 3), 99.0), intensity=np.zeros(9))
    assert main(["detect", str(tmp_path / "far.npz"), *found]) == 2
    assert "far.npz has no points in the region" in capsys.readouterr().err
    assert main(["segment", scan, "--checkpoint", str(parts / "checkpoint")]) == 2
    assert "was trained for the task 'detect', not 'segment'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "second", "voxelnext"])
def test_two_devices_learn_as_one_does(name, tmp_path, rng):
    if name == "small":
        path = kitti(tmp_path, rng)
    else:
        path = nuscenes(tmp_path, rng, name, width=1, voxel_size=0.25)
        path.write_text(path.read_text() + SIZES[name])
    path.write_text(path.read_text().replace("batch_size = 2", "batch_size = 4"))
    commands = [
        ["train", str(path), "--devices", devices, "--out", str(tmp_path / devices)]
        for devices in ("2", "1")
    ]
    on_devices(f"from cli.small_network import run; run(*{commands!r})", devices=1)
    one, two = losses(tmp_path / "1"), losses(tmp_path / "2")
    np.testing.assert_allclose(two, one, rtol=1e-4)
    assert two != one  # not by chance the same program
    metrics = [json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("1", "2")]
    assert [m["devices"] for m in metrics] == [1, 2]
    assert [m["programs_compiled"] for m in metrics] == [2, 2]
    assert [m["voxels_dropped"] for m in metrics] == [0, 0]


SIZES = {
    "small": "",
    "centerpoint": """
        [model.options]
        channels = [4, 4, 4, 4]
        residual = false
        shared = 4
        bev = { layers = [1, 1], channels = [4, 6], up_channels = [5, 3] }
        """,
    "second": """
        [model.options]
        channels = [4, 4, 4, 4]
        out_channels = 4
        bev = { layers = [1, 1], channels = [4, 6], up_channels = [5, 3] }
        """,
    "voxelnext": """
        [model.options]
        channels = [4, 4, 4, 4, 4]
        out_channels = 4
        """,
}


@pytest.mark.slow
@pytest.mark.lax_promotion
@pytest.mark.parametrize("name", ["small", "centerpoint", "second", "voxelnext"])
def test_nuscenes(name, tmp_path, rng):
    more = {} if name == "small" else {"width": 1, "voxel_size": 0.25}
    path = nuscenes(tmp_path, rng, name, **more)
    path.write_text(path.read_text() + SIZES[name])
    assert main(["train", str(path)]) == 0
    metrics = json.loads((tmp_path / "runs/metrics.json").read_text())
    assert metrics["val_samples"] == 1
    assert metrics["voxels_dropped"] == 0
    assert 0 <= metrics["val_nds"] < 0.5
    assert all(np.isfinite(losses(tmp_path / "runs")))
    scan = str(tmp_path / "nuscenes/samples/LIDAR_TOP/scene-0002-0.pcd.bin")
    arguments = ["--checkpoint", str(tmp_path / "runs/checkpoint"), "--min-score", "0"]
    assert main(["detect", scan, *arguments, "--out", str(tmp_path)]) == 0
    said = json.loads((tmp_path / "scene-0002-0_pcd_bin_boxes.json").read_text())
    if name == "second":  # at first one anchor in a hundred is an object: below every score
        assert said["boxes"] == []
    else:
        assert len(said["boxes"][0]["box"]) == (7 if name == "small" else 9)


@pytest.mark.slow
@pytest.mark.lax_promotion
def test_second_has_anchors_of_its_own(tmp_path, rng, capsys):
    path = kitti(tmp_path, rng, "second", width=1, voxel_size=0.125, region="[8, -8, -3, 24, 8, 1]")
    sizes = path.read_text() + SIZES["second"]
    own = "[model.options.anchors]\nCar = [3.7, 1.9, 1.7, -1.7, 0.5, 0.3]\n"
    path.write_text(sizes + own)
    assert main(["train", str(path)]) == 0
    assert all(np.isfinite(losses(tmp_path / "runs")))
    metrics = json.loads((tmp_path / "runs/metrics.json").read_text())
    assert metrics["voxels_dropped"] == 0
    assert metrics["programs_compiled"] == 2
    assert set(metrics["val_aos"]) == {"Car", "Pedestrian", "Cyclist"}
    scan = str(tmp_path / "kitti/training/velodyne/000003.bin")
    found = ["--checkpoint", str(tmp_path / "runs/checkpoint"), "--min-score", "0"]
    assert main(["detect", scan, *found, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    for anchors, message in (
        ("Tram = [3.7, 1.9, 1.7, -1.7]", "give { Car = [length, width, height, bottom] }"),
        ("Car = [3.7, 1.9, 1.7]", "the anchor of Car, [3.7, 1.9, 1.7], must be [length"),
        ("Car = [3.7, 1.9, 1.7, -1.7, 0.3, 0.5]", "unmatched=0.5 and matched=0.3"),
    ):
        path.write_text(f"{sizes}[model.options.anchors]\n{anchors}\n")
        assert main(["train", str(path), "--overwrite"]) == 2
        assert message in capsys.readouterr().err


def test_boxes_change_with_their_points(tmp_path, rng):
    folders.kitti_objects(tmp_path, rng, ["a", "b"])
    scan = dataset("kitti", tmp_path, ["a"], ["b"]).train[0]()
    change = box_transform("kitti", rotate=True, flip=True, scales=(0.9, 1.1))
    moved = change(scan, np.random.default_rng(3))
    assert isinstance(moved, AnnotatedScan)
    real = scan.objects.classes != "DontCare"
    before = points_in_boxes(scan.cloud.positions, scan.objects.boxes[real])
    after = points_in_boxes(moved.cloud.positions, moved.objects.boxes[real])
    assert before.any()
    assert (before == after).mean() > 0.999
    assert not np.allclose(moved.objects.boxes[real], scan.objects.boxes[real])


def test_what_a_network_learns_of_a_sample(tmp_path, rng):
    folders.nuscenes(tmp_path, rng, {"scene-0001": 1, "scene-0002": 1})
    found = dataset("nuscenes", tmp_path, ["scene-0001"], ["scene-0002"])
    scan = found.train[0]()
    task = FolderDetection(
        class_names=found.class_names,
        voxel_size=1.0,
        width=1.0,
        learning_rate=1e-3,
        steps=2,
        network="voxelnext",
        metric="nuscenes",
        bounds=(-32.0, -32.0, -8.0, 32.0, 32.0, 8.0),
    )
    example = task.preparation()(scan)
    boxes, classes = example.labels
    assert boxes.shape == (1, 128, 9)
    names = [found.class_names[k] for k in classes[0] if k >= 0]
    assert sorted(names) == ["barrier", "car", "pedestrian"]
    assert np.isnan(boxes[0, :3, 7:]).all()  # unknown, without a neighbor in time
    assert example.truth.about is scan.about
    assert FolderDetection.from_json(json.loads(json.dumps(task.to_json()))) == task
    assert "second" in task.networks()


def test_mistakes_are_one_line(tmp_path, rng, capsys):
    path = kitti(tmp_path, rng)
    whole = path.read_text()
    for old, new, message in (
        ('"small"', '"ptv3-base"', "model.name = 'ptv3-base'"),
        (FRONT, "[1, 2]", "model.region = [1, 2]: it must be a list of six numbers"),
        (FRONT, "[8, -8, -3, 4, 8, 1]", "a region begins below its end on each axis"),
        ("workers = 0", 'workers = 0\ntrain = ["7"]', "frame '7' has no file"),
        ("workers = 0", "workers = 0\n[augment]\ncrop = 3", "augment.crop = 3.0 would cut boxes"),
        ("workers = 0", 'workers = 0\n[data.classes]\n2 = "Car"', "classes is for format 'files'"),
        ('folder = "kitti"', 'folder = "nowhere"', "no folder"),
    ):
        path.write_text(whole.replace(old, new))
        assert main(["train", str(path)]) == 2, new
        said = capsys.readouterr().err
        assert message in said, said
        assert said.count("\n") == 1
    path.write_text(whole)
    labels = tmp_path / "kitti/training/label_2/000003.txt"
    labels.write_text(folders.KITTI_LABELS.replace("1.87 3.69", "-1.87 3.69"))
    assert main(["train", str(path)]) == 2
    assert "000003.txt:1: Car has height, width, length" in capsys.readouterr().err
    labels.write_text(folders.KITTI_LABELS)
    (tmp_path / "kitti/training/calib/000000.txt").unlink()
    assert main(["train", str(path)]) == 2
    assert "frame '000000' has no file" in capsys.readouterr().err
    (tmp_path / "kitti/ImageSets/train.txt").write_text("")
    assert main(["train", str(path)]) == 2
    assert "train.txt is empty" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["small", "centerpoint"])
def test_a_region_that_a_network_cannot_take_is_told_before_scans_are_read(
    name, tmp_path, rng, capsys, monkeypatch
):
    """In what the user set, not in cells of a grid."""
    monkeypatch.setattr(BoxPreparation, "__call__", lambda *_: pytest.fail("a scan was read"))
    region = "[-20, -20, -2, 20, 20, 2]"
    path = nuscenes(tmp_path, rng, name, voxel_size=0.4, region=region, width=1)
    assert main(["train", str(path)]) == 2
    told = capsys.readouterr()
    assert "grid=" not in told.err
    assert told.err.startswith(
        f"voxax: {path}: model: voxel_size = 0.4 cuts the region from (-20.0, -20.0, -2.0) to "
        f"(20.0, 20.0, 2.0) into 100 x 100 x 10 voxels, which {name} does not take: "
    )
    assert "Give another voxel size, or move the ends of the region" in told.err
    assert told.out == ""


def test_options_that_a_network_does_not_take_are_told_before_scans_are_read(tmp_path, rng, capsys):
    path = nuscenes(tmp_path, rng, "voxelnext", width=1, voxel_size=0.25)
    path.write_text(path.read_text() + "[model.options]\nchannels = [4, 4]\n")
    assert main(["train", str(path)]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"voxax: {path}: model: channels=")
    assert told.out == ""
