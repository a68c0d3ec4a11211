"""dilate, refine, coarsen: what the conformance suite does not ask."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle import coordinates as loops
from oracle.convolution import make_offsets
from samples import complains, make_voxels
from voxax.coords import ladder_capacity
from voxax.geometry.build import output_geometry
from voxax.nn.functional import spatially_sparse_conv as conv

ROWS = np.random.default_rng(0).permutation(np.indices((2, 5, 5)).reshape(3, -1).T)[:30]
VOXELS = make_voxels(ROWS, channels=4, capacity=48)
LIMIT = vx.coords.COORD_LIMIT
# Both corners of the coordinate range, and a voxel in the middle.
ENDS = np.array([[0, -LIMIT, -LIMIT], [0, 5, 5], [1, LIMIT - 1, LIMIT - 1], [1, 7, -LIMIT]])
AT_ENDS = make_voxels(ENDS, channels=4, capacity=48)


def in_range(site):
    return all(-LIMIT <= c < LIMIT for c in site[1:])


def sites(rows):
    return {tuple(row): np.zeros(4) for row in rows.tolist()}


def test_dilation_reaches_what_a_generative_convolution_does():
    spec = vx.KernelSpec.make(2, (2, 3), dilation=2, generative=True)
    out = vx.dilate(VOXELS, (2, 3), dilation=2)
    np.testing.assert_array_equal(out.coords, output_geometry(VOXELS.geometry, spec)[0].coords)
    assert out.capacity == ladder_capacity(int(out.count))
    assert jax.eval_shape(vx.dilate, VOXELS).capacity == 9 * 48


def test_dilation_at_the_ends_of_the_range():
    complains("dilate by 3x3 leads to 13 sites .*outside", vx.dilate, AT_ENDS)
    out = jax.jit(vx.dilate)(AT_ENDS)
    reached = loops.dilate(sites(ENDS), make_offsets(2), 4)
    expected = sorted(site for site in reached if in_range(site))
    np.testing.assert_array_equal(out.valid_coords(), expected)
    assert int(out.num_dropped) == len(reached) - len(expected)


def test_refining_at_the_ends_of_the_range():
    factor = (2, 3)
    complains(r"refine by \(2, 3\) .* sites .*outside", vx.refine, AT_ENDS, factor)
    out = jax.jit(lambda v: vx.refine(v, factor))(AT_ENDS)
    children = loops.refine(sites(ENDS), factor)
    expected = sorted(site for site in children if in_range(site))
    np.testing.assert_array_equal(out.valid_coords(), expected)
    assert int(out.num_dropped) == len(children) - len(expected)


def test_half_the_range_can_be_refined():
    rows = ENDS // [1, 2, 2]
    out = jax.jit(vx.refine)(make_voxels(rows, channels=4, capacity=48))
    np.testing.assert_array_equal(out.valid_coords(), sorted(loops.refine(sites(rows), (2, 2))))
    assert int(out.num_dropped) == 0


@pytest.mark.parametrize(
    ("stride", "factor", "new_stride", "new_size"),
    [((4, 1), (2, 5), (2, 1), (0.5, 0.05)), ((3, 6), (2, 2), (3, 3), (0.25, 0.25))],
)
def test_children_lie_inside_their_parents(stride, factor, new_stride, new_size):
    """In the unit of ``voxel_size``, whether or not the factor divides the stride."""
    geometry = dataclasses.replace(VOXELS.geometry, stride=stride)

    @jax.jit
    def there_and_back(features):
        parents = vx.Voxels(geometry, features, (0.5, 0.25), (1.0, -2.0))
        children = vx.refine(parents.replace_features(parents.positions()), factor)
        back = vx.coarsen(children.replace_features(children.positions()), factor)
        return parents.positions(), children, children.positions(), back, back.positions()

    centers, children, places, back, centers_again = there_and_back(VOXELS.features)
    assert children.stride == new_stride
    np.testing.assert_allclose(children.voxel_size, new_size)
    assert children.origin == (1.0, -2.0)
    count = int(children.count)
    assert count == 30 * math.prod(factor)
    # Each child carries its parent's center: the distance is less than half the parent's edge.
    apart = np.abs(places[:count] - children.features[:count])
    assert (apart < np.multiply(stride, (0.5, 0.25)) / 2).all()
    np.testing.assert_array_equal(back.valid_coords(), VOXELS.valid_coords())
    for found in (back.valid_features(), centers_again[:30]):
        np.testing.assert_allclose(found, centers[:30], rtol=1e-5)


def test_refining_below_voxels_without_a_size_gives_them_one():
    children = jax.eval_shape(vx.refine, VOXELS)
    assert children.stride == (1, 1)
    assert children.voxel_size == (0.5, 0.5)
    sized = dataclasses.replace(VOXELS, voxel_size=(1.0, 1.0))
    complains("voxel_size", jax.eval_shape, vx.union, children, sized)


def test_capacities_of_a_refinement():
    assert vx.refine(VOXELS).capacity == ladder_capacity(120)
    assert jax.eval_shape(vx.refine, VOXELS).capacity == 4 * 48
    complains("120 voxels.*capacity 16", vx.refine, VOXELS, capacity=16, error=vx.CapacityError)


def test_coarse_voxels_are_those_of_a_strided_map():
    spec = vx.KernelSpec.make(2, 3, (2, 3))
    out = vx.coarsen(VOXELS, (2, 3))
    assert out.stride == (2, 3)
    assert out.capacity == VOXELS.capacity
    strided = jax.jit(lambda v: (vx.coarsen(v, (2, 3)), output_geometry(v.geometry, spec)[0]))
    traced, geometry = strided(VOXELS)
    assert traced.capacity == 48
    np.testing.assert_array_equal(traced.coords, geometry.coords)


def test_losses_are_reported_by_level():
    out = jax.jit(lambda v: vx.coarsen(vx.prune(v, v.valid, capacity=20), capacity=4))(VOXELS)
    lost = {level: int(n) for level, n in out.geometry.drops.items()}
    assert lost[1, 1] == 10
    assert lost[2, 2] > 0
    with pytest.raises(vx.CapacityError, match=r"stride \(2, 2\): \d+ rows lost"):
        out.raise_if_overflowed()


def test_half_precision_sums_in_float32():
    ones = VOXELS.replace_features(jnp.full((48, 4), 1 + 2**-8, jnp.float16))
    merged = vx.coarsen(ones, 64, reduction="sum", capacity=48)
    per_scene = np.bincount(ROWS[:, 0])
    expected = (per_scene * (1 + 2**-8)).astype(np.float16)
    np.testing.assert_array_equal(merged.valid_features()[:, 0], expected)


def test_bad_arguments():
    complains("factor=.*at least 1", vx.refine, VOXELS, 0)
    complains("factor=.*3 entries for 2", vx.coarsen, VOXELS, (2, 2, 2))
    complains(r"factor=.*limited to 2\*\*28", vx.coarsen, VOXELS, 2**29)
    complains("'first'; known: mean, sum", vx.coarsen, VOXELS, reduction="first")
    complains("'ball'", vx.dilate, VOXELS, kernel_shape="ball")
    complains("capacity=0", vx.dilate, VOXELS, capacity=0)


def test_too_many_sites_take_no_memory():
    weight = jnp.ones((121**2, 4, 1))
    for grown in (
        functools.partial(vx.refine, factor=10**4),
        functools.partial(vx.dilate, kernel_size=121),
        functools.partial(conv, weight=weight, kernel_size=121, generative=True),
    ):
        with pytest.raises(vx.CapacityError, match="do not fit into capacity 64"):
            grown(VOXELS, capacity=64)
    rows = np.pad(np.argwhere(np.ones((400, 400))), ((0, 0), (1, 0)))
    many = vx.Voxels.from_coords(rows, np.ones((len(rows), 4), np.float32))
    for grown in (
        functools.partial(vx.refine, many, 10**3),
        functools.partial(vx.dilate, many, 121),
        functools.partial(vx.dilate, many, 121, capacity=2**20),
        functools.partial(conv, many, weight, 121, generative=True),
    ):
        complains(r"candidates are more than 2\*\*31 - 1", grown)
    for traced in (
        lambda v: vx.refine(v, 10**3, capacity=64),
        lambda v: vx.dilate(v, 121, capacity=64),
        lambda v: conv(v, weight, 121, generative=True, capacity=64),
    ):
        complains(r"candidates are more than 2\*\*31 - 1", jax.jit(traced), many)


def test_as_many_sites_as_a_dilation_has_at_least_may_fit():
    line = vx.Voxels.from_coords(np.array([[0, x] for x in range(10)]), np.ones((10, 1)))
    assert int(vx.dilate(line, 7, capacity=16).count) == 16
    complains("at least 16 voxels", vx.dilate, line, 7, capacity=15, error=vx.CapacityError)
    empty = vx.prune(line, np.zeros(line.capacity, bool))
    assert int(vx.dilate(empty, 7, capacity=1).count) == 0
