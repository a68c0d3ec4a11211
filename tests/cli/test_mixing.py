"""Scenes of a training step that are mixed with each other."""

import dataclasses

import numpy as np
import pytest

import folders
from cli.run_results import interrupted, losses
from cli.small_network import small
from voxax.cli import main
from voxax.cli.scenes import MakeTask, Mixing, PrepareBatch
from voxax.cli.segmentation_task import Segmentation
from voxax.io import PointCloud
from voxax.io.examples import Preparation
from voxax.models.training import Trainer

COUNT = 40


def scene(seed):
    rng = np.random.default_rng(seed)
    positions = rng.uniform(0, 8, (COUNT, 3)) + 100 * seed
    return PointCloud(positions, {}, np.full(COUNT, seed), str(seed))


def batch(mixing, seeds=(7, 8, 9), transform=None, shards=1):
    scenes = tuple(scene(number) for number in range(3))
    preparation = Preparation(0.01)  # a voxel for each point
    return PrepareBatch(scenes, seeds, preparation, shards, 3, transform, mixing)()


def voxel_labels(batch):
    """The labels of each scene of the network's batch."""
    count = int(batch.voxels.count)
    numbers = np.asarray(batch.voxels.coords)[:count, 0]
    labels = np.asarray(batch.labels)[:count]
    return [np.sort(labels[numbers == number]).tolist() for number in np.unique(numbers)]


def test_mix3d_joins_pairs_and_an_odd_scene_stays_alone():
    plain = batch(None)
    assert voxel_labels(plain) == [[0] * COUNT, [1] * COUNT, [2] * COUNT]
    mixed = batch(Mixing(1.0))
    assert voxel_labels(mixed) == [[0] * COUNT + [1] * COUNT, [2] * COUNT]
    extent = np.ptp(np.asarray(mixed.voxels.coords)[: 2 * COUNT, 1:], axis=0)
    assert (extent <= 8 / 0.01 + 2).all()  # both at one place
    assert [len(truth) for truth in mixed.truths] == [2 * COUNT, COUNT]
    far = batch(Mixing(1.0, centered=False))
    assert np.ptp(np.asarray(far.voxels.coords)[: 2 * COUNT, 1]) > 9000
    assert int(mixed.voxels.count) == int(plain.voxels.count)
    shards = batch(Mixing(1.0), shards=2)
    assert sorted(len(truth) for truth in shards.truths) == [COUNT, 2 * COUNT]


def test_a_seed_decides_and_scenes_of_a_validation_stay():
    pairs = [len(batch(Mixing(0.5), (seed, 0, 0)).truths) == 2 for seed in range(60)]
    assert 15 < sum(pairs) < 45
    assert pairs == [len(batch(Mixing(0.5), (seed, 0, 0)).truths) == 2 for seed in range(60)]
    held_out = batch(Mixing(1.0, pasted=(0, 1, 2)), (None,) * 3)
    assert voxel_labels(held_out) == voxel_labels(batch(None))


def test_polarmix_comes_before_the_augmentation():
    calls = []

    def transform(cloud, rng):
        calls.append(np.unique(cloud.labels, return_counts=True))
        return dataclasses.replace(cloud, labels=np.full(len(cloud), 5))

    mixed = batch(Mixing(pasted=(1,)), transform=transform)
    # The points of class 1 come three times to scene 0, besides half of them or none.
    labels, counts = calls[0]
    assert set(labels.tolist()) <= {0, 1}
    assert counts[-1] >= 3 * COUNT
    assert {label for own in voxel_labels(mixed) for label in own} == {5}


def test_a_single_scene_of_a_step_is_not_mixed():
    make = MakeTask(Preparation(0.01), 1, 1, None, False, Mixing(1.0))
    assert int(make([scene(0)], [3])().voxels.count) == COUNT


RUN = """
out = "runs"
[data]
format = "semantic_kitti"
folder = "kitti"
train = ["00"]
validation = ["08"]
workers = 0
[augment]
mix3d = 0.8
polarmix = ["building"]
[model]
voxel_size = 0.5
width = 0.25
[training]
steps = 4
batch_size = 2
checkpoint_every = 2
samples = 2
"""


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
def test_a_resumed_run_mixes_the_same(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(Segmentation, "model", small)
    folders.semantic_kitti(tmp_path / "kitti", rng, {"00": 3, "08": 1})
    path, whole, parts = tmp_path / "run.toml", tmp_path / "whole", tmp_path / "parts"
    path.write_text(RUN)
    assert main(["train", str(path), "--out", str(whole)]) == 0
    with interrupted(Trainer, 2):
        assert main(["train", str(path), "--out", str(parts)]) == 130
    assert main(["train", str(path), "--out", str(parts), "--resume"]) == 0
    assert losses(parts) == losses(whole)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch_size = 2", "batch_size = 1", "give training.batch_size = 2 or more"),
        ('["building"]', '["castle"]', "augment.polarmix has 'castle': the classes are 'car', 'bi"),
        ("mix3d = 0.8", "mix3d = 8", "augment.mix3d = 8: it must be a number, at least 0, at most"),
    ],
)
def test_mistakes(old, new, message, tmp_path, rng, capsys):
    folders.semantic_kitti(tmp_path / "kitti", rng, {"00": 1, "08": 1})
    path = tmp_path / "run.toml"
    path.write_text(RUN.replace(old, new))
    assert main(["train", str(path)]) == 2
    assert message in capsys.readouterr().err
