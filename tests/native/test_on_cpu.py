"""A native body that stands in for a portable one, under the transformations of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import needs_native
from voxax import _native
from voxax._native.on_cpu import natively_on_cpu
from voxax.coords import find_neighbors
from voxax.coords.lookup import find_rows
from voxax.nn.functional.pooling import extreme_rows

# A body for CPUs that differs, so that one sees which of the two has run.
scaled = natively_on_cpu(
    "scaled", lambda x, y, by: (x * y * by, x + y), lambda x, y, by: (-x * y * by, x + y)
)


@needs_native
def test_on_a_cpu_the_native_body_runs():
    x, y = jnp.arange(3.0), jnp.full(3, 2.0)
    for call in (scaled, jax.jit(scaled, static_argnames="by")):
        product, total = call(x, y, by=5.0)
        np.testing.assert_array_equal(product, [0, 10, 20])
        np.testing.assert_array_equal(total, [2, 3, 4])
    with jax.disable_jit():
        np.testing.assert_array_equal(scaled(x, y, by=5.0)[0], [0, 10, 20])


@needs_native
def test_static_values_are_told_apart():
    x = jnp.ones(2)
    assert [float(scaled(x, x, by=by)[0][0]) for by in (1.0, 2.0, 1.0)] == [1, 2, 1]


@needs_native
def test_nested_vmap_over_different_axes(rng):
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    y = rng.normal(size=(3, 2)).astype(np.float32)
    inner = jax.vmap(lambda x, y: scaled(x, y, by=2.0)[0], in_axes=(1, None))
    found = jax.jit(jax.vmap(inner, in_axes=(0, 1)))(x, y)
    np.testing.assert_allclose(found, 2 * np.einsum("irj,ri->ijr", x, y), rtol=1e-6)


def test_tpus_may_have_a_body_of_their_own(monkeypatch):
    """It is traced for them alone; without the library CPUs run the portable one."""
    traced = []

    def on_tpu(x, by):
        traced.append(by)
        return (jnp.cos(x),)

    bodies = (lambda x, by: (by * x,), lambda x, by: (-by * x,), on_tpu)
    function = natively_on_cpu("with_a_body_for_tpus", *bodies)
    monkeypatch.setattr(_native, "unavailable", lambda: "for this test")
    np.testing.assert_array_equal(function(jnp.ones(2), by=3.0)[0], [-3, -3])
    program = jax.jit(lambda x: function(x, by=2.0)).trace(jnp.ones(2))
    assert "cosine" not in program.lower(lowering_platforms=("cuda",)).as_text()
    assert not traced
    assert "cosine" in program.lower(lowering_platforms=("tpu",)).as_text()
    assert traced == [2.0]


def test_neighbors_of_a_batch_of_scenes(rng):
    """Both lists batched, then the centers alone."""
    scenes = [np.unique(rng.integers(0, 5, (30, 4)), axis=0)[:15] for _ in range(3)]
    lists = jnp.asarray(np.stack(scenes), jnp.int32)
    offsets = np.array([[0, 0, -1], [0, 0, 0], [1, 0, 2]])
    valid = jnp.arange(15) < 13

    def find(rows, centers):
        return find_neighbors(rows, centers, valid, offsets)

    each = [find(rows, rows) for rows in lists]
    np.testing.assert_array_equal(jax.vmap(find)(lists, lists), each)
    crossed = jax.vmap(jax.vmap(find, (None, 0)), (0, None))(lists, lists)
    expected = [[find(rows, centers) for centers in lists] for rows in lists]
    np.testing.assert_array_equal(crossed, expected)


def test_inside_shard_map_and_loops(rng):
    rows = jnp.asarray(np.unique(rng.integers(0, 4, (40, 3)), axis=0)[:20], jnp.int32)
    offsets = np.array([[0, -1], [0, 1]])
    wanted = find_neighbors(rows, rows, jnp.ones(20, bool), offsets)
    mesh = jax.make_mesh((1,), ("part",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("part")

    def shard(centers):
        return find_neighbors(rows, centers, jnp.ones(len(centers), bool), offsets)

    sharded = jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec))
    np.testing.assert_array_equal(sharded(rows), wanted)
    np.testing.assert_array_equal(jax.lax.map(shard, rows[:, None])[:, 0], wanted)


@pytest.mark.parametrize("library", ["as it is", "none"])
def test_lookups_that_vary_over_shards(library, rng, monkeypatch):
    """The loops of the portable bodies too, where shard_map checks what varies."""
    if library == "none":
        monkeypatch.setattr(_native, "unavailable", lambda: "for this test")
        jax.clear_caches()
    rows = jnp.asarray(np.unique(rng.integers(0, 4, (40, 3)), axis=0)[:20], jnp.int32)
    table = jnp.asarray(rng.integers(-1, 20, (20, 3)), jnp.int32)
    x = jnp.asarray(rng.normal(size=(20, 5)), jnp.float32)
    offsets = np.array([[0, -1], [0, 1]])
    mesh = jax.make_mesh((1,), ("part",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("part")

    def shard(rows, table, x):
        found = find_neighbors(rows, rows, jnp.ones(len(rows), bool), offsets)
        return found, find_rows(rows, rows), extreme_rows(x, table, largest=True)

    sharded = jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)
    for found, wanted in zip(sharded(rows, table, x), shard(rows, table, x), strict=True):
        np.testing.assert_array_equal(found, wanted)
    jax.clear_caches()


@needs_native
def test_shapes_are_those_of_the_native_body():
    """The portable one may be long: tracing a call does not trace it."""

    def portable(x):
        raise AssertionError("traced")

    twice = natively_on_cpu("twice", lambda x: (2 * x,), portable)
    assert jax.eval_shape(twice, jnp.ones(3))[0].shape == (3,)
