"""The command line end to end, at toy size."""

import json

import numpy as np
import pytest

from cli.run_results import interrupted
from voxax.cli import main
from voxax.cli.scenes import from_file
from voxax.io import read, write_ply


def labeled_scan(path, rng, points=6000):
    """Ground and boxes over 40 m, with labels 2 and 6."""
    plan = rng.uniform(0, 40, (points, 2))
    house = (plan // 8).sum(1) % 3 == 0
    height = np.where(house, rng.uniform(2, 5, points), 0.0)
    np.savez(path, xyz=np.column_stack([plan, height]), label=np.where(house, 6, 2))
    return path


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
def test_demo_resume_and_segment(tmp_path, rng, capsys):
    out = tmp_path / "run"
    scan = labeled_scan(tmp_path / "scan.npz", rng)
    options = ["--input", str(scan), "--voxel-size", "1.0", "--width", "0.25", "--workers", "0"]
    assert main(["demo", "--out", str(out), "--steps", "6", *options]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["steps"] == 6
    assert set(metrics["val_iou"]) == {"class 2", "class 6"}
    assert metrics["programs_compiled"] == 2
    assert metrics["voxels_dropped"] == 0
    assert (out / "demo.png").stat().st_size > 10_000
    assert "plotly" in (out / "demo.html").read_text()[:6_000_000].lower()

    assert main(["demo", "--out", str(out), "--steps", "9", "--resume", *options]) == 0
    assert json.loads((out / "metrics.json").read_text())["steps"] == 9

    cloud = rng.uniform(0, 30, (500, 3))
    write_ply(tmp_path / "other.ply", cloud)
    arguments = [str(tmp_path / "other.ply"), "--checkpoint", str(out / "checkpoint")]
    assert main(["segment", *arguments, "--out", str(tmp_path)]) == 0
    labeled = read(tmp_path / "other_ply_labeled.ply")
    assert len(labeled) == 500
    assert set(np.unique(labeled.labels)) <= {0, 1}
    assert "class 2" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
def test_interrupt_leaves_a_checkpoint_that_resumes(tmp_path, rng, capsys, monkeypatch):
    from voxax.models.training import Trainer

    scan = labeled_scan(tmp_path / "scan.npz", rng)
    out = tmp_path / "run"
    options = ["--input", str(scan), "--voxel-size", "1.0", "--width", "0.25", "--workers", "0"]
    with interrupted(Trainer, 3):
        assert main(["demo", "--out", str(out), "--steps", "6", *options]) == 130
    assert "interrupted at step 3" in capsys.readouterr().out
    assert main(["demo", "--out", str(out), "--steps", "6", "--resume", *options]) == 0
    assert json.loads((out / "metrics.json").read_text())["steps"] == 6


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
def test_segment_labels_an_empty_cloud_and_one_point(tmp_path, rng):
    scan = labeled_scan(tmp_path / "scan.npz", rng)
    out = tmp_path / "run"
    options = ["--input", str(scan), "--voxel-size", "1.0", "--width", "0.25", "--workers", "0"]
    assert main(["demo", "--out", str(out), "--steps", "2", *options]) == 0
    for points in (0, 1):
        file = tmp_path / f"points{points}.ply"
        write_ply(file, rng.uniform(0, 1, (points, 3)))
        arguments = [str(file), "--checkpoint", str(out / "checkpoint"), "--out", str(out)]
        status = main(["segment", *arguments])
        # An empty file is refused by the reader, in words.
        assert status == (0 if points else 2)


def test_segment_says_what_is_missing(tmp_path, capsys):
    status = main(["segment", str(tmp_path / "no.ply"), "--checkpoint", str(tmp_path)])
    assert status == 2
    assert "no voxax checkpoint in" in capsys.readouterr().err


def test_demo_needs_labels(tmp_path, rng, capsys):
    write_ply(tmp_path / "bare.ply", rng.uniform(0, 30, (50, 3)))
    assert main(["demo", "--input", str(tmp_path / "bare.ply"), "--out", str(tmp_path)]) == 2
    assert "has no labels to learn from: give --labels" in capsys.readouterr().err


def test_scenes_of_a_chosen_field_without_unknown_points(tmp_path, rng):
    kinds = np.arange(600) % 3 * 4.0
    rows = np.column_stack([rng.uniform(0, 40, (600, 2)), np.zeros(600), kinds, np.full(600, 7)])
    rows[::6, 3] = np.nan
    rows.astype("<f4").tofile(tmp_path / "a.bin")
    scenes = from_file(tmp_path / "a.bin", None, "kind", "x y z kind label")
    assert scenes.class_names == ("class 0", "class 4", "class 8")
    labels = np.concatenate([task().labels for task in (*scenes.train, *scenes.validation)])
    shares = np.bincount(labels + 1) / len(labels)
    np.testing.assert_allclose(shares, np.array([1, 1, 2, 2]) / 6, atol=0.03)
    assert from_file(tmp_path / "a.bin", None, None, "x,y,z,_,label").class_names == ("class 7",)
    np.save(tmp_path / "a.npy", np.stack([rows[:, [0, 1, 2, 4]], rows[:, [0, 1, 2, 4]] + 1]))
    scenes = from_file(tmp_path / "a.npy", None, None, "x,y,z,label", item=1)
    assert scenes.class_names == ("class 8",)


def test_hardware_prints_json(capsys):
    assert main(["hardware", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["platform"]["value"] == "cpu"
    assert facts["platform"]["source"]
