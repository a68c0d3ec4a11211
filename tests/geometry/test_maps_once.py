"""A map is built once per geometry, spec and trace level, and never when attached."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from map_builds import builds
from samples import make_voxels, make_weight
from voxax.nn.functional import spatially_sparse_conv as conv


@pytest.fixture
def voxels():
    return make_voxels(random_cube(), capacity=384)


WEIGHT = make_weight(3, 3, 3, 3)


def unet(v, w=WEIGHT):
    """Three maps: submanifold on two levels, one down that up reads backwards."""
    skip = conv(conv(v, w), w)
    down = conv(conv(skip, w, 3, 2), w)
    up = conv(down, w, 3, 2, transposed=True, out_voxels=skip)
    return conv(up + skip, w)


def loss(w, v):
    return (unet(v, w).features ** 2).sum()


def test_eager_repetition_builds_once(voxels):
    with builds(3):
        unet(voxels)
    with builds(0):
        unet(voxels)


def test_another_spec_or_capacity_builds_again(voxels):
    vx.kernel_map(voxels, 3)
    with builds(3):
        vx.kernel_map(voxels, 3, dilation=2)
        vx.kernel_map(voxels, 3, 2)
        vx.kernel_map(voxels, 3, 2, capacity=320)


def test_jit_builds_once_and_not_when_cached(voxels):
    run = jax.jit(unet)
    with builds(3):
        run(voxels)
    with builds(0):
        run(voxels)


def test_gradients_in_jit_build_once(voxels):
    with builds(3):
        jax.jit(jax.grad(loss))(WEIGHT, voxels)


def test_nested_transformations_build_where_the_voxels_live(voxels):
    """A scan body and a remat block read the maps of the geometry they close over."""

    def run(w, v):
        def body(x, _):
            return jax.checkpoint(lambda x: conv(v.replace_features(x), w).features)(x), None

        x = jax.lax.scan(body, v.features, length=2)[0]
        return (conv(v.replace_features(x), w).features ** 2).sum()

    with builds(1):
        jax.jit(jax.grad(run))(WEIGHT, voxels)


def test_voxels_closed_over_by_jit_keep_their_maps(voxels):
    with builds(3):
        jax.jit(lambda w: loss(w, voxels))(WEIGHT)
    with builds(0):
        jax.jit(jax.grad(lambda w: loss(w, voxels)))(WEIGHT)


def test_no_tracer_leaks(voxels):
    with jax.checking_leaks():
        jax.jit(lambda w: loss(w, voxels))(WEIGHT)  # the voxels outlive the trace
        jax.grad(loss)(WEIGHT, voxels)
        jax.jit(jax.grad(loss))(WEIGHT, voxels)
    unet(voxels)  # what was remembered is concrete


def test_shards_without_jit_leave_nothing_of_theirs(voxels):
    """Check `shard_map` without `jit`, which runs each operation at once, with its own values."""
    mesh = jax.make_mesh((1,), ("d",))
    spec = jax.sharding.PartitionSpec()

    def shard(x):
        vx.kernel_map(voxels, 3).view("pairs")
        return conv(voxels.replace_features(x), WEIGHT).features

    got = jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)(voxels.features)
    with builds(0):
        np.testing.assert_array_equal(got, conv(voxels, WEIGHT).features)
        np.asarray(vx.kernel_map(voxels, 3).view("pairs"))


def test_equal_out_voxels_do_not_leave_an_address_behind(voxels):
    """The memo keys by identity: an array in a key is held, and is the one that stays."""
    wanted = make_voxels(random_cube(), capacity=384)
    vx.kernel_map(voxels, 3, out_voxels=wanted)
    (key,) = voxels.geometry.memo.names()
    assert key[1][0].array is voxels.coords


def test_attached_maps_are_not_built_again(voxels):
    planned = vx.plan(unet, voxels)
    with builds(0):
        unet(planned)
        jax.jit(unet)(planned)
        jax.jit(jax.grad(loss))(WEIGHT, planned)


def test_attached_maps_equal_built_ones(voxels):
    planned = vx.plan(unet, voxels)
    np.testing.assert_array_equal(unet(planned).features, unet(voxels).features)
    built = jax.grad(loss)(WEIGHT, voxels)
    np.testing.assert_allclose(jax.grad(loss)(WEIGHT, planned), built, rtol=1e-5, atol=1e-5)


def test_plan_is_static(voxels):
    plan = vx.Plan.record(unet, voxels).fitted([voxels])
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert hash(plan) == hash(vx.Plan.record(unet, voxels).fitted([voxels]))


def test_planned_voxels_are_refused_inside_a_trace(voxels):
    with pytest.raises(TypeError, match=r"outside jax\.jit"):
        jax.jit(lambda v: vx.plan(unet, v))(voxels)


WORKER = """
import pickle, sys
import numpy as np
import voxax
from voxax.geometry import host

rng = np.random.default_rng(0)
plan = pickle.load(sys.stdin.buffer)
positions = rng.uniform(-1, 1, (200, 3))
voxels, inverse = host.voxelize_on_host(positions, np.ones((200, 3), np.float32), 0.2, capacity=384)
planned = plan.attach(voxels)
leaves = [type(leaf) for leaf in __import__("jax").tree.leaves(planned)]
assert set(leaves) == {np.ndarray}, leaves
assert planned.num_dropped == 0
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
sys.stdout.buffer.write(pickle.dumps((planned.coords, planned.geometry.attached.views)))
"""


def test_a_worker_attaches_without_a_device(voxels):
    """Check that a worker returns the very arrays that are built here."""
    plan = vx.Plan.record(unet, voxels)
    source = str(Path(vx.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=pickle.dumps(plan),
        capture_output=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert result.returncode == 0, result.stderr.decode()
    coords, views = pickle.loads(result.stdout)
    positions = np.random.default_rng(0).uniform(-1, 1, (200, 3))
    here = vx.voxelize(positions, np.ones((200, 3), np.float32), 0.2, capacity=384)
    np.testing.assert_array_equal(coords, here.coords)
    attached = plan.attach(here).geometry.attached
    jax.tree.map(np.testing.assert_array_equal, views, attached.views)


def test_numpy_leaves_go_into_jit(voxels):
    on_host = jax.tree.map(np.asarray, voxels)
    planned = vx.plan(unet, on_host)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(planned))
    with builds(0):
        out = jax.jit(unet)(planned)
    np.testing.assert_allclose(out.features, unet(voxels).features, rtol=1e-5, atol=1e-5)


def test_a_map_given_by_hand_keeps_the_geometry(voxels):
    """Check geometries that enter one jitted function as different arrays."""
    kmap = vx.kernel_map(voxels, 3)
    with builds(0):
        out = jax.jit(lambda v, m: conv(v, WEIGHT, kernel_map=m) + v)(voxels, kmap)
    expected = conv(voxels, WEIGHT) + voxels
    np.testing.assert_allclose(out.features, expected.features, rtol=1e-6, atol=1e-6)


def test_map_building_is_the_same_under_vmap(voxels):
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), voxels)
    with builds(3):
        out = jax.vmap(unet)(stacked)
    np.testing.assert_allclose(out.features[1], unet(voxels).features, rtol=1e-5, atol=1e-5)
