"""Lists of items on TPUs: the lists against the table, and products in interpret mode."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from jax.experimental.pallas import tpu as pltpu
from test_tpu_windows import CHIP, TOLERANCE, both, problem_of, with_an_empty_scene

import problems
import voxax as vx
from interpreted import RACE, simulated
from oracle import relative_error
from samples import make_voxels, slow_unless
from voxax.kernels.explicit_gemm import xla
from voxax.kernels.implicit_gemm import items, items_kernel, tpu, tpu_items, tpu_items_kernel
from voxax.tuning.space import space_of

LISTS = (tpu_items.BODY,)
INTERPRETED = (*LISTS, ("interpret", 1))
FEW = 2.8

CLOUDS = {
    "scenes": with_an_empty_scene,
    "empty": lambda: random_cube(3)[:0],
    "one": lambda: random_cube(3)[:1],
}
RELATIONS = {
    "submanifold": {"kernel_size": (1, 3, 3)},
    "strided": {"kernel_size": 2, "stride": 2},
    "wide": {"kernel_size": (1, 5, 1), "dilation": 3},
}


def table_of(lists, rows, taps):
    """The table that lists stand for, and the taps of each piece's items."""
    shape, size = items.Shape.of(rows, taps), items.GROUP
    table = np.full((shape.blocks * shape.block_rows, taps), -1, np.int64)
    for block, array in enumerate(lists):
        used, own = array[-1, :2]
        parts = array[: 3 * shape.list_rows].reshape(3, shape.list_rows, -1)[:, :used]
        begins, groups, words = parts.reshape(3, -1)
        tap_of = array[3 * shape.list_rows :].reshape(-1)[: len(words) // items.PIECE]
        for item in np.flatnonzero(words):
            for j in range(size):
                code = (int(words[item]) >> (4 * j)) & 15
                if code >= 8:
                    place = block * shape.block_rows + groups[item] + j, tap_of[item // items.PIECE]
                    assert table[place] == -1, "two items of one neighbor"
                    table[place] = begins[item] + code - 8
        for piece in np.where(words == 0, -1 - np.arange(len(words)), groups).reshape(-1, 16):
            assert len(set(piece)) == len(piece), "two items of a group in one piece"
        rows_of_block = block * shape.block_rows + np.arange(own * size)
        assert (table[rows_of_block, taps // 2] == -1).all()
        table[rows_of_block, taps // 2] = rows_of_block
    return table[:rows]


def random_table(rows, taps, inputs, share=0.3):
    rng = np.random.default_rng(0)
    table = rng.integers(0, inputs, (rows, taps)).astype(np.int32)
    return np.where(rng.random(table.shape) < share, table, np.int32(-1))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 1024 rows, so that few rows make several."""
    monkeypatch.setattr(items, "_BLOCK", 1024)


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_lists_hold_the_table(cloud, relation):
    kmap = vx.kernel_map(make_voxels(CLOUDS[cloud]()), **RELATIONS[relation])
    table = np.asarray(kmap.view("neighbors"))
    lists = items.on_host(table, kmap.spec)
    assert lists.shape == items.Shape.of(*table.shape).array
    np.testing.assert_array_equal(table_of(lists, *table.shape), table)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("shape", [(2500, 3, 4000), (1024, 1, 9), (0, 3, 5)], ids=str)
def test_lists_hold_any_table(shape):
    table = random_table(*shape)
    lists = items.on_host(table, None)
    np.testing.assert_array_equal(table_of(lists, *table.shape), table)


@pytest.mark.usefixtures("small_blocks")
def test_the_kernel_lists_what_the_host_lists():
    table = random_table(1500, 9, 1500)
    table[:1000, 4] = np.arange(1000)
    table[1000:, 4] = -1
    found = np.asarray(items_kernel.find_items(jnp.asarray(table), interpret=True))
    np.testing.assert_array_equal(table_of(found, *table.shape), table)
    expected = items.on_host(table, None)
    lists = [items.defined(array, *table.shape) for array in (found, expected)]
    np.testing.assert_array_equal(*lists)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("cloud", "relation", "dtype", "channels"),
    [
        slow_unless(fast, cloud, relation, dtype, channels)
        for fast, cloud, relation, dtype, channels in (
            (True, "scenes", "submanifold", "bfloat16", (96, 40)),
            (True, "one", "submanifold", "bfloat16", (256, 3)),
            (False, "scenes", "wide", "bfloat16", (200, 130)),
            (False, "scenes", "strided", "float32", (65, 64)),
            (False, "scenes", "submanifold", "float32", (128, 200)),
            (False, "empty", "submanifold", "float32", (40, 8)),
        )
    ],
)
def test_products_are_those_of_explicit_gemm(cloud, relation, dtype, channels):
    """Padding rows hold NaN."""
    kmap = vx.kernel_map(make_voxels(CLOUDS[cloud]()), **RELATIONS[relation])
    actual, expected = both(kmap, "forward", *channels, dtype, INTERPRETED)
    assert np.isfinite(actual).all()
    assert relative_error(actual, expected) < TOLERANCE[dtype]


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_integers_are_exact():
    kmap = vx.kernel_map(make_voxels(with_an_empty_scene()), **RELATIONS["submanifold"])
    problem = problem_of("forward", kmap, (200, 16), "int8")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in problem.operand_shapes)
    views = problems.views_of(kmap, tpu.WINDOWED, problem, INTERPRETED)
    found = tpu.apply(problem, INTERPRETED, jnp.asarray(a), jnp.asarray(b), views)
    assert found.dtype == jnp.int32
    table = np.asarray(kmap.view("neighbors"))
    rows = np.where(table[..., None] >= 0, a.astype(np.int64)[table], 0)
    np.testing.assert_array_equal(found, np.einsum("mkc,kcd->md", rows, b.astype(np.int64)))


def test_one_pass_of_float32_is_a_product_of_bfloat16():
    kmap = vx.kernel_map(make_voxels(random_cube(60)), kernel_size=(1, 1, 3))
    chosen = problem_of("forward", kmap, (33, 8), "float32", precision="default")
    a, b = problems.operands_of(chosen, kmap)
    views = problems.views_of(kmap, tpu.WINDOWED, chosen, INTERPRETED)
    found = tpu.apply(chosen, INTERPRETED, a, b, views)
    views = problems.views_of(kmap, xla.EXPLICIT_GEMM, chosen, xla.IM2COL)
    expected = xla.EXPLICIT_GEMM.apply(
        chosen, xla.IM2COL, *(v.astype(jnp.bfloat16) for v in (a, b)), views
    )
    assert found.dtype == jnp.float32
    assert relative_error(found, np.asarray(expected, np.float32)) < TOLERANCE["bfloat16"]


def simulate(monkeypatch, share=0.3, **changes):
    """The result and im2col's by the interpreter that simulates memories and copies.

    Chunks are of few passes: with a ``share`` of 0.8 of all neighbors there are two.
    """
    jax.clear_caches()  # a trace of the kernel without the fault may be there
    for module in (items, tpu_items, tpu_items_kernel):
        monkeypatch.setattr(module, "CHUNK", items.PIECE)
    monkeypatch.setattr(items, "_BLOCK", 1024)
    kmap = vx.kernel_map(make_voxels(random_cube(60)), kernel_size=(1, 1, 3))
    table = random_table(1024, 3, 1024, share)
    view = np.asarray(items.on_host(table, None))
    assert (view[0, -1, 0] > items.CHUNK) == (share > 0.5)
    monkeypatch.setattr(vx.KernelMap, "view", lambda *_: jnp.asarray(view))
    problem = problem_of("forward", kmap, (33, 8), "bfloat16")
    layer = dataclasses.replace(problem.layer, in_capacity=1024, out_capacity=1024)
    problem = dataclasses.replace(problem, layer=layer)
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype("float32") for shape in problem.operand_shapes)
    expected = np.einsum("mkc,kcd->md", np.where(table[..., None] >= 0, a[table], 0), b)
    with simulated(**changes):
        operands_of = (jnp.asarray(values, jnp.bfloat16) for values in (a, b))
        found = tpu.apply(problem, LISTS, *operands_of, {"items": jnp.asarray(view)})
    return np.asarray(found, np.float32), expected


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "share"), [("on_wait", 0.8), ("eager", 0.3)])
def test_the_kernel_neither_races_nor_reads_what_nobody_wrote(mode, share, monkeypatch, capsys):
    actual, expected = simulate(monkeypatch, share, dma_execution_mode=mode)
    assert RACE not in capsys.readouterr().out
    assert relative_error(actual, expected) < TOLERANCE["bfloat16"]


def no_wait(lists):
    return {"wait": lambda self, chunk: None}


def early_copy(lists):
    """The next chunk comes over the one that is read."""

    def bring(self, chunk):
        for copy in lists._copies(self, chunk) + lists._copies(self, chunk + 1):
            copy.start()

    return {"bring": bring}


def other_place(lists):
    """Rows of a chunk are read where the next one will lie."""
    row = lists.row
    return {"row": lambda self, of, number: row(self, of, number + items.CHUNK)}


def one_place(lists):
    """All chunks come to the same place."""
    copies, row, tap = lists._copies, lists.row, lists.tap

    def to_first(self, chunk):
        places = (self.begins, self.groups, self.words, self.taps)
        return [
            pltpu.make_async_copy(copy.src_ref, place.at[0], self.arrived.at[0])
            for copy, place in zip(copies(self, chunk), places, strict=True)
        ]

    return {
        "_copies": to_first,
        "row": lambda self, of, number: row(self, of, number % items.CHUNK),
        "tap": lambda self, number, piece: tap(self, number % items.CHUNK, piece),
    }


def beyond_the_rows(lists):
    moved = tpu_items_kernel._moved
    return {"_moved": lambda rows, begin, code: moved(rows, begin + rows.shape[0], code)}


def sums_not_cleared(lists):
    return {"_fill": lambda ref: None}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "mode", "share"),
    [
        (no_wait, "on_wait", 0.3),
        (early_copy, "eager", 0.8),
        (other_place, "eager", 0.3),
        (one_place, "eager", 0.8),
        (beyond_the_rows, "eager", 0.3),
        (sums_not_cleared, "eager", 0.3),
    ],
)
def test_faults_of_the_kernel_are_found(fault, mode, share, monkeypatch, capsys):
    lists = tpu_items_kernel._Lists
    for name, planted in fault(lists).items():
        place = lists if hasattr(lists, name) else tpu_items_kernel
        monkeypatch.setattr(place, name, planted)
    try:
        actual, expected = simulate(monkeypatch, share, dma_execution_mode=mode)
    except jax.errors.JaxRuntimeError as error:
        assert RACE in str(error) or "Out-of-bounds" in str(error)  # noqa: PT017
    else:
        raced = RACE in capsys.readouterr().out
        assert raced or not relative_error(actual, expected) < TOLERANCE["bfloat16"]


def layer_problem(product="forward", density=FEW, channels=(128, 128), dtype="bfloat16", **more):
    of = ("dense", 90_000, 90_000, 27, *channels, 1, dtype, "highest", True, "tpu")
    spec = vx.geometry.KernelSpec.make(3, 3)
    return problems.make_problem(product, *of, spec, density=density, **more)


def bodies(problem, hardware=CHIP):
    return [dict(chosen)["body"] for chosen in tpu.space(problem, hardware)]


def test_lists_are_chosen_by_the_neighbors_of_a_row():
    assert bodies(layer_problem())[0] == "items"
    # More neighbors, or fewer channels: a candidate to measure.
    assert bodies(layer_problem(density=5.7))[-1] == "items"
    assert bodies(layer_problem(channels=(64, 64)))[-1] == "items"
    space = space_of(layer_problem(), ("implicit_gemm", "explicit_gemm"), CHIP)
    assert dict(space.heuristics[0].parameters) == dict(LISTS)


@pytest.mark.parametrize(
    "problem",
    [
        layer_problem("dgrad"),
        layer_problem("wgrad"),
        layer_problem(density=None),
        layer_problem(density=8.0),
        layer_problem(channels=(16, 16)),
        layer_problem(channels=(257, 16)),
        layer_problem(channels=(129, 16), dtype="float32"),
        layer_problem(channels=(128, 4096)),
    ],
    ids=lambda problem: f"{problem.product} {problem.layer.density} {problem.in_channels}",
)
def test_other_problems_take_windows(problem):
    assert "items" not in bodies(problem)


@pytest.mark.parametrize("changes", [{"cores": 2}, {"vmem_bytes": 2**24}, {"smem_bytes": 2**18}])
def test_other_chips_take_windows(changes):
    assert "items" not in bodies(layer_problem(), dataclasses.replace(CHIP, **changes))
