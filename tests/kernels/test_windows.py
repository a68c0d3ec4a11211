"""Windows of tiles: the JAX builder, its NumPy twin, a loop over the table; and how many visits."""

import numpy as np
import pytest
from benchmarks.workloads import WORKLOADS, random_cube

import voxax as vx
from samples import make_voxels
from voxax.geometry import KernelSpec
from voxax.geometry.planning import Plan
from voxax.kernels.implicit_gemm.windows import (
    LONGEST_COLUMN,
    VIEWS,
    WINDOW_ALIGNMENT,
    WINDOW_TILE,
    columns_of,
    find_windows,
    most_visits,
)
from voxax.nn.functional import spatially_sparse_conv

MAPS = {
    "submanifold": {"kernel_size": 3},
    "even": {"kernel_size": 2},
    "partition": {"kernel_size": 2, "stride": 2},
    "overlapping": {"kernel_size": 3, "stride": 2},
    "wide": {"kernel_size": 5, "dilation": 7},
    "uneven": {"kernel_size": (1, 2, 3), "stride": (2, 1, 3), "dilation": (3, 2, 1)},
}


def dense_cube(edge):
    """All sites of a cube around the origin: columns are as full as they can be."""
    axis = np.arange(edge) - edge // 2
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    return np.concatenate([np.zeros((len(grid), 1), int), grid], 1)


def windows_by_loop(table, columns):
    tiles = -(-len(table) // WINDOW_TILE)
    found = np.zeros((2, tiles, len(columns)), np.int32)
    for tile in range(tiles):
        rows = table[tile * WINDOW_TILE : (tile + 1) * WINDOW_TILE]
        for number, column in enumerate(columns):
            used = rows[:, list(column)]
            used = used[used >= 0]
            if len(used):
                start = used.min() // WINDOW_ALIGNMENT * WINDOW_ALIGNMENT
                found[:, tile, number] = start, used.max() + 1 - start
    return found


@pytest.fixture(scope="module")
def clouds():
    return {
        "thin": make_voxels(random_cube(700), capacity=800),
        "full": make_voxels(dense_cube(9), capacity=800),
        "empty": make_voxels(random_cube(3)[:0]),
        "one": make_voxels(random_cube(3)[:1]),
    }


@pytest.mark.parametrize("cloud", ["thin", "full", "empty", "one"])
@pytest.mark.parametrize("name", MAPS)
def test_windows_hold_every_neighbor_and_are_visited_often_enough(clouds, cloud, name):
    """In both directions of the map; the bound holds for windows of any length."""
    kmap = vx.kernel_map(clouds[cloud], **MAPS[name])
    columns = columns_of(kmap.spec, kmap.num_offsets)
    assert sorted(tap for column in columns for tap in column) == list(range(kmap.num_offsets))
    for view, side in (("windows", "neighbors"), ("transposed_windows", "transposed_neighbors")):
        table = np.asarray(kmap.view(side))
        expected = windows_by_loop(table, columns)
        np.testing.assert_array_equal(kmap.view(view, VIEWS[view]), expected)
        np.testing.assert_array_equal(VIEWS[view].on_host(table, kmap.spec), expected)
        rows = kmap.in_capacity if view == "windows" else kmap.out_capacity
        for window in (64, 128, 256):
            visits = (-(-expected[1] // window)).max(1).sum()
            assert visits <= most_visits(kmap.spec, columns, rows, expected.shape[1], window)


LINE = np.stack([np.zeros(3000, int), np.arange(3000) - 900], axis=1)
SCENES = np.concatenate([np.column_stack([np.full(700, b), np.arange(700)]) for b in range(3)])


@pytest.mark.parametrize("rows", [LINE, SCENES, LINE[::3]], ids=["line", "scenes", "thirds"])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 17},
        {"kernel_shape": [(0,), (7,), (16,)]},
        {"kernel_size": 5, "dilation": 4},
        {"kernel_size": 3, "generative": True},
    ],
    ids=["box", "custom", "dilated", "generative"],
)
def test_one_column_is_visited_often_enough(rows, stride, options):
    """A line is one column, for which the bound has almost no slack."""
    voxels = make_voxels(rows.astype(np.int32))
    kmap = vx.kernel_map(voxels, options.pop("kernel_size", 3), stride=stride, **options)
    columns = columns_of(kmap.spec, kmap.num_offsets)
    for view in ("windows", "transposed_windows"):
        lengths = np.asarray(kmap.view(view, VIEWS[view]))[1]
        sources = kmap.in_capacity if view == "windows" else kmap.out_capacity
        for window in (64, 128):
            visits = (-(-lengths // window)).max(1)
            for stripes in (1, 2):
                parts = np.array_split(visits, stripes)
                most = most_visits(kmap.spec, columns, sources, len(parts[0]), window)
                assert max(part.sum() for part in parts) <= most


def test_columns_are_lines_along_the_last_axis_of_little_length():
    spec = KernelSpec.make(3, 3)
    assert columns_of(spec, 27) == tuple((3 * c, 3 * c + 1, 3 * c + 2) for c in range(9))
    far = KernelSpec.make(1, 3, dilation=LONGEST_COLUMN)
    assert columns_of(far, 3) == ((0, 1), (2,))
    custom = KernelSpec.make(2, kernel_shape=[(0, 1), (5, 0), (0, -1)])
    assert columns_of(custom, 3) == ((2, 0), (1,))
    assert columns_of(None, 3) == ((0,), (1,), (2,))


def test_no_rows_have_no_windows():
    assert find_windows(np.zeros((0, 3), np.int32), ((0, 1), (2,))).shape == (2, 0, 2)
    spec = KernelSpec.make(2, kernel_shape=[(0, 0), (0, 1), (5, 0)])
    assert VIEWS["windows"].on_host(np.zeros((0, 3), np.int32), spec).shape == (2, 0, 2)


def test_the_transposed_map_has_the_views_of_the_other_side(clouds):
    kmap = vx.kernel_map(clouds["thin"], kernel_size=3, stride=2)
    known = {name: kmap.view(name, VIEWS.get(name)) for name in ("neighbors", *VIEWS)}
    made = type(kmap)(kmap.in_geometry, kmap.out_geometry, kmap.spec, known).transpose()
    assert made.views["windows"] is known["transposed_windows"]
    assert made.views["transposed_windows"] is known["windows"]
    again = kmap.transpose().view("windows", VIEWS["windows"])
    np.testing.assert_array_equal(made.view("windows"), again)


def test_a_plan_attaches_the_windows_that_were_asked_for():
    voxels = make_voxels(WORKLOADS["surface"](200))

    def model(v):
        for options in ({"kernel_size": 3}, {"kernel_size": 2, "stride": 2}):
            for name, view in VIEWS.items():
                vx.kernel_map(v, **options).view(name, view)
        down = spatially_sparse_conv(v, np.ones((8, 3, 3), np.float32), 2, 2)
        up = vx.kernel_map(down, kernel_size=2, stride=2, transposed=True, out_voxels=v)
        up.view("windows", VIEWS["windows"])
        return down.features

    planned = Plan.record(model, voxels).attach(voxels)
    for options in ({"kernel_size": 3}, {"kernel_size": 2, "stride": 2}):
        ahead, now = vx.kernel_map(planned, **options), vx.kernel_map(voxels, **options)
        for name, view in VIEWS.items():
            assert name in ahead.views or ahead.symmetric
            # The planned coarse level has fewer rows, so perhaps fewer tiles.
            one, other = np.asarray(ahead.view(name, view)), np.asarray(now.view(name, view))
            tiles = one.shape[1]
            np.testing.assert_array_equal(one, other[:, :tiles])
            assert not other[:, tiles:].any()
