"""MinkUNet: maps built once, programs compiled, padding, overflow by level."""

import contextlib
import dataclasses

import jax
import jax.monitoring
import numpy as np
import optax
import pytest
from flax import nnx

import voxax as vx
from voxax.geometry import MAP_BUILT_EVENT
from voxax.geometry import host as geometry_host
from voxax.hardware import HardwareInfo, targeting
from voxax.io.simulator import simulate_sweep
from voxax.models import ConvNormAct, MinkUNet, MinkUNet14, MinkUNet34
from voxax.models.training import Trainer


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
    return geometry_host.voxelize_on_host(positions, features, voxel_size, capacity=capacity)[0]


@pytest.fixture
def map_builds():
    events = []
    listener = lambda event, **_: events.append(event) if event == MAP_BUILT_EVENT else None  # noqa: E731
    jax.monitoring.register_event_listener(listener)
    yield events
    jax.monitoring.unregister_event_listener(listener)


@pytest.mark.slow
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


def sweeps_that_span_a_factor_of_four():
    """30 simulated sweeps of three sensors, cropped to radii from 12 to 60 m."""
    sensors = ("lidar32", "lidar64", "lidar128")
    for i, radius in enumerate(np.geomspace(12, 60, 30)):
        positions = simulate_sweep(100 + i, sensor=sensors[i % 3]).positions
        positions = positions[np.hypot(positions[:, 0], positions[:, 1]) < radius]
        ones = np.ones((len(positions), 1), np.float32)
        yield geometry_host.voxelize_on_host(positions, ones, 0.4)[0]


@contextlib.contextmanager
def counting_compilations():
    events = []

    def listener(event, _, **kwargs):
        if event.endswith("backend_compile_duration"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


@pytest.mark.lax_promotion  # optax promotes step counts
@pytest.mark.slow
def test_training_on_sweeps_that_span_a_factor_of_four():
    """Check one program for each step; at most a quarter padding at every level of finer ones."""
    drafts = list(sweeps_that_span_a_factor_of_four())
    counts = [int(v.count) for v in drafts]
    assert max(counts) > 4 * min(counts)
    model = Encoder(rngs=nnx.Rngs(0))
    with targeting(HardwareInfo("tpu", "TPU v5e")):
        fine = vx.Plan.record(model, drafts[0]).fitted(drafts)
    padding = [
        [1 - int(g.count) / g.capacity for g in (v.geometry, *v.geometry.attached.levels)]
        for v in map(fine.attach, drafts)
    ]
    assert len(padding[0]) == 5
    assert np.mean(padding, axis=0).max() <= 0.25

    plan = vx.Plan.record(model, drafts[0]).fitted(drafts)
    planned = [plan.attach(v, capacity=plan.capacity(int(v.count))) for v in drafts]
    trainer = Trainer(model, optax.sgd(1e-2))
    dropped = []
    with counting_compilations() as compiled:
        for voxels in planned:
            dropped.append(trainer.step(voxels, np.zeros(voxels.capacity, np.int32))[2])
    steps = {plan.capacity(n) for n in counts}
    assert len(steps) == 2
    assert len(compiled) <= len(steps) + 1  # the update is one for all
    assert trainer.programs == len(steps)
    assert not any(map(int, dropped))


class Encoder(nnx.Module):
    """The levels of a MinkUNet with one convolution each: what compiles is set by the levels."""

    def __init__(self, rngs):
        self.down = nnx.List([ConvNormAct(c, 4, 2, 2, rngs=rngs) for c in (1, 4, 4, 4)])
        self.up = nnx.List([ConvNormAct(4, 4, 2, 2, transposed=True, rngs=rngs) for _ in range(4)])

    def __call__(self, voxels):
        skips = []
        for down in self.down:
            skips.append(voxels)
            voxels = down(voxels)
        for up in self.up:
            voxels = up(voxels, skips.pop())
        return voxels


@pytest.mark.parametrize("width", [33, 1e9, 10**30, float("nan"), float("inf"), 0, -1, "x", True])
def test_widths_beyond_every_network(width):
    with pytest.raises(vx.InputError, match=f"width {width!r} must be "):
        MinkUNet14(1, 2, width=width)


def test_wrong_number_of_stages():
    with pytest.raises(vx.InputError, match="eight stages"):
        MinkUNet(1, 2, blocks=(1, 1))
