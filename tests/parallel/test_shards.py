"""Scenes become shards: the same rows, in order, padded alike."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from parallel.jobs import mink, planned, scenes_of
from voxax import models
from voxax.errors import CapacityError, InputError
from voxax.nn.modules import BatchNorm
from voxax.parallel import on_mesh, pack_scenes, shard_scenes, synchronize

POINTS = (30, 0, 80, 1, 20)


@pytest.fixture
def scenes():
    return scenes_of(POINTS)


def packed(scenes, shards, **options):
    return pack_scenes([int(v.count) for v in scenes], shards, **options)


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_each_shard_is_the_batch_of_its_scenes(scenes, shards):
    voxels, labels = scenes
    packing = packed(voxels, shards)
    parts, known = shard_scenes(voxels, packing, labels=labels)
    assert known.shape == (shards, packing.capacity)
    for index, chosen in enumerate(packing.scenes):
        part = jax.tree.map(lambda x, i=index: x[i], parts)
        assert part.batch_size == packing.scenes_per_shard
        assert int(part.count) == packing.loads[index]
        if chosen:
            expected = vx.batch([voxels[i] for i in chosen], capacity=packing.capacity)
            np.testing.assert_array_equal(part.coords, expected.coords)
            np.testing.assert_array_equal(part.features, expected.features)
            rows = np.concatenate([labels[i][: int(voxels[i].count)] for i in chosen])
            np.testing.assert_array_equal(known[index, : len(rows)], rows)
        assert (known[index, packing.loads[index] :] == -1).all()


def test_maps_of_all_shards_have_equal_shapes(scenes):
    (parts, _), _ = planned(mink(), *scenes, 3)
    assert parts.geometry.attached is not None
    for leaf in jax.tree.leaves(parts):
        assert isinstance(leaf, np.ndarray)
        assert leaf.shape[0] == 3


def test_a_process_without_a_scene_has_empty_shards_like_the_others(scenes):
    voxels, labels = scenes
    packing = packed(voxels, 8)
    whole, known = shard_scenes(voxels, packing, labels=labels)
    empty = [place for place, own in enumerate(packing.scenes) if not own]
    indices, part = packing.part(empty)
    assert indices == ()
    own, unknown = shard_scenes([], part, labels=[], like=voxels[0])
    assert jax.tree.structure(own) == jax.tree.structure(whole)
    for one, of_all in zip(jax.tree.leaves(own), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(one, of_all[empty])
    np.testing.assert_array_equal(unknown, known[empty])


def test_capacities_that_were_planned_for_one_scene_do_not_bind_a_shard(scenes):
    voxels, _ = scenes
    level = (2, 2, 2)
    geometry = dataclasses.replace(voxels[0].geometry, level_capacities=((level, 8),))
    small = dataclasses.replace(voxels[0], geometry=geometry)
    parts, _ = shard_scenes([small, *voxels[1:]], packed(voxels, 1))
    out = vx.kernel_map(jax.tree.map(lambda x: x[0], parts), 2, 2).out_geometry
    assert int(out.num_dropped) == 0


def test_unknown_rows_are_minus_one_and_strange_labels_are_refused(scenes):
    voxels, _ = scenes
    packing = packed(voxels[:1], 1)
    count = int(voxels[0].count)
    _, known = shard_scenes(voxels[:1], packing, labels=[np.full(count, -100)])
    assert (known == -1).all()
    for wrong in (np.zeros(1, int), np.zeros(count), np.zeros((count, 1), int)):
        with pytest.raises(InputError, match=f"labels of scene 0 are .* each of its {count} vox"):
            shard_scenes(voxels[:1], packing, labels=[wrong])


def test_refusals(scenes):
    voxels, labels = scenes
    packing = packed(voxels, 2)
    with pytest.raises(InputError, match="give like=, any voxels"):
        shard_scenes([], pack_scenes([], 2))
    with pytest.raises(InputError, match="4 labels for 5 scenes"):
        shard_scenes(voxels, packing, labels=labels[:4])
    with pytest.raises(InputError, match="the packing is of 5 scenes"):
        shard_scenes(voxels[:4], packing)
    with pytest.raises(InputError, match="give a fitted plan"):
        shard_scenes(voxels, packing, plan=vx.Plan.record(mink(), voxels[0]))
    other = dataclasses.replace(voxels[0], features=np.zeros((voxels[0].capacity, 5), np.float32))
    with pytest.raises(InputError, match="scene 4 has stride"):
        shard_scenes([*voxels[:4], other], packing)
    with pytest.raises(InputError, match="scene 0 is a batch of 2"):
        shard_scenes([vx.batch(voxels[:2])], packed(voxels[:1], 1))
    plan = vx.Plan.record(mink(), voxels[0]).fitted([voxels[0]])
    # As many voxels far apart need more rows at every coarser level.
    far = np.asarray(voxels[0].coords).copy()
    count = int(voxels[0].count)
    far[:count, 1:] *= 100
    geometry = dataclasses.replace(voxels[0].geometry, coords=far)
    apart = [dataclasses.replace(voxels[0], geometry=geometry)]
    with pytest.raises(CapacityError, match="fitted capacity"):
        shard_scenes(apart, packed(apart, 1), plan=plan)


def test_placement_says_what_does_not_fit():
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    placed = on_mesh({"x": np.arange(6).reshape(1, 6)}, mesh)
    np.testing.assert_array_equal(placed["x"], np.arange(6)[None])
    with pytest.raises(InputError, match=r"none is called 'model'"):
        on_mesh({"x": np.zeros((1, 2))}, mesh, "model")
    with pytest.raises(InputError, match=r"\['x'\] has shape \(2,\).*must be 1"):
        on_mesh({"x": np.zeros(2)}, mesh)


def test_foreign_batch_norm_is_refused():
    class Model(nnx.Module):
        def __init__(self):
            self.norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))

    with pytest.raises(InputError, match=r"norm is a flax\.nnx\.BatchNorm"):
        synchronize(Model())


def test_dense_layers_of_detectors_share_their_statistics_too():
    model = synchronize(models.SmallCenterPoint(4, 3, (16, 16, 8), width=0.25), "devices")
    norms = [m for _, m in nnx.iter_modules(model) if isinstance(m, (nnx.BatchNorm, BatchNorm))]
    assert {type(norm) for norm in norms} == {nnx.BatchNorm, BatchNorm}
    assert {norm.axis_name for norm in norms} == {"devices"}
