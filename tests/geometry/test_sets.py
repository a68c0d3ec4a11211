"""Union, intersection, cat, inject: what the conformance suite does not ask."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from samples import complains, make_voxels
from voxax.coords import ladder_capacity
from voxax.geometry import unbatch

CELLS = np.indices((2, 4, 4)).reshape(3, -1).T
A_ROWS, B_ROWS = CELLS[:20], CELLS[10:32]


def make(rows, **changes):
    voxels = make_voxels(rows, channels=4, capacity=48)
    return dataclasses.replace(voxels, **changes)


A, B = make(A_ROWS), make(B_ROWS)
LARGE_B = make_voxels(B_ROWS, channels=4, capacity=64)
JOINS = {
    "union": vx.union,
    "intersection": vx.intersection,
    "cat union": lambda a, b, **k: vx.cat([a, b], "union", **k),
    "cat intersection": lambda a, b, **k: vx.cat([a, b], "intersection", **k),
}


@pytest.mark.parametrize("join", JOINS)
def test_capacities(join):
    function = JOINS[join]
    joined = "union" in join
    assert function(A, B).capacity == ladder_capacity(32 if joined else 10)
    assert jax.eval_shape(function, A, LARGE_B).capacity == (48 + 64 if joined else 48)


@pytest.mark.parametrize(("join", "count"), [("union", 32), ("intersection", 10)])
def test_overflow(join, count):
    short = jax.jit(lambda a, b: JOINS[join](a, b, capacity=8))(A, B)
    assert (int(short.count), int(short.num_dropped)) == (8, count - 8)
    np.testing.assert_array_equal(short.coords, JOINS[join](A, B).coords[:8])
    with pytest.raises(vx.CapacityError, match=f"{count} voxels .* capacity 8"):
        JOINS[join](A, B, capacity=8)


@pytest.mark.parametrize("join", JOINS)
def test_one_geometry_stays(join):
    """Check identity inside a trace too, so that kernel maps stay shared."""

    @jax.jit
    def run(v):
        out = JOINS[join](v, v.map(jnp.abs))
        assert out.geometry is v.geometry
        return out.features

    x = np.asarray(A.features)
    both = np.concatenate([x, np.abs(x)], 1) if "cat" in join else x + np.abs(x)
    np.testing.assert_array_equal(run(A), both)


def test_closed_over_voxels_take_the_bound_of_a_trace():
    """Concrete coordinates inside a trace: what is computed of them is traced."""
    assert jax.eval_shape(lambda: vx.union(A, B)).capacity == 96


def test_losses_of_both_sides_add_up_and_shared_ones_count_once():
    @jax.jit
    def run(rows):
        def short(capacity):
            return vx.Voxels.from_coords(rows, jnp.ones((20, 4)), 2, capacity=capacity)

        a, b = short(15), short(17)
        return vx.union(a, b), vx.union(a, a, capacity=20), vx.inject(a, b), vx.batch([a, b])

    union, shared, injected, joined = run(A_ROWS)
    assert int(union.num_dropped) == 5 + 3
    assert int(shared.num_dropped) == 5
    assert int(injected.num_dropped) == 5
    assert int(joined.num_dropped) == 5 + 3


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_equal_operands_share_the_gradient(reduction):
    def total(a, b):
        merged = vx.union(A.replace_features(a), A.replace_features(b), reduction=reduction)
        return merged.features.sum()

    gradients = jax.jit(jax.grad(total, (0, 1)))(A.features, A.features)
    for gradient in gradients:
        assert (np.asarray(gradient[:20]) == 0.5).all()
        assert (np.asarray(gradient[20:]) == 0).all()


def test_half_precision_means_do_not_overflow():
    large = A.replace_features(jnp.full((48, 4), 60000, jnp.float16))
    merged = vx.union(large, large, reduction="mean")
    assert (np.asarray(merged.valid_features()) == 60000).all()


def test_integers():
    ints = A.replace_features(jnp.arange(48 * 4, dtype=jnp.int32).reshape(48, 4))
    merged = vx.union(ints, ints, reduction="max")
    np.testing.assert_array_equal(merged.valid_features(), ints.valid_features())


def test_inject_keeps_the_target_geometry():
    out = vx.inject(A, B)
    assert out.geometry.coords is B.coords
    assert out.geometry.memo is B.geometry.memo
    found = {tuple(r): f for r, f in zip(A_ROWS.tolist(), A.valid_features(), strict=True)}
    for row, feature in zip(out.valid_coords().tolist(), out.valid_features(), strict=True):
        np.testing.assert_array_equal(feature, found.get(tuple(row), np.zeros(4)))


def test_voxel_size_comes_from_the_operand_that_has_one():
    sized = make(A_ROWS, voxel_size=(0.5, 0.5), origin=(1.0, 2.0))

    def run(a, b):
        return vx.union(a, b), vx.inject(a, b), vx.cat([a, b], "intersection")

    for out in jax.jit(run)(B, sized):
        assert (out.voxel_size, out.origin) == ((0.5, 0.5), (1.0, 2.0))


@pytest.mark.parametrize("function", [vx.union, vx.intersection, vx.inject])
def test_operands_of_other_lattices(function):
    stride = dataclasses.replace(B.geometry, stride=(2, 2))
    complains(r"stride=\(1, 1\) and stride=\(2, 2\)", function, A, make(B_ROWS, geometry=stride))
    complains("batch_size=2 and batch_size=1", function, A, A.scene(0))
    sized = make(A_ROWS, voxel_size=(0.5, 0.5))
    complains(r"voxel_size=\(0.5, 0.5\) and", function, sized, make(B_ROWS, voxel_size=(1.0, 1.0)))
    complains(
        r"origin=\(0.5, 0.5\) and", function,
        make(A_ROWS, origin=(0.5, 0.5)), make(B_ROWS, origin=(1.0, 1.0)),
    )  # fmt: skip


def test_bad_arguments():
    wide = B.map(lambda f: jnp.tile(f, 2))
    complains(r"4 and 8 channels.*vx\.cat", vx.union, A, wide)
    complains("'median'; known: sum, mean", vx.union, A, B, reduction="median")
    complains("'median'; known: sum, mean", vx.intersection, A, B, reduction="median")
    complains("'outer'; known: same, union", vx.cat, [A, B], "outer")
    for join in ("same", "union", "intersection"):
        complains("empty list", vx.cat, [], join)
    complains("takes no capacity", vx.cat, [A, A], capacity=48)
    complains("capacity=0", vx.union, A, B, capacity=0)
    complains("empty list", vx.batch, [])
    complains("all must agree", vx.batch, [A, wide])


def test_cat_clears_padding():
    dirty = dataclasses.replace(A, features=jnp.full((48, 4), jnp.nan).at[:20].set(1))
    joined = vx.cat([dirty, A])
    assert joined.geometry is A.geometry
    assert np.isfinite(joined.features).all()


def test_unbatched_scenes_share_one_capacity():
    rows = np.concatenate([CELLS[:16], CELLS[16:19]])
    scenes = unbatch(make(rows))
    assert [int(s.count) for s in scenes] == [16, 3]
    assert [s.capacity for s in scenes] == [16, 16]
    assert [s.batch_size for s in scenes] == [1, 1]
    assert [s.capacity for s in jax.eval_shape(unbatch, make(rows))] == [48, 48]
    complains("16 voxels.*capacity 8", unbatch, make(rows), capacity=8, error=vx.CapacityError)
    short = jax.jit(lambda v: unbatch(v, capacity=8))(make(rows))
    assert [int(s.num_dropped) for s in short] == [8, 0]
