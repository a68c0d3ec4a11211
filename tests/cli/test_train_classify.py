"""`voxax train` with task = "classify"."""

import json

import numpy as np
import pytest

import folders
from cli.run_results import interrupted, losses
from parallel.own_devices import on_devices
from voxax.cli import main
from voxax.cli.classification_task import Classification, ClassificationScore, ClassPreparation
from voxax.cli.tasks import restore, task_of
from voxax.errors import InputError
from voxax.io import PointCloud
from voxax.io.dataset import dataset
from voxax.models.classifier import SceneTrainer

SHAPES = """
task = "classify"
out = "runs"
[data]
format = "modelnet"
folder = "modelnet"
workers = 0
[model]
voxel_size = 0.25
[model.options]
blocks = [1, 1]
channels = [8, 8]
stem = 8
[training]
steps = 6
batch_size = 3
learning_rate = 1e-2
checkpoint_every = 2
samples = 4
"""


def shapes(folder, rng, number=4):
    folders.modelnet(folder / "modelnet", rng, number)
    path = folder / "run.toml"
    path.write_text(SHAPES)
    return path


@pytest.mark.slow
def test_two_devices_learn_as_one_does(tmp_path, rng):
    path = shapes(tmp_path, rng)
    commands = [
        ["train", str(path), "--devices", devices, "--out", str(tmp_path / devices)]
        for devices in ("2", "1")
    ]
    on_devices(f"from cli.small_network import run; run(*{commands!r})", devices=1)
    np.testing.assert_allclose(losses(tmp_path / "2"), losses(tmp_path / "1"), rtol=1e-4)
    metrics = [json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("1", "2")]
    assert [m["devices"] for m in metrics] == [1, 2]
    assert metrics[0]["val_accuracy"] == metrics[1]["val_accuracy"]


@pytest.mark.lax_promotion  # optax promotes step counts
def test_an_interrupted_run_goes_on_as_if_nothing_was(tmp_path, rng, capsys, monkeypatch):
    path, whole, parts = shapes(tmp_path, rng), tmp_path / "whole", tmp_path / "parts"
    assert main(["train", str(path), "--out", str(whole)]) == 0
    said = capsys.readouterr().out
    assert f"next: voxax evaluate {whole}/checkpoint DATA" in said
    assert "8 scans to train on, 2 to validate with, 2 classes" in said
    metrics = json.loads((whole / "metrics.json").read_text())
    assert metrics["task"] == "classify"
    assert metrics["val_clouds"] == 2
    assert metrics["voxels_dropped"] == 0
    assert set(metrics["val_class_accuracy"]) == {"flat", "tall"}
    shares = [value for value in metrics["val_class_accuracy"].values() if value is not None]
    assert metrics["val_mean_accuracy"] == pytest.approx(np.mean(shares))

    with interrupted(SceneTrainer, 4):
        assert main(["train", str(path), "--out", str(parts)]) == 130
    assert main(["train", str(path), "--out", str(parts), "--resume"]) == 0
    assert losses(parts) == losses(whole)
    again = json.loads((parts / "metrics.json").read_text())
    assert again["val_accuracy"] == metrics["val_accuracy"]

    # The checkpoint classifies what the run validated with.
    task = task_of(parts / "checkpoint")
    assert isinstance(task, Classification)
    trainer = restore(parts / "checkpoint", task.trainer())
    score = task.score()
    for scan in dataset("modelnet", tmp_path / "modelnet", None, None).validation:
        for truth, prediction in task.scenes(trainer, task.preparation()(scan())):
            score.add(truth, prediction)
    assert score.value() == metrics["val_accuracy"]

    capsys.readouterr()
    scan = str(tmp_path / "modelnet/flat/test/flat_0001.off")
    assert main(["segment", scan, "--checkpoint", str(parts / "checkpoint")]) == 2
    message = "was trained for the task 'classify', not 'segment': `voxax evaluate` takes it"
    assert message in capsys.readouterr().err


def test_scores():
    score = ClassificationScore(("a", "b", "c"))
    for truth, found in ((0, 0), (0, 0), (0, 1), (1, 1), (-1, 2)):
        score.add(np.array([truth]), np.array([found]))
    assert score.value() == 0.75  # what has no class does not count
    assert score.metrics()["val_mean_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    assert score.table()[1][2] == ("c", "absent")


def test_a_cloud_has_one_class(rng):
    positions = rng.uniform(0, 1, (20, 3))
    make = ClassPreparation(0.2)
    assert make(PointCloud(positions)).labels.tolist() == [-1]
    assert make(PointCloud(positions, labels=np.full(20, 3))).labels.tolist() == [3]
    with pytest.raises(InputError, match=r"has points of the classes \[0, 1\]"):
        make(PointCloud(positions, labels=np.arange(20) % 2))


def test_mistakes_in_the_configuration(tmp_path, rng, capsys):
    path = shapes(tmp_path, rng, 1)
    whole = path.read_text()
    for old, new, message in (
        ('"modelnet"\nfolder', '"scannet"\nfolder', "'scannet' is for task = 'segment', the task"),
        ("workers = 0", "workers = 0\nradius = 3", "data.radius = 3.0 is for scans"),
        ("stem = 8", "stern = 8", "small does not take the options {'blocks'"),
        ('folder = "modelnet"', 'folder = "nowhere"', "no folder"),
        ("workers = 0", 'workers = 0\ntrain = ["sofa_0001"]', "begins with none of the 2 classes"),
        ("[data]", "devices = 2\n[data]", "devices"),
    ):
        path.write_text(whole.replace(old, new))
        assert main(["train", str(path)]) == 2, new
        said = capsys.readouterr().err
        assert message in said, said
        assert said.count("\n") == 1


@pytest.mark.lax_promotion
@pytest.mark.parametrize("name", ["spunet-14"])
def test_any_network_of_voxels(name, rng):
    options = {"channels": (8,) * 2, "blocks": (1,) * 2, "stem": 8}
    common = {"class_names": ("a", "b"), "voxel_size": 0.2, "width": 1, "learning_rate": 1e-2}
    task = Classification(network=name, options=options, steps=2, **common)
    assert name in task.networks()
    again = Classification.from_json(json.loads(json.dumps(task.to_json())))
    assert again.network == name
    cloud = PointCloud(rng.uniform(0, 1, (40, 3)), labels=np.ones(40, int))
    example = task.preparation()(cloud)
    trainer = task.trainer()
    before = trainer.step(example.voxels, example.labels)[0]
    assert np.isfinite(before)
    assert [t.tolist() for t, _ in task.scenes(trainer, example)] == [[1]]
