"""Every mistake of a configuration is told before data are read: here there are none to read."""

import re
import sys
from pathlib import Path

import pytest

from cli.edited_config import edited, pairs
from voxax.cli import main

SEGMENT = """
[data]
format = "semantic_kitti"
folder = "nowhere"
[model]
voxel_size = 0.5
[training]
steps = 4
"""
DETECT = """
task = "detect"
[data]
format = "nuscenes"
folder = "nowhere"
[model]
name = "centerpoint"
voxel_size = [0.1, 0.1, 0.2]
[training]
steps = 4
batch_size = 4
"""
FILES = SEGMENT.replace('"semantic_kitti"', '"files"').replace(
    "[model]", 'train = ["a/*"]\nvalidation = ["b/*"]\nclasses = {1 = "a"}\n[model]'
)
TEXTS = {"SEGMENT": SEGMENT, "DETECT": DETECT, "FILES": FILES}
DATA, TRAINING = "[data]\n", "[training]\n"

# An edit of each, and below it what is said after the file's name, or a pattern of that.
MISTAKES = {
    "DETECT": r"""
[model] region = [8, 8, 8, 0, 0, 0]
    model.region = [8.0, 8.0, 8.0, 0.0, 0.0, 0.0], model.voxel_size = [0.1, 0.1, 0.2]: low=
[0.1, 0.1, 0.2] -> [0.1, 0.1, 9]
    model.region = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0], model.voxel_size = [0.1, 0.1, 9]:
[0.1, 0.1, 0.2] -> 1e-4
    .*, model.voxel_size = 0.0001: .* make 1024000 x 1024000 cells in the plane, more than
[0.1, 0.1, 0.2] -> [0.4, 0.4, 0.8]
    model: voxel_size = \[0.4, 0.4, 0.8\] cuts the region .* into 256 x 256 x 10 voxels
[model] options = {grid = [8, 8, 8]}
    model.options has grid, which follows from model.region and model.voxel_size
[data] attributes = ["time"]
    data.attributes = ['time']: format 'nuscenes' has no 'time': its attributes are 'intensi
[data] sweeps = 999
    data.sweeps = 999: it must be a
"centerpoint" -> "second"; options = {anchors = {Tram = [1, 2, 3, 4]}}
    model: anchors = \{'Tram': \[1, 2, 3, 4\]\}: give
[augment] crop = 3
    augment.crop = 3.0 would cut boxes: leave it out
[augment] tilt = 3
    augment.tilt would move points out of boxes: leave it out
[augment] elastic_distortion = [[0.2, 0.4]]
    augment.elastic_distortion would move points out of boxes: leave it out
[augment] paste = {Car = 3}
    augment.paste has 'Car': the classes are 'car', 'truck'
[augment] mix3d = 0.8
    augment.mix3d and augment.polarmix are of task = 'segment': leave them out
[training] lovasz = 1
    training.lovasz = 1.0 is of task = 'segment'
""",
    "SEGMENT": r"""
[model] region = [0, 0, 0, 1, 1, 1]
    model.region = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0] is of task = 'detect'
[data] attributes = ["rgb"]
    data.attributes = ['rgb']: format 'semantic_kitti' has no 'rgb': its attributes are 'inte
[data] inputs = ["xyz", "zero", "color"]
    data.inputs = ['xyz', 'zero', 'color']: format 'semantic_kitti' has no 'color'
[data] attributes = ["zero"]
    data.attributes = ['zero']: format 'semantic_kitti' has no 'zero'
[data] sweeps = 3
    data: sweeps = 3 is for format 'nuscenes'
[data] columns = 4
    data: columns and label_field are for f
[data] classes = {1 = "a"}
    data: classes is for format 'files'
"semantic_kitti" -> "kitti"
    data.format = 'kitti' is for task = 'detect'
voxel_size = 0.5 -> name = "spunet-14"; voxel_size = 0.5; options = {stems = 4}
    model: .*stems
voxel_size = 0.5 -> name = "spunet-14"; voxel_size = 0.5; options = {stem = "four"}
    model: .*stem.*four
voxel_size = 0.5 -> name = "spunet-14"; voxel_size = 0.5; options = {stem = 99999999}
    model: .*stem 99999999 must be at most
[model] weights = "w.safetensors"
    model.weights = 'w.safetensors': there is no
[model] weights_part = "run.toml"
    model.weights_part = 'run.toml':
[training] frozen = ["tail"]
    training.frozen: 'tail' is no part of MinkUNet
[training] part_learning_rates = {tail = 2}
    training.part_learning_rates: 'tail' is no part of MinkUNet
[augment] scale = [2, 1]
    augment.scale = [2.0, 1.0]: the smallest factor comes first
[augment] auto_contrast = 0.2; drop_color = [0.2, 1]
    augment.auto_contrast, augment.drop_color would change colors, which the network does not
[augment] paste = {car = 3}
    augment.paste is of task = 'detect': leave it out
[augment] polarmix = ["car"]
    augment.mix3d and augment.polarmix mix the scenes of a step: give training.batch_size = 2
[augment] polarmix = ["castle"]
    .*; augment.polarmix has 'castle': the classes are 'car', 'bicycle'
[training] patience = 1; accumulate = 5
    training.patience = 1 counts .* too; training.accumulate = 5 leaves .* give fewer
""",
    "FILES": r"""
classes = {1 = "a"} ->
    data: classes is missing: give the ids in
validation = ["b/*"] ->
    data: validation is missing: name the sca
["b/*"] -> ["b/*", "a/*"]
    data: train and validation both have
["b/*"] -> "list.txt"
    data.validation = 'list.txt' names a list, but there is no file
""",
}


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [(name, *pair) for name, table in MISTAKES.items() for pair in pairs(table)],
)
def test_it_is_told_before_data_are_read(name, edit, message, tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(edited(TEXTS[name], edit))
    assert main(["train", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    start, said = f"voxax: {path}: ", told.err.removeprefix(f"voxax: {path}: ")
    assert told.err.startswith(start)
    assert said.startswith(message) or re.match(message, said), said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("loader", "log", "package"),
    [("grain", "", "grain"), ("plain", "wandb", "wandb"), ("plain", "tensorboard", "tensorboardX")],
)
def test_packages_that_are_missing(loader, log, package, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "run.toml"
    text = SEGMENT.replace(DATA, f'{DATA}loader = "{loader}"\n')
    path.write_text(text.replace(TRAINING, f'{TRAINING}log = "{log}"\n'))
    assert main(["train", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"voxax: {path}: ")
    assert f"needs {package}: pip install" in said


def test_scenes_that_devices_cannot_share(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("voxax.cli.train_run.devices_of", lambda config: 3)
    path = tmp_path / "run.toml"
    path.write_text(DETECT)
    assert main(["train", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{path}: training: a batch size of 4 for 3 devices: the dense layers of" in said
    path.write_text(DETECT.replace("batch_size = 4", "batch_size = 2"))
    assert main(["train", str(path)]) == 2
    assert f"{path}: training: a batch size of 2 leaves 1 of 3 devices" in capsys.readouterr().err


def test_what_is_right_asks_for_the_folder(tmp_path, capsys):
    for text in (SEGMENT, DETECT, FILES):
        path = tmp_path / "run.toml"
        path.write_text(text)
        assert main(["train", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"voxax: {path}: data: no folder {Path(tmp_path / 'nowhere')}")


def test_the_package_that_checks_it_may_be_missing(tmp_path, capsys, monkeypatch):
    modules = sys.modules
    monkeypatch.setitem(modules, "pydantic", None)
    monkeypatch.delitem(modules, "voxax.cli.train_config", raising=False)
    (tmp_path / "run.toml").write_text(SEGMENT)
    assert main(["train", str(tmp_path / "run.toml")]) == 2
    assert 'needs pydantic: pip install "voxax[demo]"' in capsys.readouterr().err
