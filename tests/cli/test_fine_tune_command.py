"""``voxax train`` from weights: files, checkpoints of other runs, parts, the best step."""

import json
import re

import numpy as np
import pytest
from flax import nnx

import voxax as vx
from cli.small_network import small
from cli.test_train_command import kitti, losses
from voxax.cli import main
from voxax.cli.detection_task import BoxPreparation
from voxax.cli.segmentation_task import Segmentation
from voxax.cli.tasks import restore, task_of
from voxax.detection import Objects
from voxax.interop.sources import weights_of
from voxax.io import PointCloud
from voxax.io.annotated import AnnotatedScan
from voxax.io.mean_features import MeanFeatures
from voxax.models.checkpoint import load_description, newest_step
from voxax.models.fine_tuning import average_in

pytestmark = pytest.mark.lax_promotion  # optax promotes step counts

SPUNET = """
name = "spunet-14"
options = {channels = [4, 4, 4, 4, 4, 4, 4, 4], stem = 4, stem_kernel_size = 3}
"""
SIZES = {"channels": (4,) * 8, "stem": 4, "stem_kernel_size": 3}


def with_keys(path, model="", training="", data="", name="other.toml"):
    """The configuration with more keys in its tables."""
    text = path.read_text()
    for table, keys in (("model", model), ("training", training), ("data", data)):
        text = text.replace(f"[{table}]\n", f"[{table}]\n{keys}\n")
    other = path.parent / name
    other.write_text(text)
    return other


def trained(folder):
    return restore(folder, task_of(folder).trainer())


def arrays(module):
    state = nnx.state(module, nnx.Any(nnx.Param, nnx.BatchStat))
    return {".".join(map(str, p)): np.asarray(v[...]) for p, v in nnx.to_flat_state(state)}


@pytest.mark.slow
def test_a_run_from_another_one_with_all_that_is_set(tmp_path, rng, capsys, monkeypatch):
    monkeypatch.setattr(Segmentation, "model", lambda self: self.as_its_source(small(self)))
    path = kitti(tmp_path, rng)
    assert main(["train", str(path), "--out", str(tmp_path / "first")]) == 0
    before = arrays(trained(tmp_path / "first/checkpoint").model())
    more = with_keys(
        path,
        model='weights = "first/checkpoint"',
        training='frozen = ["stem"]\nema = 0.5\naccumulate = 2\nprecision = "bfloat16"\n'
        "part_learning_rates = {head = 0.1}\npatience = 99",
    )
    out = tmp_path / "second"
    capsys.readouterr()
    assert main(["train", str(more), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "model.weights = 'first/checkpoint': all weights taken" in said
    task, trainer = task_of(out / "checkpoint"), trained(out / "checkpoint")
    assert (task.frozen, task.ema, task.accumulate) == (("stem",), 0.5, 2)
    assert (task.dtype, task.part_rates) == ("bfloat16", {"head": 0.1})
    own = {".".join(map(str, p)): np.asarray(v[...]) for p, v in nnx.to_flat_state(trainer.params)}
    for name, value in own.items():
        assert np.array_equal(before[name], value) == name.startswith("stem"), name
    mean = nnx.to_flat_state(average_in(trainer.optimizer_state, trainer.params))
    assert any(np.abs(v[...] - own[".".join(map(str, p))]).max() > 1e-5 for p, v in mean)
    assert np.isfinite(losses(out)).all()

    # The best step: the score that is written is that of its folder, and no validation had more.
    metrics = json.loads((out / "metrics.json").read_text())
    scores = {**dict(metrics["validations"]), 6: metrics["val_miou"]}
    best = load_description(out / "best")
    assert metrics["best"] == {"score": best["score"], "step": best["step"]}
    assert best["score"] == max(scores.values()) == scores[best["step"]]
    assert newest_step(out / "best") == best["step"]
    assert f"best  {out / 'best'}, step {best['step']}" in said
    assert main(["train", str(more), "--out", str(out), "--resume"]) == 0
    assert main(["train", str(more), "--out", str(out)]) == 2
    (out / "checkpoint").rename(tmp_path / "gone")
    assert main(["train", str(more), "--out", str(out)]) == 2
    assert "holds a run already, up to step" in capsys.readouterr().err


@pytest.mark.slow
def test_training_stops_early(tmp_path, rng, capsys, monkeypatch):
    monkeypatch.setattr(Segmentation, "model", small)
    scores = iter([0.1, 0.5, 0.5, 0.4, 0.9, 0.9])
    scored = "voxax.cli.segmentation_task.SegmentationScore.value"
    path = with_keys(kitti(tmp_path, rng, steps=40), training="patience = 2")
    found = {}

    def value(self):
        if id(self) not in found:  # a score is asked for its value several times
            found[id(self)] = next(scores), self
        return found[id(self)][0]

    monkeypatch.setattr(scored, value)
    assert main(["train", str(path)]) == 0
    said = capsys.readouterr().out
    assert "no better than step 4, so training stops" in said
    out = tmp_path / "runs"
    assert newest_step(out / "checkpoint") == 8
    # The last validation, of the same step, was told to be better than that of step 4.
    assert newest_step(out / "best") == 8
    assert json.loads((out / "metrics.json").read_text())["steps"] == 8


@pytest.mark.slow
def test_weights_of_a_file(tmp_path, rng, capsys):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    network = vx.models.create("spunet-14", in_channels=4, num_classes=7, **SIZES)
    vx.models.save(network, tmp_path / "w.safetensors")
    path = kitti(tmp_path, rng, steps=1)
    path.write_text(
        path.read_text().replace('attributes = ["intensity"]', "").replace("width", "#")
    )
    data = 'inputs = ["xyz", "intensity"]'
    weights = 'weights = "w.safetensors"\nsource = "pointcept"'
    assert main(["train", str(with_keys(path, SPUNET + weights, data=data))]) == 2
    said = capsys.readouterr().err
    assert "other.toml: model.weights = 'w.safetensors': " in said
    assert "final.weight is [7, 1, 1, 1, 4] and not [19, 1, 1, 1, 4]" in said
    assert "weights_part = 'w.safetensors' leaves out what does not fit" in said
    part = weights.replace("weights =", "weights_part =")
    frozen = 'frozen = ["stem", "down", "down_blocks", "up", "up_blocks"]'
    assert main(["train", str(with_keys(path, SPUNET + part, frozen, data))]) == 0
    said = capsys.readouterr().out
    assert "model.weights_part = 'w.safetensors': as pointcept has them: " in said
    assert (
        "begin with random weights: 'head' (linear: weight (4, 19), bias (19,)) (final has" in said
    )
    assert "left out of the file: final.weight" in said
    task = task_of(tmp_path / "runs/checkpoint")
    assert (task.source, task.inputs) == ("pointcept", ("xyz", "intensity"))
    theirs, ours = weights_of(network), weights_of(trained(tmp_path / "runs/checkpoint").model())
    for name, value in theirs.items():
        assert name.startswith("final") or np.array_equal(ours[name], value), name
    scan = next((tmp_path / "kitti").rglob("*.bin"))
    command = ["segment", str(scan), "--checkpoint", str(tmp_path / "runs/checkpoint")]
    assert main([*command, "--out", str(tmp_path / "seen")]) == 0


def test_a_codebase_s_settings_stay_with_the_run():
    common = {"class_names": ("a", "b"), "voxel_size": 0.1, "width": 1.0, "learning_rate": 1e-3}
    task = Segmentation(**common, steps=4, network="spunet-14", options=SIZES)
    for source, epsilon in (("", 1e-3), ("torch-pointcloud", 1e-5)):
        values = {**json.loads(json.dumps(task.to_json())), "source": source}
        model = nnx.eval_shape(Segmentation.from_json(values).model)
        assert model.down[0].norm.epsilon == epsilon
        assert model.up_blocks[0][0].norm.epsilon == epsilon


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        (
            'weights = "none.pth"',
            "",
            r"model\.weights = 'none\.pth': there is no .*none\.pth: give",
        ),
        ('weights_part = "kitti"', "", r"model\.weights_part = 'kitti': .*kitti is not a file"),
        ("", 'frozen = ["haed"]', r"training\.frozen: 'haed' is no part of MinkUNet .*'head'"),
        ("", "part_learning_rates = {haed = 2}", r"part_learning_rates: 'haed' is no part of"),
    ],
)
def test_mistakes_before_scans_are_read(model, training, message, tmp_path, rng, capsys):
    path = kitti(tmp_path, rng)
    for scan in (tmp_path / "kitti").rglob("*.bin"):
        scan.write_bytes(b"")  # reading one would be another error
    assert main(["train", str(with_keys(path, model, training))]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert "other.toml: " in said


def test_boxes_with_the_channels_of_published_weights(rng):
    positions = rng.uniform((0, -8, -3), (16, 8, 1), (400, 3))
    cloud = PointCloud(positions, {"intensity": rng.random(400).astype(np.float32)})
    objects = Objects(np.array([[4.0, 1, -1, 4, 2, 1.5, 0.3]]), np.array(["Car"]))
    low, high, inputs = (0.0, -8.0, -3.0), (16.0, 8.0, 1.0), ("xyz", "intensity", "zero")
    preparation = BoxPreparation(("Car",), 0.5, low, high, inputs=inputs)
    assert preparation.num_channels == 5
    example = preparation(AnnotatedScan(cloud, objects, None))
    alone = MeanFeatures(0.5, inputs, low, high)(cloud).voxels
    np.testing.assert_array_equal(example.voxels.coords, alone.coords)
    np.testing.assert_array_equal(example.voxels.features, alone.features)
    inside = np.asarray(alone.valid_features())
    assert inside[:, 0].max() > 8  # positions in the scan, not in cells
    assert inside[:, 1].min() < -4
    assert np.all(inside[:, 4] == 0)
    boxes, classes = example.labels
    np.testing.assert_allclose(boxes[0, 0], objects.boxes[0], rtol=1e-6)
    assert classes[0, 0] == 0
