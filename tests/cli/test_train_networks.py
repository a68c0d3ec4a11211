"""`voxax train` with networks of the registry, whose checkpoints the other commands take."""

import json

import numpy as np
import pytest

import folders
from voxax.cli import main
from voxax.cli.segmentation_task import Segmentation
from voxax.io import read

ROOMS = """
[data]
format = "scannet"
folder = "scannet"
train = ["scene0000_00", "scene0001_00"]
validation = ["scene0002_00"]
attributes = ["rgb"]
workers = 0
[model]
voxel_size = 0.2
options = {options}
name = "{name}"
[training]
steps = {steps}
checkpoint_every = 1
"""
NETWORKS = {
    "spunet-14": "{blocks = [1, 1], channels = [8, 8], stem = 8, stem_kernel_size = 3}",
    # Its state has random keys: of dropped branches and shuffled orders.
    "ptv3-base": "{encoder_depths = [1, 1], encoder_channels = [8, 8], encoder_num_heads = [1, 1], "
    "decoder_depths = [1], decoder_channels = [8], decoder_num_heads = [1], strides = [2], "
    "patch_size = 16}",
}


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_the_registry(name, tmp_path, rng, capsys):
    names = [f"scene{i:04d}_00" for i in range(3)]
    folders.scannet(tmp_path / "scannet", rng, names, points=200)
    path = tmp_path / "rooms.toml"
    path.write_text(ROOMS.format(name=name, options=NETWORKS[name], steps=1))
    assert main(["train", str(path)]) == 0
    path.write_text(ROOMS.format(name=name, options=NETWORKS[name], steps=2))
    assert main(["train", str(path), "--resume"]) == 0
    out = tmp_path / "voxax-train"
    assert json.loads((out / "metrics.json").read_text())["voxels_dropped"] == 0
    arguments = ["--checkpoint", str(out / "checkpoint"), "--out", str(tmp_path)]
    np.savez(tmp_path / "room.npz", xyz=rng.uniform(0, 4, (100, 3)), rgb=np.zeros((100, 3), "u1"))
    assert main(["segment", str(tmp_path / "room.npz"), *arguments]) == 0
    assert len(read(tmp_path / "room_npz_labeled.ply").labels) == 100


def test_settings_of_the_checkpoint():
    common = {"class_names": ("a",), "voxel_size": 1.0, "width": 1.0, "learning_rate": 1.0}
    task = Segmentation(network="minkunet-14", options={"width": 0.25}, steps=2, **common)
    again = Segmentation.from_json(json.loads(json.dumps(task.to_json())))
    assert again == task
    assert again.options == {"width": 0.25}
