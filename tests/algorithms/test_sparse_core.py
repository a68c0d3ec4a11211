"""Gathers of SparseCores: what is refused, the numbers around them, and the kernel simulated."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import problems
from oracle import relative_error
from voxax.algorithms.explicit_gemm import sparse_core, xla
from voxax.algorithms.explicit_gemm.sparse_core_kernel import Gather, gather
from voxax.algorithms.rows import table_name
from voxax.hardware import HardwareInfo
from voxax.tuning.space import space_of

CHIP = HardwareInfo(
    platform="tpu",
    device_kind="some",
    sparse_cores=2,
    sparse_subcores=16,
    sparse_lanes=16,
    sparse_memory_bytes=2**18,
    memory_bytes=2**34,
)
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}


def make_problem(product, rows, out_rows, taps, c_in, c_out, dtype, **changes):
    problem = problems.make_problem(
        product, "dense", rows, out_rows, taps, c_in, c_out, 1, dtype, "highest", False, "tpu"
    )  # fmt: skip
    return problems.changed(problem, **changes)


def run(problem, a, b, table, block=128):
    """One of the products over ``table``, which is that of the side that is written."""
    chosen = (*sparse_core.parameters(block, CHIP), ("interpret", 1))
    name = table_name(problem)
    apply = jax.jit(lambda a, b, table: sparse_core.apply(problem, chosen, a, b, {name: table}))
    return apply(a, b, jnp.asarray(table))


def draw(rng, table, rows, c_in, c_out, dtype):
    """Rows to gather, weights, and rows on the side of the table; NaN where no pair touches."""
    used = np.isin(np.arange(rows), table)
    x = np.where(used[:, None], rng.normal(size=(rows, c_in)), np.nan)
    y = np.where((table >= 0).any(1)[:, None], rng.normal(size=(len(table), c_out)), np.nan)
    w = rng.normal(size=(table.shape[1], c_in, c_out))
    return tuple(jnp.asarray(value, dtype) for value in (x, w, y))


# Fewer channels than a row has at least; two taps side by side; rows of several pieces.
@pytest.mark.parametrize(
    ("dtype", "taps", "c_in", "c_out"),
    [
        ("float32", 27, 3, 4),
        ("bfloat16", 5, 101, 7),
        pytest.param("float32", 2, 130, 5, marks=pytest.mark.slow),
        pytest.param("bfloat16", 3, 300, 9, marks=pytest.mark.slow),
    ],
)
def test_products_are_sums_over_pairs(dtype, taps, c_in, c_out):
    """Three blocks of rows, the last one partly full, against loops in float64."""
    rng = np.random.default_rng(0)
    rows, out_rows = 200, 290
    table = np.where(
        rng.random((out_rows, taps)) < 0.3, rng.integers(0, rows, (out_rows, taps)), -1
    )
    table = table.astype(np.int32)
    x, w, dy = draw(rng, table, rows, c_in, c_out, dtype)
    wide = [np.asarray(value).astype(np.float64) for value in (x, w, dy)]
    y, dw = np.zeros((out_rows, c_out)), np.zeros(w.shape)
    for out, tap in zip(*np.nonzero(table >= 0), strict=True):
        y[out] += wide[0][table[out, tap]] @ wide[1][tap]
        dw[tap] += np.outer(wide[0][table[out, tap]], wide[2][out])
    sizes = rows, out_rows, taps, c_in, c_out, dtype
    found = run(make_problem("forward", *sizes), x, w, table)
    assert found.dtype == dtype
    assert relative_error(found, y) < TOLERANCE[dtype]
    assert relative_error(run(make_problem("wgrad", *sizes), x, dy, table), dw) < TOLERANCE[dtype]
    # dgrad is forward over the transposed table, with transposed weights.
    back = make_problem("dgrad", out_rows, rows, taps, c_out, c_in, dtype)
    found = run(back, x, jnp.swapaxes(w, 1, 2), table)
    assert relative_error(found, y) < TOLERANCE[dtype]


def test_missing_neighbours_are_exact_zeros_and_nan_stays_with_its_neighbours():
    table = np.full((130, 4), -1, np.int32)
    table[3, 1], table[7, 2], table[129, 0] = 0, 1, 2
    x = jnp.asarray([[1.0], [np.nan], [2.0]], "float32")
    w = jnp.ones((4, 1, 2), "float32")
    found = np.asarray(run(make_problem("forward", 3, 130, 4, 1, 2, "float32"), x, w, table))
    expected = np.zeros((130, 2))
    expected[3], expected[7], expected[129] = 1, np.nan, 2
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize(("rows", "out_rows"), [(0, 4), (4, 0), (0, 0)])
def test_no_rows_on_either_side(product, rows, out_rows):
    problem = make_problem(product, rows, out_rows, 3, 2, 5, "float32")
    x, dy = jnp.zeros((rows, 2)), jnp.zeros((out_rows, 5))
    w = jnp.ones((3, 2, 5))
    a, b = {"forward": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[product]
    table = np.full((rows if product == "dgrad" else out_rows, 3), -1, np.int32)
    assert not np.asarray(run(problem, a, b, table)).any()


@pytest.mark.parametrize(
    ("chip", "changes", "reason"),
    [
        ({"platform": "gpu"}, {"platform": "gpu"}, "the platform is gpu"),
        ({"sparse_cores": 0, "model": "TPU of old"}, {}, "TPU of old has no SparseCores"),
        ({"sparse_cores": None}, {}, "some has no SparseCores"),
        ({"sparse_memory_bytes": None}, {}, "unknown how many subcores"),
        ({"sparse_memory_bytes": 1000}, {}, r"needs 33792 bytes .* it has 1000"),
        ({"sparse_lanes": 64}, {}, "32 words are no multiple of 64 lanes"),
        ({}, {"kind": "grouped", "groups": 2}, "not grouped ones"),
        ({}, {"dtype": "float16"}, "gather float32 and bfloat16, got float16"),
        ({}, {"in_capacity": 2**30, "in_channels": 1024}, "exceed 32-bit indices"),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(chip, changes, reason):
    sizes = make_problem("forward", 1000, 1000, 27, 64, 64, "bfloat16")
    assert sparse_core.supports(sizes, CHIP) is None
    problem, chip = problems.changed(sizes, **changes), dataclasses.replace(CHIP, **chip)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(sparse_core.supports(problem, chip))
    assert sparse_core.space(problem, chip) == ()
    found = space_of(problem, ("explicit_gemm",), chip).candidates
    assert "sparse_core" not in str([candidate.parameters for candidate in found])


def test_it_is_measured_but_never_taken_unmeasured():
    problem = make_problem("forward", 10**5, 10**5, 27, 64, 64, "bfloat16")
    space = space_of(problem, ("explicit_gemm",), CHIP)
    found = [dict(candidate.parameters) for candidate in space.candidates]
    blocks = [p["block_rows"] for p in found if p["formulation"] == "sparse_core"]
    assert blocks == [8192, 32768]
    assert [candidate.parameters for candidate in space.heuristics] == [xla.IM2COL]
    # Blocks that are longer than the map, or larger than the memory, are left out.
    for changes in ({"out_capacity": 1000}, {"in_channels": 2048}):
        (only,) = sparse_core.space(problems.changed(problem, **changes), CHIP)
        assert dict(only)["block_rows"] == 8192


@pytest.mark.parametrize("words", [64, pytest.param(128, marks=pytest.mark.slow)])
def test_the_kernel_simulated(words):
    """One subcore that copies row by row: the interpreter knows no lists of indices."""
    rng = np.random.default_rng(1)
    shape = 2 * 128 // words, 16
    x = jnp.asarray(rng.integers(-(2**31), 2**31, (9, words)), jnp.int32)
    index = np.where(rng.random(shape) < 0.5, rng.integers(0, 9, shape), -1)
    index = jnp.asarray(index, jnp.int32)
    simulated = pltpu.InterpretParams(uninitialized_memory="nan")
    device = AbstractDevice(device_kind="TPU v6e", num_cores=1, platform="tpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        found = gather(Gather(2, 16, words, 8, simulated), x, index)
    expected = gather(Gather(2, 16, words, 8, 1), x, index)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
