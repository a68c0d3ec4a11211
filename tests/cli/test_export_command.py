"""`voxax export`: what it takes, and that its file runs."""

import numpy as np
import pytest
from flax import nnx

from cli.made_checkpoints import detector
from voxax import export
from voxax.cli import main
from voxax.nn.modules import SpatiallySparseConv


def layer():
    """Return the model that `--model` names in this file."""
    return SpatiallySparseConv(3, 2, 1, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("options", [[], ["--cpu", "--cuda"], ["--tpu", "v5e", "--cpu"]])
def test_one_platform_is_needed(options, capsys):
    assert main(["export", "MinkUNet14", "--capacity", "8", *options]) == 2
    assert "give one of --tpu CHIP, --cuda and --cpu" in capsys.readouterr().err


def test_unknown_models_and_chips(capsys):
    assert main(["export", "Nothing", "--capacity", "8", "--cpu"]) == 2
    assert "Nothing is unknown" in capsys.readouterr().err
    name = "test_export_command:layer"
    assert main(["export", name, "--capacity", "8", "--tpu", "abacus"]) == 2
    assert "'abacus' is no TPU topology" in capsys.readouterr().err


def test_checkpoints_that_it_refuses(tmp_path, capsys):
    box = (0.0, 0.0, -2.0, 16.0, 16.0, 2.0)
    folder = detector(tmp_path / "checkpoint", ("Car",), "kitti", box)
    usual = ["export", "--checkpoint", str(folder), "--capacity", "8", "--cpu"]
    assert main(usual) == 2
    assert "is of a detector" in capsys.readouterr().err
    assert main([*usual, "--channels", "4"]) == 2
    assert "--channels and --classes are of the checkpoint's network" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["7x", "tpu7x"])
def test_generations_have_the_names_of_bench(name, monkeypatch, tmp_path):
    asked, path = [], tmp_path / "layer.voxax"

    def written(model, output, **options):
        output.touch()
        asked.append(options["device"])
        return {"platform": "tpu", "device": "TPU7x", "algorithms": []}

    monkeypatch.setattr(export, "export_program", written)
    options = ["--capacity", "8", "--tpu", name, "--output", str(path)]
    assert main(["export", "test_export_command:layer", *options]) == 0
    assert asked == ["tpu7x:2x2x1"]


def test_the_file_runs(tmp_path, capsys):
    pytest.importorskip("flatbuffers")
    from voxax.export import load_program

    path = tmp_path / "layer.voxax"
    options = ["--capacity", "8", "--channels", "3", "--cpu", "--output", str(path)]
    assert main(["export", "test_export_command:layer", *options]) == 0
    told = capsys.readouterr().out
    assert "for cpu" in told
    assert "forward 3 -> 2, 1 taps: " in told
    assert "native kernels: " in told
    features = np.ones((2, 3), np.float32)
    found = load_program(path)([[0, 4, 1, -2], [0, 1, 1, 1]], features)
    weight = np.asarray(layer().weight[...])
    np.testing.assert_allclose(found.features, features @ weight[0], rtol=1e-5)
    np.testing.assert_array_equal(found.rows, [1, 0])
