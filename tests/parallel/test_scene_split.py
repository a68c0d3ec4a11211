"""One scene over several shards gives the numbers of one device.

Here the shards are places of ``jax.vmap`` with an axis name, where ``ppermute`` and ``psum`` mean
what they mean on a mesh, on a single device. There JAX permutes only where every place takes part,
so splits that are run here are fitted: their rounds are rings. On a mesh, and with rounds for one
scene: ``test_space_parallel.py``.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import flat_box, no_voxel, one_voxel, random_cube, surface
from flax import nnx

import voxax as vx
from samples import make_voxels, make_weight
from voxax import _compat
from voxax.coords import PAD
from voxax.errors import CapacityError, InputError
from voxax.geometry.halo import split_axis
from voxax.nn import functional as F
from voxax.nn.modules import BatchNorm
from voxax.parallel import SceneSplit, join_shards, synchronize

SCENES = {
    "random_cube": random_cube,
    "flat_box": flat_box,
    "surface": surface,
    "one_voxel": one_voxel,
    "no_voxel": no_voxel,
}
CROSSED = ((0, 0, 0), (1, -2, 0), (0, 0, 3))


def few_layers(voxels, weight):
    """Coarser and back, with an asymmetric kernel."""
    down = F.spatially_sparse_conv(voxels, weight, 3, 2)
    up = F.spatially_sparse_conv(down, weight[:8], 2, 2, transposed=True, out_voxels=voxels)
    return F.spatially_sparse_conv(up, weight[: len(CROSSED)], kernel_shape=CROSSED)


def layers(voxels, weight):
    """Convolutions that keep, coarsen and refine, asymmetric ones too, and pooling."""
    x = F.spatially_sparse_conv(voxels, weight)
    x = F.spatially_sparse_conv(x, weight[: len(CROSSED)], kernel_shape=CROSSED)
    down = F.spatially_sparse_conv(x, weight, 3, 2)
    down = F.spatially_sparse_conv(down, weight, dilation=2)
    up = F.spatially_sparse_conv(down, weight[:8], 2, 2, transposed=True, out_voxels=x)
    return up + F.max_pool(x, 3, 1) + F.unpool(F.mean_pool(up, 2), x)


def other_layers(voxels, weight):
    """Check other layers on shards, and layers that use statistics of the whole scene."""
    blocks = F.space_to_channel(voxels, 2)
    x = F.channel_to_space(blocks, 2, voxels)
    x = F.depthwise_conv(x, weight[:, :, 0])
    reached = F.spatially_sparse_conv(x, weight, 3, 2, generative=True, capacity=1024)
    x = F.spatially_sparse_conv(reached, weight, 3, 2, transposed=True, out_voxels=voxels)
    size = jnp.where(voxels.valid, voxels.coords[:, 1] % 4, 0)
    x = F.sparse_dynamic_conv(x, weight, size=size)
    mask = jnp.where(voxels.valid[:, None], voxels.features[:, :1] / 4, 0.0)
    x = F.sparse_dynamic_conv(x, weight, mask=jnp.broadcast_to(mask, (voxels.capacity, 27)))
    x = F.instance_norm(x) + F.min_pool(x, 2, 1)
    rows = [F.global_pool(x, kind)[jnp.maximum(x.coords[:, 0], 0) % x.batch_size]
            for kind in ("mean", "sum", "max", "min")]  # fmt: skip
    return x.replace_features(x.features + rows[0] + 0.01 * rows[1] + rows[2] * rows[3])


def scene_of(name, **options):
    return make_voxels(SCENES[name](), **options)


def both_ways(network, voxels, split):
    """Outputs and both gradients: of the whole scene, and of its shards joined again."""
    weight = make_weight(3, 3, 3, 3)
    count = int(voxels.count)
    target = np.random.default_rng(2).normal(size=(voxels.capacity, 3)).astype(np.float32)
    parts, _, rows = split.split(jax.tree.map(np.asarray, voxels))
    targets = jnp.asarray(np.where(rows[..., None] < 0, 0, target[rows]))

    def run(v, w, t):
        out = network(v, w)
        return jnp.sum(jnp.where(out.valid[:, None], out.features * t, 0.0)), out.features

    def whole(features, w):
        return run(voxels.replace_features(features), w, jnp.asarray(target))

    def sharded(features, w):
        def shard(part, f, t):
            loss, out = run(part.replace_features(f), w, t)
            return jax.lax.psum(loss, split.axis), out

        losses, out = jax.vmap(shard, axis_name=split.axis)(parts, features, targets)
        return losses[0], out

    results = []
    for function, features in ((whole, voxels.features), (sharded, jnp.asarray(parts.features))):
        step = jax.jit(jax.value_and_grad(function, argnums=(0, 1), has_aux=True))
        (_, out), (by_features, by_weight) = step(features, weight)
        results.append((out, by_features, by_weight))
    (out, by_features, by_weight), (outs, by_feature_shards, by_shard_weight) = results
    return (
        (out[:count], by_features[:count], by_weight),
        (join_shards(outs, rows), join_shards(by_feature_shards, rows), by_shard_weight),
    )


def assert_same(network, voxels, split, tolerance=2e-5):
    expected, found = both_ways(network, voxels, split)
    for one, other in zip(found, expected, strict=True):
        scale = max(float(np.abs(other).max(initial=0)), 1.0)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


def recorded(network, voxels, shards, **options):
    weight = make_weight(3, 3, 3, 3)
    return SceneSplit.record(lambda v: network(v, weight), voxels, shards, **options)


def rings(network, voxels, shards, **options):
    """Fitted to the scene exactly."""
    return recorded(network, voxels, shards, **options).fitted([voxels], margin=1.0)


def test_layers_give_the_single_devices_numbers():
    voxels = scene_of("surface")
    assert_same(few_layers, voxels, rings(few_layers, voxels, 3, order="hilbert"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "name", "shards", "order"),
    [(layers, "surface", 2, "lexicographic"), (other_layers, "flat_box", 4, "morton")],
)
def test_every_layer(network, name, shards, order):
    voxels = scene_of(name)
    assert_same(network, voxels, rings(network, voxels, shards, order=order))


def ring(halo, shards, arrays):
    """Do what ``Halo.extend`` does for all shards together, in NumPy."""
    for shard in range(shards):
        own = jax.tree.map(lambda x, s=shard: x[s], halo)
        parts = [arrays[shard]]
        for pairs, send in zip(halo.schedule, halo.send, strict=True):
            giver = {receiver: sender for sender, receiver in pairs}.get(shard)
            rows = np.full(send.shape[1], -1) if giver is None else send[giver]
            lent = arrays[giver or 0]
            parts.append(np.where(rows[:, None] < 0, PAD, lent[rows]))
        together = np.concatenate(parts)
        yield np.where(own.source[:, None] < 0, PAD, together[own.source])


@pytest.fixture(scope="module")
def plans():
    """One recording for all scenes."""
    return recorded(layers, scene_of("surface"), 2)


@pytest.mark.parametrize("order", ["lexicographic", "hilbert"])
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("shards", [1, 7, 40])
def test_halos_bring_the_voxels_that_maps_read(plans, name, shards, order):
    """Coordinates, exchanged as features are, are those of the extended set."""
    voxels = jax.tree.map(np.asarray, scene_of(name))
    split = dataclasses.replace(plans, shards=shards, order=order)
    parts, _, rows = split.split(voxels)
    count = int(voxels.count)
    assert sorted(rows[rows >= 0]) == list(range(count))
    np.testing.assert_array_equal(join_shards(parts.coords, rows), voxels.coords[:count])
    np.testing.assert_array_equal(join_shards(parts.features, rows), voxels.features[:count])
    owned = (rows >= 0).sum(1)
    assert owned.max() - owned.min() <= 1
    maps = parts.geometry.attached
    levels = (parts.geometry, *maps.levels)
    for record, halo, source in zip(maps.records, maps.halos, maps.sources, strict=True):
        given = levels[record.in_level].coords
        for shard, found in enumerate(ring(halo, shards, given)):
            np.testing.assert_array_equal(found, source.coords[shard])
            valid = found[found[:, 0] != PAD]
            assert (np.lexsort(valid.T[::-1]) == np.arange(len(valid))).all()
            assert len(valid) == source.count[shard]


def test_a_fitted_split_holds_smaller_scenes_and_refuses_others(plans):
    large, small = (jax.tree.map(np.asarray, scene_of(n)) for n in ("surface", "flat_box"))
    fitted = plans.fitted([large, small])
    shapes = {
        tuple(np.shape(leaf) for leaf in jax.tree.leaves(fitted.split(scene)[0]))
        for scene in (large, small)
    }
    assert len(shapes) == 1
    only_small = plans.fitted([scene_of("one_voxel")])
    with pytest.raises(CapacityError, match=r"owns \d+ voxels .* stride \(1, 1, 1\), its capacity"):
        only_small.split(large)
    tight = only_small.capacities
    wide = dataclasses.replace(tight, levels=(10_000,) * len(tight.levels))
    with pytest.raises(CapacityError, match=r"halo of .*: shard \d lends \d+ rows to shard \d"):
        dataclasses.replace(only_small, capacities=wide).split(large)
    roomy = tuple(
        dataclasses.replace(
            m, schedule=tuple(dataclasses.replace(r, rows=10_000) for r in m.schedule)
        )
        for m in tight.maps
    )
    wide = dataclasses.replace(wide, maps=roomy)
    with pytest.raises(CapacityError, match=r"reads \d+ rows on one shard, own and halo"):
        dataclasses.replace(only_small, capacities=wide).split(large)


def test_labels_go_with_their_voxels(plans):
    voxels = scene_of("flat_box")
    count = int(voxels.count)
    labels = np.arange(count) % 5 - 1
    _, known, rows = plans.split(voxels, labels)
    np.testing.assert_array_equal(known[rows >= 0], labels[rows[rows >= 0]])
    assert (known[rows < 0] == -1).all()
    for wrong in (labels[:-1], labels.astype(float), labels[:, None]):
        with pytest.raises(InputError, match=f"one for each of the scene's {count} voxels"):
            plans.split(voxels, wrong)


def on_shards(split, voxels, function):
    parts, _, _ = split.split(voxels)
    return jax.vmap(function, axis_name=split.axis)(parts)


def test_what_needs_the_whole_scene_is_refused(plans):
    voxels = scene_of("flat_box")

    def refused(function, match):
        with pytest.raises(InputError, match=match):
            on_shards(plans, voxels, lambda v: jax.tree.leaves(function(v)))

    refused(lambda v: F.max_pool(v, 5, 5), "no map of 5x5x5, stride .* Record the split")
    refused(lambda v: v.to_dense((4, 4, 4)), "to_dense.* needs the whole scene")
    refused(lambda v: vx.prune(v, v.valid), "finding other voxels needs the whole scene")
    refused(lambda v: vx.inject(v, v), "inject.* needs the whole scene")
    refused(lambda v: vx.devoxelize(v, v.positions()), "devoxelize.* needs the whole scene")
    refused(lambda v: F.max_pool(v, 3, 1, return_indices=True), "return_indices=True")
    refused(lambda v: F.unpool(v, v, v.features.astype(int)), r"unpool\(\) with indices needs")
    refused(lambda v: vx.kernel_map(v).transpose(), "one shard of a scene: inputs of other shards")
    refused(BatchNorm(3), r"call voxax\.parallel\.synchronize\(model, 'space'\)")
    synchronize(norm := BatchNorm(3), "space")
    on_shards(plans, voxels, lambda v: nnx.clone(norm)(v).features)


def test_refusals(plans):
    voxels = scene_of("flat_box")
    with pytest.raises(InputError, match="at least one shard, got 0"):
        SceneSplit.record(lambda v: v, voxels, 0)
    with pytest.raises(InputError, match="unknown order 'zigzag'; known: lexicographic"):
        SceneSplit.record(lambda v: v, voxels, 2, order="zigzag")
    with pytest.raises(InputError, match="at least one sample"):
        plans.fitted([])
    parts, _, rows = plans.split(voxels)
    with pytest.raises(InputError, match="values of shape"):
        join_shards(np.zeros((3, 1)), rows)
    doubled = jax.tree.map(lambda x: np.concatenate([x, x]), parts)
    with pytest.raises(InputError, match=r"split into 2 shards, .* 'space' has 4 places"):
        jax.vmap(lambda v: F.max_pool(v, 3, 1).features, axis_name="space")(doubled)
    with pytest.raises(TypeError, match="ahead of the trace"):
        jax.jit(lambda v: plans.split(v)[2])(voxels)


def test_dropout_differs_by_shard_but_for_channels(plans):
    voxels = make_voxels(surface(), channels=64)

    def kept(mode):
        def run(v):
            ones = v.replace_features(jnp.ones_like(v.features))
            return F.dropout(ones, 0.5, jax.random.key(0), mode).features[0] > 0

        return np.asarray(on_shards(plans, voxels, run))

    one, other = kept("feature")
    assert (one != other).any()
    one, other = kept("channel")
    np.testing.assert_array_equal(one, other)


def test_the_split_is_seen_on_the_geometry(plans):
    parts, _, _ = plans.split(scene_of("flat_box"))
    assert split_axis(parts) == "space"
    assert "one shard along 'space'" in repr(jax.tree.map(lambda x: x[0], parts).geometry)
    assert split_axis(scene_of("flat_box")) is None
    assert all(jax.tree.leaves(jax.tree.map(lambda x: isinstance(x, np.ndarray), parts)))


def test_shards_run_where_jax_hides_what_was_handed_on(monkeypatch):
    """Maps of shards can't be built anew, so they are taken by their description."""

    def staged(voxels, weight):
        down = jax.jit(lambda v: F.spatially_sparse_conv(v, weight, 3, 2))(voxels)
        x = jax.jit(lambda v: F.spatially_sparse_conv(v, weight))(voxels)
        up = F.spatially_sparse_conv(down, weight[:8], 2, 2, transposed=True, out_voxels=x)
        return up + x + voxels

    voxels = scene_of("flat_box")
    split = rings(staged, voxels, 2)
    real = _compat._private
    hide = lambda x, name, other=None: other if name == "parent" else real(x, name, other)  # noqa: E731
    monkeypatch.setattr(_compat, "_private", hide)
    assert_same(staged, voxels, split)
