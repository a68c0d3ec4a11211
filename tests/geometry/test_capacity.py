"""Overflow is never silent: an error eagerly, a count that travels when traced."""

import dataclasses

import jax
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from samples import complains, make_voxels, make_weight
from voxax.models.voxel_backbone import inside_grid
from voxax.nn.functional import spatially_sparse_conv as conv

ROWS = random_cube()
FEATURES = np.ones((len(ROWS), 3), np.float32)
WEIGHT = make_weight(3, 3, 3, 3)


def overfull(coords):
    return vx.Voxels.from_coords(coords, FEATURES, 2, capacity=64)


def test_eager_overflow_names_needed_and_given():
    with pytest.raises(vx.CapacityError, match=rf"{len(ROWS)} voxels .* capacity 64"):
        overfull(ROWS)


def test_eager_overflow_of_a_strided_level_names_the_level():
    voxels = make_voxels(ROWS)
    with pytest.raises(vx.CapacityError, match=r"stride \(2, 2, 2\).* capacity 16"):
        conv(voxels, WEIGHT, 3, 2, capacity=16)


def test_traced_overflow_is_counted_and_the_first_rows_kept():
    voxels = jax.jit(overfull)(ROWS)
    assert int(voxels.count) == 64
    assert int(voxels.num_dropped) == len(ROWS) - 64
    full = make_voxels(ROWS)
    np.testing.assert_array_equal(voxels.coords, full.coords[:64])


def test_the_count_travels_through_every_kind_of_layer():
    @jax.jit
    def network(coords):
        v = overfull(coords)
        down = conv(v, WEIGHT, 3, 2, capacity=16)
        up = conv(down, WEIGHT, 3, 2, transposed=True, out_voxels=v)
        return v, down, conv(up, WEIGHT) + v, vx.cat([v, up])

    v, down, total, joined = network(ROWS)
    lost = {level: int(n) for level, n in total.geometry.drops.items()}
    assert lost[(1, 1, 1)] == len(ROWS) - 64
    assert lost[(2, 2, 2)] > 0
    for out in (down, total, joined):
        assert int(out.num_dropped) == sum(lost.values())
        with pytest.raises(vx.CapacityError, match=r"stride \(2, 2, 2\): \d+ rows lost"):
            out.raise_if_overflowed()
    assert int(v.num_dropped) == lost[(1, 1, 1)]


def test_a_generative_layer_adds_to_the_loss_of_its_own_level():
    @jax.jit
    def network(coords):
        return conv(overfull(coords), WEIGHT, generative=True, capacity=64)

    out = network(ROWS)
    assert int(out.num_dropped) > len(ROWS) - 64
    with pytest.raises(vx.CapacityError, match=r"stride \(1, 1, 1\)"):
        out.raise_if_overflowed()


def test_enough_capacity_raises_nothing():
    voxels = make_voxels(ROWS)
    assert voxels.raise_if_overflowed() is voxels
    assert int(conv(voxels, WEIGHT, 3, 2).num_dropped) == 0


def test_raise_if_overflowed_needs_concrete_values():
    with pytest.raises(TypeError, match="outside"):
        jax.jit(lambda v: v.raise_if_overflowed())(make_voxels(ROWS))


WEIGHT_2 = make_weight(2, 3, 3, 3)


def two_levels(v):
    return conv(conv(v, WEIGHT_2, 2, 2), WEIGHT_2, 2, 2)


def test_a_fitted_plan_gives_smaller_levels():
    samples = [make_voxels(random_cube(seed=seed)) for seed in range(3)]
    plan = vx.Plan.record(two_levels, samples[0]).fitted(samples)
    planned = plan.attach(samples[0], maps=False)
    outs = jax.jit(two_levels)(planned)
    assert outs.capacity == plan.capacities(planned.capacity)[-1]
    assert outs.capacity < samples[0].capacity / 4
    assert int(outs.raise_if_overflowed().num_dropped) == 0
    np.testing.assert_allclose(
        outs.valid_features(), two_levels(samples[0]).valid_features(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("on_ladder", [True, False])
def test_levels_that_did_not_grow_with_samples_grow_for_others(on_ladder):
    """Samples of several sizes with one coarse voxel each, then one with many."""
    one_cell = np.stack(np.meshgrid([0], *[range(4)] * 3), -1).reshape(-1, 4)
    samples = [make_voxels(one_cell[:number]) for number in (8, 27, 64)]
    plan = vx.Plan.record(two_levels, samples[0])
    plan = dataclasses.replace(plan, on_ladder=on_ladder).fitted(samples)
    others = make_voxels(random_cube(300) * [1, 8, 8, 8])
    with pytest.raises(vx.CapacityError, match=r"needs \d+ rows"):
        plan.attach(others, grow=False)
    needed = int(two_levels(others).count)
    assert needed > 100
    planned = plan.attach(others)
    assert planned.capacity < 100 * others.capacity
    assert int(jax.jit(two_levels)(planned).raise_if_overflowed().count) == needed
    # Who gives the input more room, as batches of several shards do, ends there.
    capacity = others.capacity
    while min(plan.capacities(capacity)) < len(others.coords):
        capacity *= 4
    assert capacity < 2**24
    assert plan.attach(others, grow=False, capacity=capacity).capacity == capacity


def test_overflow_of_a_planned_level_is_reported_or_grown():
    dense = make_voxels(random_cube(300))
    # As many rows, but far apart: coarse levels need far more than the fit expects.
    sparse_rows = random_cube(300)
    sparse_rows[:, 1:] *= 4
    sparse = make_voxels(sparse_rows)
    plan = vx.Plan.record(two_levels, dense).fitted([dense])
    with pytest.raises(vx.CapacityError, match=r"stride \(2, 2, 2\) needs \d+ rows"):
        plan.attach(sparse, grow=False)
    assert int(two_levels(plan.attach(sparse)).num_dropped) == 0


def test_traced_overflow_at_a_deeper_level_names_it():
    dense = make_voxels(random_cube(300))
    plan = vx.Plan.record(two_levels, dense).fitted([dense])
    planned = plan.attach(dense, maps=False)
    sparse = random_cube(300)
    sparse[:, 1:] *= 4

    @jax.jit
    def network(coords, like):
        v = vx.Voxels.from_coords(coords, FEATURES[: len(sparse)], 2, capacity=384)
        return two_levels(
            vx.Voxels(
                vx.VoxelGeometry(
                    v.coords, v.count, v.geometry.drops, None, v.stride, 2,
                    level_capacities=like.geometry.level_capacities,
                ),
                v.features,
            )
        )  # fmt: skip

    out = network(sparse, planned)
    with pytest.raises(vx.CapacityError, match=r"stride \(2, 2, 2\): \d+ rows lost"):
        out.raise_if_overflowed()


def test_a_batch_of_planned_scenes_has_room_for_all():
    scenes = [make_voxels(random_cube(seed=seed, batch_size=1)) for seed in range(3)]
    plan = vx.Plan.record(two_levels, scenes[0]).fitted(scenes)
    joined = vx.batch([plan.attach(scene, maps=False) for scene in scenes])
    assert int(jax.jit(two_levels)(joined).num_dropped) == 0


def test_traced_counts_of_fixed_coordinates_need_a_capacity_too():
    """A detector on a scan that is a constant of the trace counts what leaves its grid."""
    scan = make_voxels(random_cube(30))

    def grown(features):
        voxels = inside_grid(scan.replace_features(features), (12, 12, 12))
        return vx.kernel_map(voxels, 3, stride=2, generative=True).neighbors

    with pytest.raises(vx.InputError, match=r"needs capacity=.* vx\.plan"):
        jax.jit(grown)(scan.features)


def test_traced_features_of_fixed_coordinates_are_not_planned_for():
    scan = make_voxels(random_cube(30))

    def planned(features):
        return vx.plan(two_levels, scan.replace_features(features)).features

    with pytest.raises(TypeError, match="ahead of the trace"):
        jax.jit(planned)(scan.features)


@pytest.mark.parametrize("margin", [float("nan"), -1, 0.1, "1"])
def test_margins_that_are_none(margin):
    voxels = make_voxels(random_cube())
    plan = vx.Plan.record(two_levels, voxels)
    complains("margin .* must be", plan.fitted, [voxels], margin=margin)
    complains("margin .* must be", vx.plan, two_levels, voxels, margin=margin)


def test_plans_of_no_voxels():
    voxels = make_voxels(random_cube())
    plan = vx.Plan.record(two_levels, voxels)
    complains(r"attach takes vx.Voxels.*array", plan.attach, voxels.features)
    complains(r"record takes vx.Voxels.*array", vx.Plan.record, two_levels, voxels.features)
    complains(r"record takes a function", vx.Plan.record, 5, voxels)
    complains(r"a list, got Voxels: write \[voxels\]", vx.plan, two_levels, voxels, samples=voxels)
    complains("a list of 3 integers", plan.fitted, [[100, 50]])
    complains("a list of 3 integers", plan.fitted, [[100, 50, 2.5]])
