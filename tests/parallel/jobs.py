"""Scenes, networks and training that the tests of several devices and processes share."""

import errno
import os
import signal
import warnings
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

import voxax as vx
from voxax.geometry import host
from voxax.models import MinkUNet14, checkpoint
from voxax.models.checkpoint import load_arrays, remove_steps_above, save_checkpoint, steps_of
from voxax.models.training import Trainer
from voxax.nn.modules import BatchNorm, ReLU, Sequential, SubMConv3d
from voxax.parallel import (
    DataParallelTrainer,
    SceneSplit,
    join_shards,
    pack_scenes,
    places_of,
    shard_scenes,
)

UNEVEN = (300, 10, 200, 700, 0, 50, 400, 350, 120, 90, 1)
STEPS = 20


def scene(rng, points, capacity=None, reach=4):
    """A slab of voxels with two binary classes: left or right, in front or behind."""
    positions = rng.uniform(-1, 1, (points, 3)) * [reach, reach, 0.8]
    features = rng.normal(size=(points, 3)).astype(np.float32)
    voxels, _ = host.voxelize_on_host(
        positions.astype(np.float32), features, 0.4, capacity=capacity
    )
    count = int(voxels.count)
    labels = np.full(voxels.capacity, -1, np.int32)
    side = np.asarray(voxels.coords)[:count, 1:3] > 0
    labels[:count] = side @ [1, 2]
    return voxels, labels


def scenes_of(points=UNEVEN, **options):
    rng = np.random.default_rng(0)
    return tuple(zip(*(scene(rng, number, **options) for number in points), strict=True))


def small():
    """Two submanifold convolutions with batch norms, and logits."""
    rngs = nnx.Rngs(0)
    return Sequential(
        SubMConv3d(3, 8, 3, rngs=rngs),
        BatchNorm(8),
        ReLU(),
        SubMConv3d(8, 8, 3, rngs=rngs),
        BatchNorm(8),
        SubMConv3d(8, 4, 1, rngs=rngs),
    )


def mink():
    """Weights of seed 0 leave a sum before a ReLU within rounding of zero: its gradient comes and
    goes with the order of sums."""
    return MinkUNet14(3, 4, width=0.125, rngs=nnx.Rngs(1))


def optimizer(rate=0.005):
    """Plain gradient descent that remembers the last gradient."""
    return optax.chain(optax.trace(decay=0.0), optax.scale(-rate))


def gradient_of(trainer):
    return trainer.optimizer_state[0].trace


def first(shards):
    """The first shard's arrays."""
    return jax.tree.map(lambda x: x[0], shards)


def sharded(scenes, labels, shards):
    return shard_scenes(scenes, pack_scenes([int(v.count) for v in scenes], shards), labels=labels)


def planned(model, scenes, labels, shards):
    """The shards with the kernel maps of ``model``, and all scenes as one batch with them."""
    packing = pack_scenes([int(v.count) for v in scenes], shards)
    bare, _ = shard_scenes(scenes, packing)
    plan = vx.Plan.record(model, scenes[0])
    samples = [jax.tree.map(lambda x, i=i: x[i], bare) for i in range(shards)]
    parts = shard_scenes(scenes, packing, labels=labels, plan=plan.fitted(samples, margin=1.2))
    (batch, rows) = sharded(scenes, labels, 1)
    return parts, (plan.attach(first(batch)), rows[0])


def close(found, expected, tolerance):
    """Relative to the largest entry of all: before a batch norm a bias has none but rounding."""
    found, expected = ([np.asarray(x) for x in jax.tree.leaves(t)] for t in (found, expected))
    scale = max(np.abs(x).max(initial=0) for x in expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


def check_against_one_device(
    build, points=UNEVEN, attach=True, steps=STEPS, gradient=1e-6, added_loss=None, **options
):
    """Loss curve, the first step's gradient and running averages are those of one device."""
    devices = len(jax.devices())
    scenes, labels = scenes_of(points, **options)
    mesh = jax.make_mesh((devices,), ("data",))
    if attach:
        parts, batch = planned(build(), scenes, labels, devices)
    else:
        parts, (v, rows) = sharded(scenes, labels, devices), sharded(scenes, labels, 1)
        batch = (first(v), rows[0])
    single = Trainer(build(), optimizer(), added_loss=added_loss)
    many = DataParallelTrainer(build(), optimizer(), mesh, added_loss=added_loss)
    curves = []
    for step in range(steps):
        alone, together = single.step(*batch), many.step(*parts)
        curves.append((float(alone[0]), float(together[0])))
        assert int(together[2]) == 0
        if step == 0:
            close(gradient_of(many), gradient_of(single), gradient)
    one, other = np.asarray(curves).T
    np.testing.assert_allclose(other, one, rtol=1e-5)
    assert one[-1] < one[0]
    close(many.state, single.state, 1e-4)
    assert many.programs == 1
    logits = many.logits(parts[0])
    assert logits.shape[:2] == parts[1].shape
    assert np.isfinite(logits[parts[1] >= 0]).all()


def check_split(build, points, data=1, steps=5, gradient=1e-5, order="lexicographic", **options):
    """Scenes split over the devices: loss, gradients, averages and logits are one device's.

    With ``data`` scenes at a time: the first axis of a mesh ``data x space``.
    """
    scenes, labels = scenes_of(points, **options)
    places = len(jax.devices()) // data
    mesh = jax.make_mesh((data, places), ("data", "space"))
    split = SceneSplit.record(build(), scenes[0], places, order=order)
    if data > 1:  # all of one shape
        split = split.fitted(scenes)
    parts, known, rows = zip(*map(split.split, scenes, labels), strict=True)
    shards = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    (voxels, whole) = sharded(scenes, labels, 1)
    voxels, whole = first(voxels), whole[0]
    single = Trainer(build(), optimizer())
    many = DataParallelTrainer(build(), optimizer(), mesh, ("data", "space"))
    curves = []
    for step in range(steps):
        alone = single.step(voxels, whole)
        together = many.step(shards, np.concatenate(known))
        curves.append((float(alone[0]), float(together[0])))
        assert int(together[2]) == 0
        if step == 0:
            close(gradient_of(many), gradient_of(single), gradient)
    one, other = np.asarray(curves).T
    np.testing.assert_allclose(other, one, rtol=1e-5)
    close(many.state, single.state, 1e-4)
    assert many.programs == 1
    single.load_tree(many.tree())
    expected, logits = single.logits(voxels)[: int(voxels.count)], many.logits(shards)
    by_scene = np.split(logits, data)
    joined = np.concatenate([join_shards(x, r) for x, r in zip(by_scene, rows, strict=True)])
    close(joined, expected, 1e-5)


def work(process, processes, port, folder, steps, dies_at=None):
    """One process of a job: trains on, from the checkpoint where there is one; the loss curve."""
    if processes > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{port}", processes, process, heartbeat_timeout_seconds=10
        )
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    scenes, labels = scenes_of()
    packing = pack_scenes([int(v.count) for v in scenes], len(jax.devices()))
    own, part = packing.part(places_of(mesh))
    given = shard_scenes([scenes[i] for i in own], part, labels=[labels[i] for i in own])
    trainer = DataParallelTrainer(small(), optimizer(), mesh)
    if steps_of(folder):
        trainer.load_tree(load_arrays(folder, trainer.tree()))
    curve = {}
    while trainer.steps < steps:
        if trainer.steps == dies_at and process == processes - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        number = trainer.steps
        curve[number] = float(trainer.step(*given)[0])
        if trainer.steps % 4 == 0:
            save_checkpoint(folder, trainer.tree(), {}, trainer.steps)
    return curve


def load_again(process, processes, port, folder, blind=None):
    """One process of a job that loads, and saves on: what it took, said, and left.

    Process ``blind`` cannot read the newest step.
    """
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    trainer = DataParallelTrainer(small(), optimizer(), mesh)
    newest, check = steps_of(folder)[0], checkpoint._check_sums

    def check_sums(step, restored):
        if process == blind and step.name == str(newest):
            raise OSError(errno.EIO, "of this process alone")
        check(step, restored)

    checkpoint._check_sums = check_sums
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.load_tree(load_arrays(folder, trainer.tree()))
    remove_steps_above(folder, trainer.steps)
    left = steps_of(folder)
    save_checkpoint(folder, trainer.tree(), {}, newest)
    said = [str(w.message) for w in told if issubclass(w.category, UserWarning)]
    return {"step": trainer.steps, "sums": sums_of(trainer.tree()), "said": said, "left": left}


def sums_of(tree):
    return [float(np.abs(np.asarray(x)).sum()) for x in jax.tree.leaves(tree)]


def pieces_of(shards, build, points, **options):
    """One scene, its labels, and both split into ``shards``."""
    (scene,), (labels,) = scenes_of((points,), **options)
    return (scene, labels), SceneSplit.record(build(), scene, shards).split(scene, labels)


def work_on_pieces(process, processes, port, folder, network, points, steps):
    """One process of a job that has a piece of one scene: losses; the first gradient to a file."""
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    mesh = jax.make_mesh((processes,), ("space",))
    build = {"small": small, "mink": mink}[network]
    _, (parts, labels, _) = pieces_of(processes, build, points)
    own = np.asarray(places_of(mesh, "space"))
    given = jax.tree.map(lambda x: x[own], (parts, labels))
    trainer = DataParallelTrainer(build(), optimizer(), mesh, "space")
    losses = [float(trainer.step(*given)[0])]
    if process == 0:
        np.savez(Path(folder) / "gradient.npz", *jax.tree.leaves(gradient_of(trainer)))
    return losses + [float(trainer.step(*given)[0]) for _ in range(steps - 1)]
