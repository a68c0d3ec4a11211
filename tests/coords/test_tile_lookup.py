"""Neighbors found tile by tile, the way of TPUs, run on the CPU: as a dictionary finds them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import lidar_like, random_cube

from oracle import box_offsets, neighbor_dictionary, sorted_rows
from voxax import coords as device
from voxax.coords import host, lookup, tile_lookup, unique
from voxax.coords.tile_lookup import find_columns, find_numbers
from voxax.geometry.kernel_maps import invert_neighbors


def far_apart(ndim):
    """Pairs of neighbors over the whole coordinate range, in two scenes."""
    rng = np.random.default_rng(ndim)
    limit = device.COORD_LIMIT
    rows = rng.integers(-limit, limit - 1, (150, ndim))
    rows = np.concatenate([rows, rows + rng.integers(0, 2, rows.shape), [[-limit] * ndim]])
    return sorted_rows({(i % 2, *map(int, row)) for i, row in enumerate(rows)}, ndim + 1)


def dense_planes():
    """Rows whose neighbors one plane on lie more than three blocks away, and negative ones."""
    return np.asarray([(0, *c) for c in itertools.product((-1, 0, 1), range(-9, 10), range(26))])


def whole_range():
    """Neighbors at both ends of what 32 bits hold."""
    ends = [-(2**31) + 2, -(2**31) + 3, -1, 0, 2**31 - 4, 2**31 - 3]
    return np.asarray([(b, *c) for b in (0, 5) for c in itertools.product(ends, repeat=3)])


def same_keys():
    """Scenes whose box, with a margin of one cell, has 2**32 cells: one's keys are the other's."""
    rng = np.random.default_rng(0)
    corners = np.asarray([[1, 1], [2**16 - 2, 2**16 - 2]])
    cells = np.concatenate([rng.integers(2, 2**16 - 4, (150, 2)), corners])
    beside = cells[:-2] + np.asarray([[0, 1]])
    cells = np.concatenate([cells, beside])
    # A large scene, many of whose tiles keys are enough for; of others all lie in one window.
    sizes = 50, len(cells), *[50] * 8
    rows = [(b, *c) for b, size in enumerate(sizes) for c in rng.permutation(cells)[:size].tolist()]
    return np.unique(rows, axis=0)


GRIDS = {
    "random": lambda: sorted_rows(map(tuple, random_cube().tolist()), 4),
    "lidar": lambda: sorted_rows(map(tuple, lidar_like(100).tolist()), 4),
    "planes": dense_planes,
    "far apart": lambda: far_apart(3),
    "far apart, 4 axes": lambda: far_apart(4),
    "whole range": whole_range,
    "same keys": same_keys,
    "one axis": lambda: np.asarray([(b, x) for b in (0, 2) for x in range(-200, 200, 3)]),
    "one": lambda: np.asarray([[0, 5, -6, 7]]),
}


@pytest.fixture(autouse=True)
def few_lanes(monkeypatch):
    """Tiles are filled up to so many: a CPU would compare padding for seconds."""
    monkeypatch.setattr(tile_lookup, "VISITS", 4)


@pytest.fixture
def by_tiles(monkeypatch):
    """Run the search that ``find_neighbors`` uses on a TPU."""

    def find(rows, centers, valid, offsets):
        monkeypatch.setattr(jax.lax, "platform_dependent", lambda *a, tpu, **others: tpu(*a))
        operands = (jnp.asarray(a, jnp.int32) for a in (rows, centers))
        taps = tuple(tuple(int(v) for v in offset) for offset in offsets)
        # Not its jitted form, which would remember what was traced here.
        return lookup._find_neighbors.__wrapped__(*operands, jnp.asarray(valid), taps, True)[0]

    return find


@pytest.mark.parametrize("grid", GRIDS)
def test_all_columns_at_once_equal_a_dictionary(grid):
    rows = GRIDS[grid]()
    ndim = rows.shape[1] - 1
    taps = box_offsets((3,) * ndim, (1,) * ndim)
    padded = host.pad_rows(rows, len(rows) + 3)
    starts = [tap for tap in taps if tap[-1] == -1]
    columns = jnp.asarray([[0, *start] for start in starts], jnp.int32)
    valid = jnp.arange(len(padded)) < len(rows)
    found = find_columns(jnp.asarray(padded), jnp.asarray(padded), valid, columns, (0, 1, 2))
    assert found.shape == (len(starts), 3, len(padded))
    table = np.asarray(found).reshape(len(taps), -1).T
    order = [taps.index((*start[:-1], last)) for start in starts for last in (-1, 0, 1)]
    expected = neighbor_dictionary(rows, rows, taps)
    np.testing.assert_array_equal(table[: len(rows)], expected[:, order])
    assert (table[len(rows) :] == -1).all()


@pytest.mark.parametrize("visits", [1, 5, 128])
def test_any_number_of_visits_at_a_time(visits, monkeypatch, by_tiles):
    monkeypatch.setattr(tile_lookup, "VISITS", visits)
    rows = dense_planes()
    taps = [(-1, 0, z) for z in (-40, -3, 0, 1, 30)]
    taps += [(0, 0, z) for z in range(-8, tile_lookup.LONGEST_RUN - 8)]  # all with one sum
    taps += [(1, 0, z) for z in (-40, -3, 0, 1, 30)]
    expected = neighbor_dictionary(rows, rows, taps)
    found = by_tiles(rows, rows, np.ones(len(rows), bool), taps)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("visits", [1, 300])
def test_columns_whose_visits_are_too_many_to_count_at_once(visits, monkeypatch, by_tiles):
    """As if numbers of so many bits were all; the columns go in parts."""
    rows = dense_planes()
    taps = box_offsets((3, 3, 3), (1, 1, 1))
    expected = neighbor_dictionary(rows, rows, taps)
    monkeypatch.setattr(tile_lookup, "_MOST_VISITS", visits)
    found = by_tiles(rows, rows, np.ones(len(rows), bool), taps)
    np.testing.assert_array_equal(found, expected)


def test_centers_of_a_strided_map(by_tiles):
    """Coarse rows, scaled: between their lines lie lines that no tap reaches."""
    rows = dense_planes()
    coarse = np.unique(rows // [1, 2, 2, 2], axis=0) * [1, 2, 2, 2]
    taps = list(itertools.product((0, 1), repeat=3))
    expected = neighbor_dictionary(rows, coarse, taps)
    found = by_tiles(rows, coarse, np.ones(len(coarse), bool), taps)
    np.testing.assert_array_equal(found, expected)


def test_centers_in_no_order_and_some_of_them_invalid(rng, by_tiles):
    rows = GRIDS["random"]()
    centers = np.concatenate([rows, [[7, 0, 0, 0], [0, 2**30, 0, 0], [0, -(2**30), 1, 1]]])
    centers = rng.permutation(centers)
    valid = rng.random(len(centers)) < 0.7
    taps = [(0, 0, -1), (0, 0, 1), (0, 1, 0), (2, 0, 0)]
    expected = np.where(valid[:, None], neighbor_dictionary(rows, centers, taps), -1)
    np.testing.assert_array_equal(by_tiles(rows, centers, valid, taps), expected)


def test_no_valid_center_and_nothing_but_padding(by_tiles):
    rows = GRIDS["random"]()
    none = np.zeros(len(rows), bool)
    assert (by_tiles(rows, rows, none, [(0, 0, 0)]) == -1).all()
    padding = host.pad_rows(rows[:0], 130)
    assert (by_tiles(padding, padding, np.zeros(130, bool), [(0, 0, 0)]) == -1).all()


@pytest.mark.parametrize("order", ["ascending", "none"])
@pytest.mark.parametrize(("places", "number"), [(1, 1), (300, 2000), (2000, 300)])
def test_numbers_in_columns(places, number, order, rng):
    columns = np.full((3, places), -1, np.int32)
    for column in columns[:2]:  # and one that is all gaps
        many = rng.integers(0, min(places, number) + 1)
        drawn = rng.permutation(number)[:many]
        where = rng.permutation(places)[:many]
        column[np.sort(where)] = np.sort(drawn) if order == "ascending" else drawn
    expected = np.full((3, number), -1)
    for row, place in np.argwhere(columns >= 0):
        expected[row, columns[row, place]] = place
    np.testing.assert_array_equal(find_numbers(jnp.asarray(columns), number), expected)


@pytest.mark.parametrize("capacity", [1, 300, 2000])
@pytest.mark.parametrize("grid", ["random", "far apart, 4 axes", "one"])
def test_distinct_rows_without_a_scatter(grid, capacity, rng, monkeypatch):
    rows = GRIDS[grid]()
    repeated = np.concatenate([rows, rows, host.pad_rows(rows[:0], 5)]).astype(np.int32)
    repeated = jnp.asarray(rng.permutation(repeated))
    usual = unique._unique_rows(repeated, capacity)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *a, tpu, **others: tpu(*a))
    for found, expected in zip(unique._unique_rows(repeated, capacity), usual, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_it_is_what_tpus_get_for_ordered_centers_alone():
    rows, valid = jax.ShapeDtypeStruct((200, 4), "int32"), jax.ShapeDtypeStruct((200,), "bool")
    taps = np.asarray(box_offsets((3, 3, 3), (1, 1, 1)))

    def by_halves(platform, ordered):
        def search(rows, valid):
            return device.find_neighbors(rows, rows, valid, taps, ordered=ordered)

        traced = jax.jit(search).trace(rows, valid)
        return "lower_bound" in traced.lower(lowering_platforms=(platform,)).as_text()

    assert not by_halves("tpu", True)
    assert by_halves("tpu", False)
    assert not by_halves("cuda", True), "it searches all columns at once, without a loop"


def test_tables_are_read_backwards_without_a_scatter_of_every_entry():
    table = jax.ShapeDtypeStruct((200, 27), "int32")

    def scattered(platform):
        traced = jax.jit(lambda table: invert_neighbors(table, 200)).trace(table)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        return [line for line in text.splitlines() if "tensor<200x27x2xi32>" in line]

    assert scattered("cuda")
    assert not scattered("tpu")
