"""The configuration file of ``voxax train``: what it takes, and what it says of mistakes."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import folders
from cli.edited_config import edited, pairs
from voxax.cli import main, train_run
from voxax.cli.demo_kinds import width_for
from voxax.cli.train_config import TABLES, TrainConfig, read_config
from voxax.errors import InputError
from voxax.hardware import describe
from voxax.io.point_cloud import PointCloud
from voxax.io.semantic_kitti import TRAIN, VALIDATION

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"

TABLES_OF_NAMES = {"classes", "options", "part_learning_rates", "paste"}

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
        keys = {key: field for key, field in kind.model_fields.items() if key not in TABLES}
        assert shown == keys.keys() - TABLES_OF_NAMES
        for key, field in keys.items():
            assert field.description
            if key not in TABLES_OF_NAMES | {"train", "validation"}:
                (line,) = re.findall(rf"^{key} = .*", documented(), re.MULTILINE)
                assert ("must be given" in line) == field.is_required()
                value = getattr(getattr(config, name) if name else config, key)
                assert field.is_required() or value == field.default
    assert config.split("train") == TRAIN
    assert config.split("validation") == VALIDATION


ALL = """
[augment]
crop = 6
dropout = [0.2, 1]
tilt = 2.8125
jitter = 0.005
elastic_distortion = [[0.2, 0.4], [0.8, 1.6]]
auto_contrast = 0.2
chromatic_translation = 0.05
chromatic_jitter = 0.05
drop_color = [0.2, 0.5]
[model]
"""


def test_every_augmentation_of_the_file_is_applied(tmp_path, rng):
    text = LEAST.replace("[model]", 'attributes = ["rgb"]\n' + ALL)
    text = text.replace("semantic_kitti", "scannet_pointcept")
    augment = read_config(written(tmp_path, text)).augment
    steps = augment.transform().steps
    names = [getattr(step, "func", step).__name__ for step in steps]
    assert names == [
        *("crop", "dropout", "rotate_z", "tilt", "scale", "flip", "jitter"),
        *("elastic_distortion", "auto_contrast", "chromatic_translation", "chromatic_jitter"),
        "drop_color",
    ]
    options = {step.func.__name__: step.keywords for step in steps if hasattr(step, "func")}
    assert options["tilt"]["max_angle"] == pytest.approx(np.pi / 64)
    assert options["elastic_distortion"] == {"pairs": ((0.2, 0.4), (0.8, 1.6))}
    assert options["drop_color"] == {"ratio": 0.2, "probability": 0.5}
    rgb = rng.integers(0, 256, (500, 3)).astype(np.uint8)
    cloud = PointCloud(rng.uniform(0, 5, (500, 3)), {"rgb": rgb}, np.arange(500) % 3)
    changed = augment.transform()(cloud, rng)
    assert 0 < len(changed) <= 400
    assert not np.array_equal(changed.attributes["rgb"], rgb[: len(changed)])


def test_columns_are_names_or_a_number(tmp_path):
    for given, expected in (("5", 5), ('["x", "y", "z", "_"]', ("x", "y", "z", "_")), ("[]", ())):
        text = LEAST.replace("[model]", f'columns = {given}\nlabel_field = "class"\n[model]')
        data = read_config(written(tmp_path, text)).data
        assert (data.columns, data.label_field) == (expected, "class")
    with pytest.raises(
        InputError, match=r"data.columns = 'xyz': it must be a list of strings or a"
    ):
        read_config(written(tmp_path, LEAST.replace("[model]", 'columns = "xyz"\n[model]')))
    read = read_config(written(tmp_path, LEAST.replace("[model]", "columns = 4\n[model]")))
    (tmp_path / "kitti").mkdir()
    with pytest.raises(InputError, match="columns and label_field are for format 'files'"):
        read.dataset()


def test_the_documented_classes(tmp_path):
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    data = '[data]\nformat = "files"\nfolder = "airborne"\ntrain = ["a.laz"]\n'
    rest = "[model]\nvoxel_size = 1\n[training]\nsteps = 1\n"
    config = read_config(written(tmp_path, data + blocks[1] + rest))
    assert config.classes() == {2: "ground", 6: "building"}
    merged = read_config(written(tmp_path, data + blocks[1] + '9 = "ground"\n' + rest))
    assert merged.class_names() == ("ground", "building")


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


def test_the_official_split_in_the_folder(tmp_path, rng):
    """Every layout with a split of its own has it without names in the file, ScanNet too."""
    folders.scannet(tmp_path / "kitti", rng, ["scene0000_00", "scene0001_00"], points=9)
    config = read_config(written(tmp_path, LEAST.replace("semantic_kitti", "scannet")))
    with pytest.raises(InputError, match=r"data: train is empty: .*scannetv2_train\.txt there"):
        config.dataset()
    (tmp_path / "kitti" / "scannetv2_train.txt").write_text("scene0001_00\n")
    (tmp_path / "kitti" / "scannetv2_val.txt").write_text("scene0000_00\n")
    found = config.dataset()
    names = [Path(scans[0].mesh).parent.name for scans in (found.train, found.validation)]
    assert names == ["scene0001_00", "scene0000_00"]


MISTAKES = r"""
[training] ema = 1
    training.ema = 1: it must be a number, at least 0, at most 0.99999
[training] part_learning_rates = {head = 0}
    training.part_learning_rates = {'head': 0}: it must be a table of numbers, above 0
[training] precision = "float16"
    training.precision = 'float16': it must be one of 'float32', 'bfloat16'
[training] accumulate = 5
    accumulate = 5 leaves no update in training.
[training] patience = 1
    patience = 1 counts validations: give training.v
[training] frozen = ["head"]; part_learning_rates = {head = 2}
    training.frozen and training.part_learning_rates both have head: give it in one
[model] weights = "a"; weights_part = "b"
    model.weights and model.weights_part = 'b' exclude each other
[model] source = "pointcept"
    model.source = 'pointcept' is of model.weights or model.weights_part: give one
[data] inputs = ["xyz"]; attributes = ["intensity"]
    data.inputs = ['xyz'] lists all channels: leave data.attributes = ['intensity'] out
[data] signed_colors = true
    data.signed_colors needs 'rgb' in data.inpu
steps = 4 ->
    training.steps is missing: optimizer steps; a whole number, at least 1
steps = 4 -> steps = "4"
    training.steps = '4': it must be a whole number, at least 1
steps = 4 -> steps = 4.5
    training.steps = 4.5: it must be a whole number
steps = 4 -> steps = true
    training.steps = True: it must be a whole number
steps = 4 -> steps = 0
    training.steps = 0: it must be a whole number, at least 1
steps = 4 -> steps =
    is no valid TOML
voxel_size = 0.5 -> voxel_size = 0
    model.voxel_size = 0: it must be a number or a l
voxel_size = 0.5 -> voxel_size = 1e-300
    = 1e-300: it must be a number or a list of three numbers, at least 1e-30
[augment] scale = [1, 1e300]
    augment.scale = [1, 1e+300]: it must be a list of two numbers, above 0, at most
[augment] jitter = 1e300
    augment.jitter = 1e+300: it must be a number, at least 0, at most 1000000000
voxel_size = 0.5 -> voxel_size = nan
    model.voxel_size = nan: it must be a number
"semantic_kitti" -> "lyft"
    data.format = 'lyft': it must be one of 'semantic_kitti'
"semantic_kitti" -> "modelnet"
    'modelnet' is for task = 'classify', the task is
voxel_size = 0.5 -> voxel_size = 1; name = "second"
    model.name = 'second' is not f
voxel_size = 0.5 -> voxel_size = 1; options = 3
    model.options = 3: it must be a
voxel_size = 0.5 -> voxel_size = 1; name = "spunet-14"; width = 2
    model.width = 2.0 is for small
[data] train = [1]
    data.train = [1]: it must be a list of strings or a str
[data] classes = []
    data.classes = []: it must be a table of strings
"kitti" -> "kitti"; [data.classes]; a = "b"
    has the key 'a': ids are whole numbers
"kitti" -> "kitti"; [data.classes]; -1 = "b"
    has the key '-1': ids are whole numbers of at least 0, such as 2 = "ground"; negative
"kitti" -> "kitti"; [data.classes]; 01 = "a"; 1 = "b"
    data.classes has an id twice: 1, 1
[data] train = []; validation = []
    data.train and data.validation = [] names no scan: name some, or leave the key out
[model] -> [modle]
    no key modle: did you mean model? Known are task, out, seed
[augment] scale = [1]
    [1]: it must be a list of two numbers
[augment] drop = 2
    drop = 2: it must be a number, at least 0, below 1
[augment] dropout = [1, 0.5]
    augment.dropout = [1, ...] leaves no point: give a smaller share
[augment] elastic_distortion = [[0.2, 0.4], [1]]
    elastic_distortion = [[0.2, 0.4], [1]]: it must be a list of lists of two numbers,
[augment] elastic_distortion = [[0.2, -1]]
    elastic_distortion = [[0.2, -1]]: it must be a list of lists of two numbers,
[augment] elastic_distortion = [[0, 1]]
    elastic_distortion = [[0, 1]]: it must be a list of lists of two numbers,
[augment] dropout = [0.2, 2]
    augment.dropout = [0.2, 2]: it must be a list of two numbers, at least 0, at most 1
[augment] auto_contrast = 0.2; chromatic_jitter = 0.05
    augment.auto_contrast, augment.chromatic_jitter would change colors, which the
[data] -> augment = 3; [data]
    augment = 3 must be a table: write [augment]
[data] -> devices = 0; [data]
    devices = 0: it must be a whole number, 'all' or
[data] -> devices = "some"; [data]
    devices = 'some': it must be a whole number,
"kitti" -> "nowhere"
    data: no folder
voxel_size = 0.5 -> voxel_size = [1, 2]
    voxel_size = [1, 2]: it must be a number or
voxel_size = 0.5 -> voxel_size = [1, 2, 0]
    or a list of three numbers, at least 1e-
steps = 4 -> step = 4
    no key training.step: did you mean steps? Known are steps, batch_size,
[training] lovasz = -1
    lovasz = -1: it must be a number, at least 0, at
"""


@pytest.mark.parametrize(("edit", "message"), pairs(MISTAKES))
def test_mistakes(edit, message, tmp_path, capsys):
    path = written(tmp_path, edited(LEAST, edit))
    assert main(["train", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith(f"voxax: {path}")


def test_all_mistakes_are_told_at_once(tmp_path):
    path = written(tmp_path, LEAST.replace("0.5", "-1").replace("steps = 4", "step = 0\nema = 2"))
    with pytest.raises(InputError) as caught:
        read_config(path)
    unknown, *rest = str(caught.value).split("; ")
    assert unknown.startswith(f"{path}: there is no key training.step: did you mean steps? Known")
    assert rest == [
        "model.voxel_size = -1: it must be a number or a list of three numbers, at least 1e-30, "
        "at most 1e+30",
        "training.steps is missing: optimizer steps",
        "a whole number, at least 1, at most 2147483647",
        "training.ema = 2: it must be a number, at least 0, at most 0.99999",
    ]
    keys = "".join(f"no{i} = 1\n" for i in range(9))
    with pytest.raises(InputError, match=r"no5: Known are [a-z_, ]*; and 3 more$"):
        read_config(written(tmp_path, LEAST + keys))
    with pytest.raises(InputError, match=r"data.train = \[[1, ]{199}: it must be a list of st"):
        read_config(written(tmp_path, LEAST.replace("[model]", f"train = [{'1,' * 999}]\n[model]")))


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["train", str(tmp_path / "no.toml")]) == 2
    assert "no.toml cannot be read: No such file" in capsys.readouterr().err


def test_all_devices_and_a_width_for_the_host(tmp_path, monkeypatch):
    text = LEAST.replace("[model]", '[model]\nwidth = "auto"')
    config = read_config(written(tmp_path, 'devices = "all"\n' + text))
    assert (config.devices, config.model.width) == ("all", "auto")
    assert train_run.devices_of(config) == describe().num_devices
    assert train_run.width_of(config, None) == width_for(describe())
    monkeypatch.setattr("voxax.cli.train_run.task_of", lambda folder: SimpleNamespace(width=0.75))
    assert train_run.width_of(config, tmp_path) == 0.75  # a checkpoint keeps its own
    fixed = read_config(written(tmp_path, LEAST))
    assert (train_run.devices_of(fixed), train_run.width_of(fixed, tmp_path)) == (1, 1)
