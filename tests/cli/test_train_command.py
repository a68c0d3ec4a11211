"""``voxax train`` end to end, on small folders."""

import json
import pickle
import re

import numpy as np
import pytest
from flax import nnx

import folders
from cli.run_results import interrupted, losses
from cli.small_network import small
from parallel.own_devices import on_devices
from voxax.cli import main
from voxax.cli.scenes import PrepareBatch
from voxax.cli.segmentation_task import Segmentation
from voxax.cli.train_config import read_config
from voxax.errors import FileFormatError
from voxax.io import read, write_ply
from voxax.io.dataset import dataset
from voxax.io.examples import Preparation

KITTI = """
out = "runs"
[data]
format = "semantic_kitti"
folder = "kitti"
train = ["00"]
validation = ["08"]
attributes = ["intensity"]
workers = 0
[model]
voxel_size = 1.0
width = 0.25
[training]
steps = {steps}
batch_size = {batch}
checkpoint_every = 2
validate_every = 1
samples = 4
"""


def kitti(folder, rng, steps=6, batch=2, scans=5):
    folders.semantic_kitti(folder / "kitti", rng, {"00": scans, "08": 3}, points=700)
    path = folder / "run.toml"
    path.write_text(KITTI.format(steps=steps, batch=batch))
    return path


@pytest.mark.parametrize("shards", [1, 3])
def test_a_batch_in_shards_has_every_point_at_its_voxel(shards, tmp_path, rng):
    folders.semantic_kitti(tmp_path, rng, {"00": 3, "08": 1}, points=300)
    scans = dataset("semantic_kitti", tmp_path, ["00"], None).train
    preparation = Preparation(1.0, ("intensity",))
    batch = PrepareBatch(scans, (None,) * 3, preparation, shards, 3)()
    assert batch.voxels.features.ndim == (2 if shards == 1 else 3)
    features = batch.voxels.features.reshape(-1, preparation.num_channels)
    for scan, rows, labels in zip(scans, batch.rows, batch.truths, strict=True):
        alone = preparation(scan())
        np.testing.assert_array_equal(features[rows], alone.voxels.features[alone.inverse])
        own = batch.labels.reshape(-1)[rows]
        np.testing.assert_array_equal(own, alone.labels[alone.inverse])
        np.testing.assert_array_equal(labels, scan().labels)


def test_workers_can_have_the_tasks(tmp_path, rng):
    path = kitti(tmp_path, rng, scans=1)
    path.write_text(path.read_text().replace("workers = 0", "radius = 8") + "[augment]\ncrop = 4\n")
    config = read_config(path)
    (scan,) = config.dataset().train
    transform = config.augment.transform()
    task = PrepareBatch((scan,) * 2, (0, 1), Preparation(1.0), 2, 2, transform)
    own, theirs = task(), pickle.loads(pickle.dumps(task))()
    np.testing.assert_array_equal(own.voxels.features, theirs.voxels.features)
    assert all(0 < len(rows) < 700 for rows in own.rows)


def test_networks_by_name(tmp_path):
    settings = {"class_names": ("a", "b"), "voxel_size": 0.1, "width": 0.25}
    settings |= {"learning_rate": 1e-3, "steps": 4, "network": "MinkUNet18"}
    task = Segmentation(**settings, attributes=("rgb",))
    model = nnx.eval_shape(task.model)
    assert [len(blocks) for blocks in model.down_blocks] == [2] * 4
    assert model.stem.conv.in_channels == 8
    assert Segmentation.from_json(json.loads(json.dumps(task.to_json()))) == task
    old = {"class_names": ["a"], "voxel_size": 1, "width": 1, "learning_rate": 1, "steps": 2}
    assert Segmentation.from_json(old).network == "small"
    with pytest.raises(FileFormatError, match="'resnet' is none of small"):
        Segmentation.from_json({**old, "network": "resnet"})


def test_more_devices_than_scenes_or_than_there_are(tmp_path, rng, capsys):
    import jax

    assert len(jax.devices()) == 1  # JAX has begun
    path = kitti(tmp_path, rng, batch=2)
    assert main(["train", str(path), "--devices", "3"]) == 2
    said = capsys.readouterr().err
    assert "--devices 3: there are 1 devices of platform cpu; give at most 1" in said
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=3" in said
    options = ["--devices", "1", "--batch-size", "0", "--out", str(tmp_path)]
    assert main(["demo", *options]) == 2
    assert "--batch-size 0 must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
def test_an_interrupted_run_goes_on_as_if_nothing_was(tmp_path, rng, capsys, monkeypatch):
    from voxax.models.training import Trainer

    monkeypatch.setattr(Segmentation, "model", small)
    path = kitti(tmp_path, rng)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["train", str(path), "--out", str(whole)]) == 0
    said = capsys.readouterr().out
    assert "5 scans to train on, 3 to validate with, 19 classes" in said
    assert "step 4: loss" in said
    assert "validation mIoU" in said
    metrics = json.loads((whole / "metrics.json").read_text())
    assert metrics["steps"] == 6
    assert metrics["voxels_dropped"] == 0
    assert metrics["val_points"] == 3 * 700
    assert [step for step, _ in metrics["validations"]] == [2, 4]
    assert metrics["programs_compiled"] == 2

    with interrupted(Trainer, 4):
        assert main(["train", str(path), "--out", str(parts)]) == 130
    said = capsys.readouterr().out
    assert f"continue with: voxax train {path} --resume --out {parts}" in said

    assert main(["train", str(path), "--out", str(parts)]) == 2
    assert "holds a run already, up to step 4: give --resume" in capsys.readouterr().err
    other = tmp_path / "other.toml"
    for old, new, message in (
        ("voxel_size = 1.0", "voxel_size = 0.5", "has voxel_size = 1.0, the configuration 0.5"),
        ("steps = 6", "steps = 3", "steps = 3 is less than the 4 steps of the run in"),
        ("batch_size = 2", "batch_size = 1", "was trained with batch_size 2, now it is 1"),
    ):
        other.write_text(path.read_text().replace(old, new))
        assert main(["train", str(other), "--out", str(parts), "--resume"]) == 2
        assert message in capsys.readouterr().err

    assert main(["train", str(path), "--out", str(parts), "--resume"]) == 0
    assert losses(parts) == losses(whole)
    resumed = json.loads((parts / "metrics.json").read_text())
    assert resumed["val_iou"] == metrics["val_iou"]


def test_nothing_to_learn(tmp_path, rng, capsys):
    folders.labeled(tmp_path / "files", rng, ["train/a.npz", "val/b.npz"], 50)
    path = tmp_path / "run.toml"
    text = KITTI.format(steps=2, batch=1).replace('"semantic_kitti"', '"files"')
    for old, new in (('"kitti"', '"files"'), ('"00"', '"train/*"'), ('"08"', '"val/*"')):
        text = text.replace(old, new)
    text = text.replace('attributes = ["intensity"]', 'classes = {1 = "car", 3 = "tree"}')
    labels = "has a class of 'car', 'tree': .*a.npz has the labels 2, 6"
    for more, message in (("", labels), ("radius = 1e-9\n", "is left: radius = 1e-09")):
        path.write_text(text.replace("[model]", f"{more}[model]"))
        assert main(["train", str(path)]) == 2
        said = capsys.readouterr().err
        assert re.search(f"data: no point of 1 of the training scans {message}", said)


@pytest.mark.slow
def test_two_devices_learn_as_one_does(tmp_path, rng):
    """In a process that was not told of two devices: the first command makes them."""
    path = kitti(tmp_path, rng, batch=4)
    positions, house = folders.street(rng, 4000, reach=20)
    scan = tmp_path / "scan.npz"
    np.savez(scan, xyz=positions, label=np.where(house, 6, 2))
    demo = ["demo", "--input", str(scan), "--steps", "4", "--voxel-size", "1", "--workers", "0"]
    demo += ["--batch-size", "2"]
    commands = [
        [*command, "--devices", devices, "--out", str(tmp_path / f"{command[0]}{devices}")]
        for command, devices in (
            (["train", str(path)], "2"),
            (["train", str(path)], "1"),
            (demo, "2"),
        )
    ]
    on_devices(f"from cli.small_network import run; run(*{commands!r})", devices=1)
    one, two = losses(tmp_path / "train1"), losses(tmp_path / "train2")
    np.testing.assert_allclose(two, one, rtol=1e-4)
    assert two != one  # not by chance the same program
    names = ("train1", "train2", "demo2")
    metrics = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in names]
    assert [m["devices"] for m in metrics] == [1, 2, 2]
    assert [m["programs_compiled"] for m in metrics] == [2, 2, 2]
    assert metrics[0]["val_miou"] == pytest.approx(metrics[1]["val_miou"], abs=0.02)


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
def test_rooms_and_segment(tmp_path, rng, capsys, monkeypatch):
    monkeypatch.setattr(Segmentation, "model", small)
    names = [f"scene{i:04d}_00" for i in range(3)]
    folders.scannet(tmp_path / "scannet", rng, names)
    (tmp_path / "train.txt").write_text("\n".join(names[:2]) + "\n")
    path = tmp_path / "rooms.toml"
    path.write_text(
        f"""
        [data]
        format = "scannet"
        folder = "scannet"
        train = "train.txt"
        validation = ["{names[2]}"]
        attributes = ["rgb"]
        workers = 0
        [augment]
        crop = 3
        jitter = 0.01
        drop = 0.1
        [model]
        voxel_size = 0.2
        [training]
        steps = 2
        learning_rate = 1e-3
        """
    )
    assert main(["train", str(path)]) == 0
    out = tmp_path / "voxax-train"
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["voxels_dropped"] == 0
    present = {name for name, iou in metrics["val_iou"].items() if iou is not None}
    assert present == {"wall", "floor"}

    scan = tmp_path / "scan.ply"
    positions, colors = rng.uniform(0, 9, (300, 3)), rng.integers(0, 256, (300, 3)).astype("u1")
    write_ply(scan, positions, colors=colors)
    arguments = ["--checkpoint", str(out / "checkpoint"), "--out", str(tmp_path)]
    assert main(["segment", str(scan), *arguments]) == 0
    assert len(read(tmp_path / "scan_ply_labeled.ply").labels) == 300
    write_ply(tmp_path / "gray.ply", positions)
    capsys.readouterr()
    assert main(["segment", str(tmp_path / "gray.ply"), *arguments]) == 2
    assert "gray.ply has no attribute 'rgb', which the network reads" in capsys.readouterr().err
