"""Native sorting, duplicates, lookups and tables: against NumPy's own and against XLA's bodies."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import needs_native, random_table
from voxax import coords as device
from voxax._native import host as native_host
from voxax._native.on_cpu import library_call
from voxax.coords import PAD, host, lookup, ordering, unique
from voxax.geometry import host as geometry_host
from voxax.geometry.cells import cells, lattice
from voxax.geometry.kernel_maps import _invert_neighbors, _list_pairs, invert_neighbors, list_pairs

LIMIT = device.COORD_LIMIT
RANGES = {
    "one cell": (0, 1),
    "dense": (-3, 4),
    "scan": (-2000, 2000),
    "the whole range": (-LIMIT, LIMIT),
    "any int32": (-(2**31), 2**31),
}
# Below and above the least count of a radix sort, and of a second thread.
COUNTS = (0, 1, 2, 700, 1024, 1500, 40_000)


def draw(rng, count, width, low, high, padding="some"):
    """Rows in any order, with duplicates; some are padding, some have its value here and there."""
    rows = rng.integers(low, high, (count, width)).astype(np.int32)
    rows[:, 0] = rng.integers(0, 3, count)
    if count:
        rows = rows[rng.integers(0, count, count)]
    if padding != "none":
        rows[rng.random(count) < (1.0 if padding == "all" else 0.1)] = PAD
    if padding == "odd":
        rows[rng.random((count, width)) < 0.05] = PAD
    return rows


def lexicographic(rows):
    return np.lexsort(rows.T[::-1]) if rows.size else np.arange(len(rows))


@needs_native
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("extent", RANGES)
def test_the_order_is_that_of_a_stable_sort(width, extent, rng):
    for count in COUNTS:
        rows = draw(rng, count, width, *RANGES[extent], "odd")
        for given in (rows, rows[lexicographic(rows)], rows[lexicographic(rows)[::-1]]):
            found, order = device.sort_rows(given)
            np.testing.assert_array_equal(order, lexicographic(given))
            np.testing.assert_array_equal(found, given[np.asarray(order)])


@needs_native
def test_one_row_out_of_place_at_the_border_of_two_threads(rng):
    rows = np.unique(draw(rng, 40_000, 4, -500, 500, "none"), axis=0)
    half = len(rows) // 2
    rows[[half - 1, half]] = rows[[half, half - 1]]
    np.testing.assert_array_equal(device.sort_rows(rows)[1], lexicographic(rows))


@needs_native
@pytest.mark.parametrize("width", [2, 4, 5])
@pytest.mark.parametrize("extent", RANGES)
@pytest.mark.parametrize("padding", ["none", "some", "odd", "all"])
def test_distinct_rows_are_bit_for_bit_those_of_xla(width, extent, padding, rng):
    by_xla = jax.jit(unique._unique_rows, static_argnames="capacity")
    for count in (0, 1, 900, 20_000):
        rows = draw(rng, count, width, *RANGES[extent], padding)
        for capacity in (1, 700, 25_000):
            found, wanted = device.unique_rows(rows, capacity), by_xla(rows, capacity=capacity)
            for name, ours, theirs in zip(wanted._fields, found, wanted, strict=True):
                assert ours.dtype == theirs.dtype, name
                np.testing.assert_array_equal(ours, theirs, err_msg=name)


@needs_native
@pytest.mark.parametrize("extent", RANGES)
def test_distinct_rows_are_those_of_numpy(extent, rng):
    for width in (1, 2, 3, 4, 5):
        for count in COUNTS:
            rows = draw(rng, count, width, *RANGES[extent], "none")
            found, inverse = host.unique_rows(rows)
            wanted, places = np.unique(rows, axis=0, return_inverse=True)
            assert (found.dtype, inverse.dtype) == (np.int32, np.int32)
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(inverse, places.reshape(-1))


def without_library(monkeypatch):
    monkeypatch.setattr(native_host, "available", lambda: False)


@needs_native
@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("far", [6, LIMIT - 2, 2**31 - 40])
def test_lookups_are_those_of_numpy(ndim, far, rng, monkeypatch):
    """Check centers so far out that 32 bits would wrap around, of either width."""
    rows = draw(rng, 800, 1 + ndim, -6, 6, "none")
    rows[::3, 1:] += (far - 6) * rng.choice([-1, 1], (len(rows[::3]), 1)).astype(np.int32)
    rows = np.unique(rows, axis=0)
    offsets = np.asarray(device.box_offsets((3,) * ndim, (1,) * ndim)) * 4
    extremes = np.full((2, 1 + ndim), 2**31 - 1)
    extremes[1] = -(2**31)
    extremes[:, 0] = 0
    centers = np.concatenate([rng.permutation(rows)[:200], rows[:200] + 1, extremes])
    wide = np.concatenate([centers, centers * [1] + [0, *(2**33,) * ndim]])
    rows_of_result = len(wide) + 3
    given = [(rows, centers.astype(np.int32), offsets), (rows, wide, offsets)]
    found = [host.find_neighbors(*arguments, rows_of_result) for arguments in given]
    without_library(monkeypatch)
    for arguments, ours in zip(given, found, strict=True):
        np.testing.assert_array_equal(ours, host.find_neighbors(*arguments, rows_of_result))


@needs_native
@pytest.mark.parametrize(
    ("width", "offset", "rows"), [(3, (0, 0, 1), 9), (4, (0, 1), 9), (4, (0, 0, 1), 7)]
)
def test_lookups_of_other_shapes_are_an_error(width, offset, rows):
    table, centers = np.zeros((5, 4), np.int32), np.zeros((8, width), np.int32)
    with pytest.raises(ValueError, match=f"{rows} rows for centers \\(8, {width}\\)"):
        host.find_neighbors(table, centers, np.asarray([offset]), rows)


@needs_native
def test_rows_are_found_as_by_xla(rng):
    by_xla = jax.jit(lambda *rows: lookup._search_rows(*rows)[0])
    for width in (2, 3, 4, 5):
        rows = np.unique(draw(rng, 900, width, -5, 5, "some"), axis=0)
        queries = np.concatenate([rng.permutation(rows), draw(rng, 500, width, -6, 6, "odd")])
        np.testing.assert_array_equal(device.find_rows(rows, queries), by_xla(rows, queries))
    assert device.find_rows(rows, queries[:0]).shape == (0,)


@needs_native
def test_lists_that_are_not_sorted_are_read_within_their_bounds(rng):
    rows = draw(rng, 5000, 4, -LIMIT, LIMIT, "odd")
    offsets = np.asarray(device.box_offsets((3, 3, 3), (1, 1, 1)))
    found = np.asarray(device.find_neighbors(rows, rows[::-1], np.ones(5000, bool), offsets))
    assert found.min() >= -1
    assert found.max() < 5000


@needs_native
@pytest.mark.parametrize(
    ("rows", "in_rows", "taps"),
    [(0, 5, 3), (5, 0, 3), (1, 1, 1), (900, 700, 27), (30_000, 40_000, 8), (20, 30, 0)],
)
def test_tables_read_backwards_and_tap_by_tap(rows, in_rows, taps, rng, monkeypatch):
    table = random_table(rng, in_rows, rows, taps, 0.3)
    backwards = invert_neighbors(table, in_rows)
    by_xla = jax.jit(lambda table, rows: _invert_neighbors(table, rows)[0], static_argnums=1)
    np.testing.assert_array_equal(backwards, by_xla(table, in_rows))
    pairs = list_pairs(table)
    if table.size:
        for ours, theirs in zip(pairs, jax.jit(_list_pairs)(table), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    on_host = geometry_host.invert_table(table, in_rows), *geometry_host.pair_lists(table)
    without_library(monkeypatch)
    in_numpy = geometry_host.invert_table(table, in_rows), *geometry_host.pair_lists(table)
    for wanted, *all_others in zip(in_numpy, on_host, (backwards, *pairs), strict=True):
        for found in all_others:
            assert found.dtype == np.int32
            np.testing.assert_array_equal(found, wanted)


@needs_native
def test_tables_with_rows_that_do_not_exist(rng):
    """XLA drops them, and lets the later of two outputs stay."""
    table = rng.integers(-(2**31), 2**31, (20_000, 5)).astype(np.int32)
    table[::2] = rng.integers(-2, 9001, (10_000, 5))
    table = np.where(table < -1, -1, table).astype(np.int32)
    by_xla = jax.jit(lambda table, rows: _invert_neighbors(table, rows)[0], static_argnums=1)
    found = invert_neighbors(table, 9000)
    np.testing.assert_array_equal(found, by_xla(table, 9000))
    np.testing.assert_array_equal(found, native_host.invert_table(table, 9000))


CELL_SIZES = (0.01, 0.1, 0.3, 1 / 3, 0.5, 1.0, 7.0, 1e-5, 1e-30, 1e30, 1e-44, 1e300)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 2.0**-126, -(2.0**-126), 1e300)
ENDS = (2.0**21, 2.0**22, 2.0**30 - 1, 2.0**30, 2.0**30 + 1)


def positions_to_place(rng, sizes, dtype):
    """``[N, D]``: at faces, in decimals, everywhere in the range and at its ends, and any bits."""
    axes = len(sizes)
    ends = np.array([*ENDS, *(-end for end in ENDS)])[:, None]
    parts = (
        rng.integers(-(2**22), 2**22, (500, axes)) * sizes,
        np.round(rng.normal(size=(500, axes)) * 100, 2),
        rng.integers(-(2**31), 2**31, (500, axes)) * sizes,
        rng.integers(0, 2**32, (500, axes), dtype=np.uint32).view(np.float32),
        np.array(SPECIAL)[:, None] * np.ones(axes),
        ends * np.ones(axes),
        ends * sizes,
    )
    x = np.concatenate(parts).astype(dtype)
    return np.concatenate([x, np.nextafter(x, dtype(np.inf)), np.nextafter(x, dtype(-np.inf))])


@needs_native
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", CELL_SIZES)
def test_cells_are_bit_for_bit_those_of_numpy(size, dtype, rng, monkeypatch):
    with np.errstate(all="ignore"):
        for axes in (1, 2, 3, 4):
            sizes = np.array([size, size * 1.5, size, size / 3][:axes])
            to = lattice(np.zeros((3, axes), np.float32), sizes.tolist(), (1,) * axes, dtype)
            x = positions_to_place(rng, sizes, dtype)
            given = (x, x[::-2], np.asfortranarray(x), x[rng.permutation(len(x))], x[:0], x[:1])
            found = [cells(local, to) for local in given]
            with monkeypatch.context() as m:
                without_library(m)
                wanted = [cells(local, to) for local in given]
            for ours, theirs in zip(found, wanted, strict=True):
                for a, b in zip(ours, theirs, strict=True):
                    assert a.dtype == b.dtype
                    np.testing.assert_array_equal(a, b)


@needs_native
def test_positions_that_the_library_does_not_take():
    """Other dtypes, byte orders and axes are for NumPy; a lattice of other axes is an error."""
    to = lattice(np.zeros((3, 2), np.float32), (0.1, 0.1), (1, 1), np.float32)
    x = np.array([[0.05, 0.15]])
    for dtype in (np.float16, ">f4", np.longdouble):
        assert not native_host.takes_positions(x.astype(dtype))
    assert not native_host.takes_positions(np.zeros((2, 5), np.float32))
    with pytest.raises(ValueError, match="lattice"):
        cells(np.zeros((2, 3), np.float32), to)
    np.testing.assert_array_equal(cells(x.astype(np.float32), to)[0], [[0, 1]])


@needs_native
def test_under_vmap_and_scan(rng):
    rows = np.stack([draw(rng, 300, 4, -4, 4, "some") for _ in range(3)])
    each = [device.unique_rows(scene, 64) for scene in rows]
    mapped = jax.vmap(lambda scene: device.unique_rows(scene, 64))(rows)
    _, scanned = jax.lax.scan(lambda c, scene: (c, device.unique_rows(scene, 64)), 0, rows)
    for wanted, *found in zip(zip(*each, strict=True), mapped, scanned, strict=True):
        for ours in found:
            np.testing.assert_array_equal(ours, np.stack(wanted))
    order = jax.vmap(lambda scene: device.sort_rows(scene)[1])(rows)
    np.testing.assert_array_equal(order, np.stack([lexicographic(scene) for scene in rows]))


@needs_native
def test_inside_shard_map(rng):
    mesh = jax.make_mesh((1,), ("scenes",))
    split = jax.sharding.PartitionSpec("scenes")
    rows = draw(rng, 300, 4, -4, 4, "some")
    given = jax.device_put(rows, jax.sharding.NamedSharding(mesh, split))

    def each(rows):
        found = device.unique_rows(rows, 64)
        return found.coords, found.inverse, device.sort_rows(rows)[1], found.count[None]

    wanted = device.unique_rows(rows, 64)
    found = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=split, out_specs=split))(given)
    expected = wanted.coords, wanted.inverse, lexicographic(rows), wanted.count[None]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@needs_native
@pytest.mark.parametrize("curve", device.CURVES)
def test_curves_are_sorted_by_it_too(curve, rng):
    rows = draw(rng, 3000, 4, -LIMIT, LIMIT, "some")
    order = np.asarray(device.sort_by_curve(rows, curve))
    words = [rows[:, 0], *rows[:, 1:].T]
    if curve != "lexicographic":
        keys = device.morton_keys(rows) if curve == "morton" else device.hilbert_keys(rows)
        words = [rows[:, 0], *np.asarray(keys).T]
    np.testing.assert_array_equal(order, np.lexsort(words[::-1]))


@needs_native
def test_wider_rows_take_xla(rng):
    rows = draw(rng, 50, 7, -2, 2, "some")
    np.testing.assert_array_equal(device.sort_rows(rows)[1], lexicographic(rows))
    assert "voxax_sort_rows" not in ordering.sort_rows.lower(rows).as_text()
    assert "voxax_sort_rows" in ordering.sort_rows.lower(rows[:, :5]).as_text()


@needs_native
def test_shapes_that_do_not_fit_are_an_error():
    def wrong(coords):
        shapes = [(9, 3), (), (), (7,)]
        results = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes]
        return library_call("voxax_unique_rows", results, coords)

    with pytest.raises(jax.errors.JaxRuntimeError, match="inverse \\[N\\]"):
        jax.block_until_ready(jax.jit(wrong)(jnp.zeros((8, 3), jnp.int32)))


def test_errors_of_the_host_functions(monkeypatch):
    class Library:
        def __getattr__(self, name):
            return lambda *arguments: result

    monkeypatch.setattr(native_host, "library", lambda: (Library(), None))
    result = -1
    with pytest.raises(MemoryError, match="unique_rows"):
        native_host.unique_rows(np.zeros((3, 4), np.int32))
    result = -2
    with pytest.raises(ValueError, match="32 bits"):
        native_host.unique_rows(np.zeros((3, 4), np.int32))
    monkeypatch.setattr(native_host, "library", lambda: (None, "not built"))
    with pytest.raises(RuntimeError, match="not built"):
        native_host.invert_table(np.zeros((3, 4), np.int32), 2)


FORKED = """
import multiprocessing, os, warnings
import jax, numpy as np
warnings.simplefilter("ignore")  # JAX warns of the fork: the children do not use it
import voxax as vx
from voxax._native import host as native
from voxax.coords import host
rows = np.random.default_rng(0).integers(-30, 30, (50_000, 4)).astype(np.int32)
jax.block_until_ready(jax.jit(lambda r: vx.coords.unique_rows(r, 50_000))(rows))

def work(seed):
    assert native.available()
    unique, inverse = host.unique_rows(rows)
    found = host.find_neighbors(unique, unique, np.asarray([[0, 0, -1], [0, 0, 1]]))
    return int(inverse.sum()), int(found.sum())

with multiprocessing.get_context("fork").Pool(2) as pool:
    results = pool.map(work, range(4))
print(len(set(results)) == 1 and results[0] == work(0))
"""


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_processes_of_a_program_that_ran_it():
    result = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=300
    )
    assert result.stdout == "True\n", result.stderr


def test_switched_off_numpy_does_without():
    script = (
        "import numpy as np\n"
        "from voxax._native import host as native\n"
        "from voxax.coords import host\n"
        "rows, inverse = host.unique_rows(np.asarray([[0, 2], [0, -1], [0, 2]], np.int32))\n"
        "print(native.available(), rows.tolist(), inverse.tolist())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "VOXAX_NATIVE": "off"},
    )
    assert result.stdout == "False [[0, -1], [0, 2]] [1, 0, 1]\n", result.stderr
