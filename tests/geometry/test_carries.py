"""Voxels as the state of loops and the result of branches: one structure, the loop's own values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from samples import make_voxels, make_weight
from voxax.nn.functional import max_pool, unpool
from voxax.nn.functional import spatially_sparse_conv as conv

CAPACITY = 2048
VOXELS = make_voxels(random_cube(60), capacity=CAPACITY)
WEIGHT = make_weight(3, 3, 3, 3)
HALVES = make_weight(2, 3, 3, 3)


def two_levels(v):
    low = conv(v, HALVES, 2, 2, capacity=64)
    lower = conv(low, WEIGHT, 3, (2, 1, 3), capacity=40)
    low = conv(lower, WEIGHT, 3, (2, 1, 3), transposed=True, out_voxels=low)
    return conv(low, HALVES, 2, 2, transposed=True, out_voxels=v)


def pooled(v):
    return unpool(max_pool(v, 2), v)


def grown_and_pruned(v):
    grown = conv(v, WEIGHT, generative=True, capacity=CAPACITY)
    return vx.top_k(grown, grown.features[:, 0], 30, capacity=CAPACITY)


def refined(v):
    return vx.refine(vx.coarsen(v, 2), 2, capacity=CAPACITY).map(lambda x: x / 2)


def joined(v):
    moved = vx.dilate(v, 3, kernel_shape="cross", capacity=CAPACITY)
    return vx.union(v, vx.crop(moved, -9, 2, capacity=512), capacity=CAPACITY)


BODIES = [two_levels, pooled, grown_and_pruned, refined, joined]


def same(got, want):
    np.testing.assert_array_equal(got.coords, want.coords)
    np.testing.assert_allclose(got.features, want.features, rtol=1e-4, atol=1e-4)
    assert {k: n for k, n in got.geometry.drops.items() if n} == {
        k: n for k, n in want.geometry.drops.items() if n
    }


@pytest.mark.parametrize("body", BODIES)
def test_loops(body):
    want = jax.jit(lambda v: body(body(v)))(VOXELS)
    same(jax.jit(lambda v: jax.lax.fori_loop(0, 2, lambda _, x: body(x), v))(VOXELS), want)
    same(jax.lax.scan(lambda x, _: (body(x), x.count), VOXELS, length=2)[0], want)
    state = jax.lax.while_loop(
        lambda state: state[0] < 2, lambda state: (state[0] + 1, body(state[1])), (0, VOXELS)
    )
    same(state[1], want)


@pytest.mark.parametrize("body", BODIES)
def test_branches(body):
    run = jax.jit(lambda go, v: jax.lax.cond(go, body, lambda v: v, v))
    same(run(True, VOXELS), jax.jit(body)(VOXELS))
    same(run(False, VOXELS), VOXELS)


def test_a_planned_input_is_a_carry_along_its_plan():
    def body(v):
        return conv(conv(v, HALVES, 2, 2), HALVES, 2, 2, transposed=True, out_voxels=v)

    planned = vx.plan(body, VOXELS)
    got = jax.lax.fori_loop(0, 2, lambda _, x: body(x), planned)
    want = body(body(VOXELS))
    np.testing.assert_allclose(got.valid_features(), want.valid_features(), rtol=1e-4, atol=1e-4)


def test_losses_inside_a_loop_are_reported_by_level():
    def body(v):
        low = conv(v, HALVES, 2, 2, capacity=10)
        return conv(low, HALVES, 2, 2, transposed=True, out_voxels=v)

    out = jax.jit(lambda v: jax.lax.fori_loop(0, 3, lambda _, x: body(x), v))(VOXELS)
    # Each round finds the level anew, and counts what it loses.
    once = int(jax.jit(body)(VOXELS).num_dropped)
    assert int(out.num_dropped) == 3 * once
    assert dict(out.geometry.drops.items())[2, 2, 2] == int(out.num_dropped) > 0
    with pytest.raises(vx.CapacityError, match=r"stride \(2, 2, 2\): \d+ rows lost"):
        out.raise_if_overflowed()


STRIDES = [(2**k,) * d for d in (1, 2, 3, 4) for k in range(12)] + [(8, 8, 16), (3, 3, 3), (6, 6)]


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
def test_levels_by_powers_of_two_are_told_apart(ndim):
    geometry = jax.jit(lambda n: vx.VoxelGeometry(
        jnp.zeros((1, 1 + ndim), jnp.int32), jnp.int32(1),
        {s: n + i for i, s in enumerate(STRIDES) if len(s) == ndim}, None, (1,) * ndim, 1,
    ))(jnp.int32(5))  # fmt: skip
    lost = {s: 5 + i for i, s in enumerate(STRIDES) if len(s) == ndim}
    assert dict(geometry.drops.items()) == lost
    assert int(geometry.num_dropped) == sum(lost.values())


def test_losses_that_two_ways_share_count_once():
    @jax.jit
    def run(rows):
        v = vx.Voxels.from_coords(rows, jnp.ones((len(rows), 3)), 2, capacity=40)
        coarse = vx.coarsen(v, 2, capacity=8)
        return v, vx.union(conv(v, HALVES, 2, 2), coarse), vx.batch([v, v])

    rows = random_cube(60)
    v, both, twice = run(rows)
    lost, here = dict(both.geometry.drops.items()), len(rows) - 40
    assert int(v.num_dropped) == here == lost[1, 1, 1]
    assert lost[2, 2, 2] > 0
    assert int(twice.num_dropped) == here


def test_frames_are_merged_into_a_map():
    frames = [make_voxels(random_cube(40, seed=seed), capacity=512) for seed in range(3)]
    stack = jax.tree.map(lambda *x: jnp.stack(x), *frames)

    def step(known, frame):
        return vx.union(known, frame, capacity=512), frame.num_dropped

    got, _ = jax.lax.scan(step, frames[0], stack)
    want = frames[0]
    for frame in frames:
        want = vx.union(want, frame, capacity=512)
    same(got, want)
