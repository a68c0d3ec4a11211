"""The recipes of ``examples/recipes``: their keys, their networks, and their first steps."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import folders
from voxax.cli import main
from voxax.cli.train_config import read_config

RECIPES = {
    path.stem: path for path in sorted(Path(__file__).parents[2].glob("examples/recipes/*.toml"))
}
BEV = "bev = { layers = [1, 1], channels = [4, 6], up_channels = [5, 3] }"
# What makes a network small; the number of layers stays.
SMALL = {
    "minkunet-34c": "width = 0.125",
    "spunet-34c": "channels = [4, 4, 4, 4, 4, 4, 4, 4]\nstem = 4",
    "ptv3-base": "encoder_channels = [4, 4, 4, 4, 4]\nencoder_num_heads = [1, 1, 1, 1, 1]\n"
    "decoder_channels = [4, 4, 4, 4]\ndecoder_num_heads = [1, 1, 1, 1]\npatch_size = 16",
    "second": f"channels = [4, 4, 4, 4]\nout_channels = 4\n{BEV}",
    "centerpoint-nuscenes": f"channels = [4, 4, 4, 4]\nshared = 4\n{BEV}",
    "voxelnext-nuscenes": "channels = [4, 4, 4, 4, 4]\nout_channels = 4",
}


def test_there_are_recipes_of_each_data_set():
    assert set(RECIPES) == {
        *("semantic_kitti_minkunet", "semantic_kitti_spunet", "scannet_spunet", "scannet_ptv3"),
        *("kitti_second", "nuscenes_centerpoint", "nuscenes_voxelnext"),
    }


@pytest.mark.parametrize("name", RECIPES)
def test_all_but_the_data_are_there(name, tmp_path, capsys):
    """Its keys and its network, of which only shapes are made, are checked before the folder."""
    text = RECIPES[name].read_text()
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    folder = tmp_path / read_config(path).data.folder
    assert main(["train", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"voxax: {path}: data: no folder {folder}")
    assert re.search(r"^# Source: (Pointcept, configs|OpenPCDet, tools/cfgs)/", text, re.MULTILINE)
    assert "There, other: " in " ".join(text.split("\n#"))


def made(folder, layout, rng):
    """A tiny folder in a layout; the lines that name its split."""
    if layout == "semantic_kitti":
        folders.semantic_kitti(folder, rng, {"00": 2, "08": 1}, points=300)
        return 'train = ["00"]\nvalidation = ["08"]'
    if layout == "kitti":
        frames = ["000000", "000001", "000002"]
        split = {"train": frames[:2], "val": frames[2:]}
        folders.kitti_objects(folder, rng, frames, split=split)
        return ""
    if layout == "nuscenes":
        scenes = {"scene-0001": 2, "scene-0002": 1}
        folders.nuscenes(folder.parent, rng, scenes, points=3000, version=folder.name)
        return 'train = ["scene-0001"]\nvalidation = ["scene-0002"]'
    for scene in ("train/scene0000_00", "train/scene0001_00", "val/scene0002_00"):
        place = folder / scene
        place.mkdir(parents=True)
        np.save(place / "coord.npy", rng.uniform(0, 5, (300, 3)).astype(np.float32))
        np.save(place / "color.npy", rng.integers(0, 256, (300, 3)).astype(np.uint8))
        np.save(place / "normal.npy", rng.normal(size=(300, 3)).astype(np.float32))
        np.save(place / "segment20.npy", rng.integers(-1, 20, 300).astype(np.int16))
    return ""


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
@pytest.mark.parametrize("name", RECIPES)
def test_the_first_steps(name, tmp_path, rng):
    config = read_config(RECIPES[name])
    split = made(tmp_path / config.data.folder, config.data.format, rng)
    text = RECIPES[name].read_text()
    changes = {
        "steps": 2,
        "batch_size": 2,
        "accumulate": 1,
        "workers": 0,
        "checkpoint_every": 1,
        "validate_every": 1,
        "precision": '"float32"',  # bfloat16 takes its time on a CPU
        "voxel_size": 0.5 if config.task == "segment" else "[0.5, 0.5, 0.2]",
        "region": "[-16, -16, -4, 16, 16, 4]",
    }
    if config.data.format == "kitti":
        changes |= {"voxel_size": "[0.25, 0.25, 0.1]", "region": "[8, -8, -3, 24, 8, 1]"}
    for key, value in changes.items():
        text = re.sub(rf"^{key} = .*", f"{key} = {value}", text, flags=re.MULTILINE)
    text = text.replace("[augment]", f"{split}\n[augment]", 1)
    path = tmp_path / "run.toml"
    path.write_text(f"{text}\n[model.options]\n{SMALL[config.model.name]}\n")
    assert main(["train", str(path)]) == 0
    out = tmp_path / config.out
    rows = np.loadtxt(out / "losses.csv", delimiter=",", skiprows=1)
    assert rows.shape == (2, 2)
    assert np.isfinite(rows).all()
    assert json.loads((out / "metrics.json").read_text())["steps"] == 2
