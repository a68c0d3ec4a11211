"""Lists of pairs: the JAX builder, its NumPy twin, and a loop over the table."""

import itertools

import jax
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from problems import random_table
from samples import make_voxels
from voxax.geometry import PAIR_ROOM, host
from voxax.geometry.kernel_maps import list_pairs
from voxax.geometry.planning import Plan
from voxax.nn.functional import spatially_sparse_conv


def pairs_by_loop(neighbors):
    """``{tap: [(input row, output row), ...]}``, by output row."""
    found = {tap: [] for tap in range(neighbors.shape[1])}
    for out, row in enumerate(neighbors.tolist()):
        for tap, source in enumerate(row):
            if source >= 0:
                found[tap].append((source, out))
    return found


def unlisted(pairs, starts):
    """Bring both views to one form; check the entries behind the last pair."""
    pairs, starts = np.asarray(pairs), np.asarray(starts)
    assert pairs.dtype == starts.dtype == np.int32
    assert (pairs[:, starts[-1] :] == -1).all()
    return {
        tap: [tuple(pair) for pair in pairs[:, begin:end].T.tolist()]
        for tap, (begin, end) in enumerate(itertools.pairwise(starts))
    }


@pytest.mark.parametrize("present", [0.0, 0.3, 1.0])
def test_lists_hold_every_pair_once(present, rng):
    """Check maps with no pair and with all pairs: the entries behind the last remain."""
    for _ in range(3):
        table = random_table(rng, 40, 40, 9, present, ascending=True)
        pairs, starts = list_pairs(table)
        assert pairs.shape == (2, table.size + PAIR_ROOM)
        assert starts.shape == (10,)
        assert unlisted(pairs, starts) == pairs_by_loop(table)
        for one, other in zip((pairs, starts), host.pair_lists(table), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype


@pytest.mark.parametrize("shape", [(0, 3), (5, 1), (1, 1)])
def test_small_tables(shape):
    table = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    made, twin = list_pairs(table), host.pair_lists(table)
    assert unlisted(*made) == unlisted(*twin) == pairs_by_loop(table)


MAPS = {
    "submanifold": {"kernel_size": 3},
    "partition": {"kernel_size": 2, "stride": 2},
    "overlapping": {"kernel_size": 3, "stride": 2},
    "generative": {"kernel_size": 2, "generative": True},
    "uneven": {"kernel_size": (1, 2, 3), "stride": (2, 1, 3), "dilation": (3, 2, 1)},
}


@pytest.fixture(scope="module")
def voxels():
    return make_voxels(random_cube(40), capacity=48)


@pytest.mark.filterwarnings("ignore:a kernel of extent")
@pytest.mark.parametrize("name", MAPS)
def test_the_lists_of_maps_ascend_on_both_sides(name, voxels):
    """Within a tap: what scattering with ``indices_are_sorted`` relies on, there and back."""
    kmap = vx.kernel_map(voxels, **MAPS[name])
    listed = unlisted(kmap.view("pairs"), kmap.view("pair_starts"))
    assert listed == pairs_by_loop(np.asarray(kmap.neighbors))
    assert sum(map(len, listed.values())) > 20
    for pairs in listed.values():
        for side in zip(*pairs, strict=True):
            assert (np.diff(side) > 0).all()


@pytest.mark.filterwarnings("ignore:a kernel of extent")
@pytest.mark.parametrize("first", ["neighbors", "pairs"])
@pytest.mark.parametrize("name", ["submanifold", "overlapping", "generative"])
def test_the_transposed_maps_lists_are_swapped(name, first, voxels):
    """Check lists that are built before or after the map is transposed."""
    kmap = vx.kernel_map(voxels, **MAPS[name])
    if first == "pairs":
        kmap = vx.KernelMap(
            kmap.in_geometry,
            kmap.out_geometry,
            kmap.spec,
            {view: kmap.view(view) for view in ("neighbors", "pairs", "pair_starts")},
        )
    back = kmap.transpose()
    assert ("pairs" in back.views) == (first == "pairs")
    there = unlisted(kmap.view("pairs"), kmap.view("pair_starts"))
    assert unlisted(back.view("pairs"), back.view("pair_starts")) == {
        tap: [(out, source) for source, out in pairs] for tap, pairs in there.items()
    }
    for tap, pairs in pairs_by_loop(np.asarray(back.neighbors)).items():
        assert [(out, source) for source, out in pairs] == there[tap]


def test_lists_of_a_map_without_voxels():
    empty = make_voxels(np.zeros((0, 4), np.int32), capacity=48)
    kmap = vx.kernel_map(empty, 3)
    assert np.asarray(kmap.view("pair_starts")).tolist() == [0] * 28
    assert (np.asarray(kmap.view("pairs")) == -1).all()


def test_lists_are_built_inside_jit(voxels):
    def listed(v):
        kmap = vx.kernel_map(v, 2, 2, capacity=48)
        return kmap.view("pairs"), kmap.view("pair_starts")

    jax.tree.map(np.testing.assert_array_equal, jax.jit(listed)(voxels), listed(voxels))


def network(voxels):
    """Down and up again over one map, pinned to what reads lists of pairs."""
    pins = {"fwd_algo": "pair_lists_4", "bwd_algo": "pair_lists_4"}
    weight = np.ones((27, 3, 3), np.float32)
    down = spatially_sparse_conv(voxels, weight, 3, 2, **pins)
    return spatially_sparse_conv(
        down, weight, 3, 2, transposed=True, out_voxels=voxels, **pins
    ).features


@pytest.mark.usefixtures("forms")
def test_a_plan_attaches_lists_and_serves_the_transposed_layer(voxels):
    plan = Plan.record(network, voxels)
    assert [set(record.views) >= {"pairs", "pair_starts"} for record in plan.records] == [True]
    planned = plan.attach(voxels)
    (views,) = planned.geometry.attached.views
    names = plan.records[0].views
    made = dict(zip(names, views, strict=True))
    expected = host.pair_lists(np.asarray(made["neighbors"]))
    np.testing.assert_array_equal(made["pairs"], expected[0])
    np.testing.assert_array_equal(made["pair_starts"], expected[1])
    np.testing.assert_allclose(network(planned), network(voxels), rtol=1e-6)
