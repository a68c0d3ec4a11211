"""The configuration file of ``voxax train``: what it takes, and what it says of mistakes."""

import dataclasses
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from voxax.cli import main, train
from voxax.cli.demo_kinds import width_for
from voxax.cli.train_config import TABLES, TrainConfig, keys_of, read_config
from voxax.errors import InputError
from voxax.hardware import describe
from voxax.io.dataset import TRAIN, VALIDATION

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"

LEAST = """
[data]
format = "semantic_kitti"
folder = "kitti"
[model]
voxel_size = 0.5
[training]
steps = 4
"""


def written(folder, text):
    path = folder / "run.toml"
    path.write_text(text)
    return path


def documented():
    (text,) = re.findall(r"<!-- every key:.*?```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return text


def test_what_is_left_out_has_a_default(tmp_path):
    config = read_config(written(tmp_path, LEAST))
    assert config.training.steps == 4
    assert config.split("train") is None
    assert config.augment.scale == (0.95, 1.05)
    assert config.place(config.data.folder) == tmp_path / "kitti"


def test_the_documented_file_has_every_key_with_its_default(tmp_path):
    values = tomllib.loads(documented())
    config = read_config(written(tmp_path, documented()))
    for name, kind in {"": TrainConfig, **TABLES}.items():
        shown = set(values.get(name, {}) if name else values) - set(TABLES)
        assert shown == {field.name for field in keys_of(kind)} - {"classes", "options"}
        for field in keys_of(kind):
            if field.name not in ("classes", "options", "train", "validation"):
                (line,) = re.findall(rf"^{field.name} = .*", documented(), re.MULTILINE)
                must = field.default is dataclasses.MISSING
                assert ("must be given" in line) == must
                value = getattr(getattr(config, name) if name else config, field.name)
                assert must or value == field.default
    assert config.split("train") == TRAIN
    assert config.split("validation") == VALIDATION


def test_columns_are_names_or_a_number(tmp_path):
    for given, expected in (("5", 5), ('["x", "y", "z", "_"]', ("x", "y", "z", "_")), ("[]", ())):
        text = LEAST.replace("[model]", f'columns = {given}\nlabel_field = "class"\n[model]')
        data = read_config(written(tmp_path, text)).data
        assert (data.columns, data.label_field) == (expected, "class")
    with pytest.raises(InputError, match=r"data.columns = 'xyz': it must be a list of strings, or"):
        read_config(written(tmp_path, LEAST.replace("[model]", 'columns = "xyz"\n[model]')))
    read = read_config(written(tmp_path, LEAST.replace("[model]", "columns = 4\n[model]")))
    (tmp_path / "kitti").mkdir()
    with pytest.raises(InputError, match="columns and label_field are for format 'files'"):
        read.dataset()


def test_the_documented_classes(tmp_path):
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    rest = "[model]\nvoxel_size = 1\n[training]\nsteps = 1\n"
    config = read_config(written(tmp_path, blocks[1] + rest))
    assert config.classes() == {2: "ground", 6: "building", 9: "water"}


def test_a_split_in_a_text_file(tmp_path):
    text = LEAST.replace('"kitti"', '"kitti"\ntrain = "train.txt"\nvalidation = ["b"]')
    config = read_config(written(tmp_path, text))
    with pytest.raises(InputError, match=r"there is no file .*train\.txt"):
        config.split("train")
    (tmp_path / "train.txt").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        config.split("train")
    (tmp_path / "train.txt").write_text("scene0000_00\n\n scene0001_00\n")
    assert config.split("train") == ("scene0000_00", "scene0001_00")
    assert config.split("validation") == ("b",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 4", "", "training.steps is missing: optimizer steps; a whole number, at least 1"),
        ("steps = 4", "step = 4", "no key training.step: did you mean steps? Known are steps, "),
        ("steps = 4", 'steps = "4"', "training.steps = '4': it must be a whole number, at least 1"),
        ("steps = 4", "steps = 4.5", "training.steps = 4.5: it must be a whole number"),
        ("steps = 4", "steps = true", "training.steps = True: it must be a whole number"),
        ("steps = 4", "steps = 0", "training.steps = 0: it must be a whole number, at least 1"),
        ("steps = 4", "steps = ", "is no valid TOML"),
        ("voxel_size = 0.5", "voxel_size = 0", "model.voxel_size = 0: it must be a number, at"),
        (
            "voxel_size = 0.5",
            "voxel_size = 1e-300",
            "= 1e-300: it must be a number, at least 1e-30",
        ),
        (
            "[model]",
            "[augment]\nscale = [1, 1e300]\n[model]",
            "augment.scale = [1, 1e+300]: it must be a list of two numbers, above 0, at most",
        ),
        (
            "[model]",
            "[augment]\njitter = 1e300\n[model]",
            "augment.jitter = 1e+300: it must be a number, at least 0, at most 1000000000",
        ),
        ("voxel_size = 0.5", "voxel_size = nan", "model.voxel_size = nan: it must be a number"),
        ('"semantic_kitti"', '"waymo"', "data.format = 'waymo': it must be one of semantic_kitti"),
        (
            '"semantic_kitti"',
            '"modelnet"',
            "'modelnet' is for task = 'classify', the task is",
        ),
        ("voxel_size = 0.5", 'voxel_size = 1\nname = "second"', "model.name = 'second': it must"),
        (
            "voxel_size = 0.5",
            "voxel_size = 1\noptions = 3",
            "model.options = 3: it must be a",
        ),
        (
            "voxel_size = 0.5",
            'voxel_size = 1\nname = "spunet-14"\nwidth = 2',
            "model.width = 2.0 is for small",
        ),
        ('"kitti"', '"kitti"\ntrain = [1]', "data.train = [1]: it must be a list of strings, or a"),
        ('"kitti"', '"kitti"\nclasses = []', "data.classes = []: it must be a table of strings"),
        ('"kitti"', '"kitti"\n[data.classes]\na = "b"', "has the key 'a': ids are whole numbers"),
        ("[model]", "[modle]", "no key modle: did you mean model? Known are task, out, seed"),
        ("[model]", "[augment]\nscale = [1]\n[model]", "[1]: it must be a list of two numbers"),
        (
            "[model]",
            "[augment]\ndrop = 2\n[model]",
            "drop = 2: it must be a number, at least 0, at",
        ),
        ("[data]", "augment = 3\n[data]", "augment = 3 must be a table: write [augment]"),
        ("[data]", "devices = 0\n[data]", "devices = 0: it must be a whole number, 'all' or"),
        ("[data]", 'devices = "some"\n[data]', "devices = 'some': it must be a whole number, "),
        ('"kitti"', '"nowhere"', "data: no folder"),
    ],
)
def test_mistakes(old, new, message, tmp_path, capsys):
    assert LEAST.count(old) == 1
    path = written(tmp_path, LEAST.replace(old, new))
    assert main(["train", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith(f"voxax: {path}")


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["train", str(tmp_path / "no.toml")]) == 2
    assert "no.toml cannot be read: No such file" in capsys.readouterr().err


def test_all_devices_and_a_width_for_the_host(tmp_path, monkeypatch):
    text = LEAST.replace("[model]", '[model]\nwidth = "auto"')
    config = read_config(written(tmp_path, 'devices = "all"\n' + text))
    assert (config.devices, config.model.width) == ("all", "auto")
    assert train.devices_of(config) == describe().num_devices
    assert train.width_of(config, None) == width_for(describe())
    monkeypatch.setattr("voxax.cli.tasks.task_of", lambda folder: SimpleNamespace(width=0.75))
    assert train.width_of(config, tmp_path) == 0.75  # a checkpoint keeps its own
    fixed = read_config(written(tmp_path, LEAST))
    assert (train.devices_of(fixed), train.width_of(fixed, tmp_path)) == (1, 1)
