"""MinkUNet: maps built once, programs compiled, padding, overflow by level."""

import dataclasses

import jax
import jax.monitoring
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.geometry import MAP_BUILT_EVENT
from voxax.geometry import host as geometry_host
from voxax.models import MinkUNet, MinkUNet14, MinkUNet34


def street(rng, points, size=40.0):
    """Ground plane and walls: surfaces, as scans are."""
    plan = rng.uniform(-size, size, (points, 2))
    wall = rng.random(points) < 0.3
    plan[wall, 0] = np.round(plan[wall, 0] / 20) * 20
    height = np.where(wall, rng.uniform(0, 8, points), 0.02 * rng.standard_normal(points))
    return np.column_stack([plan, height]).astype(np.float32)


def voxels_of(rng, points, voxel_size=0.5, capacity=None):
    positions = street(rng, points)
    features = np.ones((points, 1), np.float32)
    return geometry_host.voxelize(positions, features, voxel_size, capacity=capacity)[0]


@pytest.fixture
def map_builds():
    events = []
    listener = lambda event, **_: events.append(event) if event == MAP_BUILT_EVENT else None  # noqa: E731
    jax.monitoring.register_event_listener(listener)
    yield events
    jax.monitoring.unregister_event_listener(listener)


def test_each_map_of_minkunet34_is_built_once(rng, map_builds):
    voxels = voxels_of(rng, 500)
    model = MinkUNet34(1, 3, width=0.125)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, voxels):
        return nnx.merge(graph, params, rest, copy=True)(voxels).features.sum()

    jax.eval_shape(jax.jit(jax.grad(loss)), params, voxels)
    # Five submanifold maps (one a level) and four strided ones, which the way up reuses.
    assert len(map_builds) == 9

    plan = vx.Plan.record(model, voxels)
    map_builds.clear()
    jax.eval_shape(jax.jit(jax.grad(loss)), params, plan.attach(voxels))
    assert map_builds == []


def test_attached_maps_give_the_same_logits(rng):
    voxels = voxels_of(rng, 300, 1.0)
    model = MinkUNet14(1, 3, width=0.125)
    model.eval()
    run = jax.jit(lambda v: model(v))
    built, attached = run(voxels), run(vx.plan(model, voxels))
    np.testing.assert_allclose(
        built.valid_features(), attached.valid_features(), rtol=2e-5, atol=2e-5
    )


def test_output_reports_overflow_of_a_deeper_level(rng):
    voxels = voxels_of(rng, 800)
    model = MinkUNet14(1, 3, width=0.125)
    model.eval()
    plan = vx.Plan.record(model, voxels)
    tight = plan.attach(voxels, maps=False)
    capacities = tuple((s, 16) for s, _ in tight.geometry.level_capacities)
    geometry = dataclasses.replace(tight.geometry, level_capacities=capacities)
    out = jax.jit(lambda v: model(v))(dataclasses.replace(tight, geometry=geometry))
    assert int(out.num_dropped) > 0
    with pytest.raises(vx.CapacityError, match=r"level of stride \(2, 2, 2\): \d+ rows lost"):
        out.raise_if_overflowed()


def test_programs_and_padding_over_sweeps_that_span_a_factor_of_four(rng):
    """30 clouds: as many programs as buckets, and at most a quarter padding at every level."""
    sizes = np.geomspace(2500, 12000, 30).astype(int)
    drafts = [voxels_of(rng, n) for n in sizes]
    counts = [int(v.count) for v in drafts]
    assert max(counts) > 3.5 * min(counts)
    conv = MinkUNet14(1, 2, width=0.125, planes=(8,) * 8, stem=8)
    conv.eval()
    plan = vx.Plan.record(conv, drafts[0]).fitted(drafts)
    planned = [plan.attach(v) for v in drafts]

    # A cheap function of every level stands for the network: what compiles is decided by shapes.
    @jax.jit
    def touch(voxels):
        return [leaf.sum() for leaf in jax.tree.leaves(voxels)]

    compiled = []
    listener = lambda event, _, **kw: (  # noqa: E731
        compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    touch(planned[0])  # constants of the first call
    jax.monitoring.register_event_duration_secs_listener(listener)
    for voxels in planned:
        touch(voxels)
    jax.monitoring.unregister_event_duration_listener(listener)
    buckets = {v.capacity for v in planned}
    assert len(compiled) + 1 <= len(buckets) == len({vx.bucket_capacity(n) for n in counts})

    padding = [
        [1 - int(g.count) / g.capacity for g in (v.geometry, *v.geometry.attached.levels)]
        for v in planned
    ]
    assert np.mean(padding, axis=0).max() <= 0.25


@pytest.mark.slow
def test_training_compiles_one_program_a_bucket(rng):
    """The same with the real training step, counted in XLA compilations."""
    import optax

    from voxax.models.training import Trainer

    sizes = np.geomspace(600, 2600, 30).astype(int)
    drafts = [voxels_of(rng, n) for n in sizes]
    model = MinkUNet14(1, 2, width=0.125, planes=(8,) * 8, stem=8)
    plan = vx.Plan.record(model, drafts[0]).fitted(drafts)
    planned = [plan.attach(v) for v in drafts]
    trainer = Trainer(model, optax.sgd(1e-2))
    labels = [np.zeros(v.capacity, np.int32) for v in planned]
    for voxels, target in zip(planned, labels, strict=True):
        _, _, dropped = trainer.step(voxels, target)
        assert int(dropped) == 0
    assert trainer.programs <= len({v.capacity for v in planned})


def test_wrong_number_of_stages():
    with pytest.raises(vx.InputError, match="eight stages"):
        MinkUNet(1, 2, blocks=(1, 1))
