"""Distinct cells of sorted rows: searched, as GPUs find them, and from a sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracle import PAD
from voxax.coords import COORD_LIMIT, cells, coarsen, unique_cells, unique_rows

ROWS = 90
STRIDES = [(2,), (5,), (3, 2), (2, 2, 2), (1, 4, 3), (2, 1, 1), (1, 1, 2), (2, 1, 2, 3)]


def cloud(ndim, limit, batches=(0, 1, 2), seed=0, number=45):
    """Distinct rows in canonical order, half of them close to others, behind them padding."""
    rng = np.random.default_rng(seed)
    far = rng.integers(-limit, limit, (number, 1 + ndim))
    near = far + rng.integers(0, 3, far.shape)
    rows = np.concatenate([far, np.clip(near, -limit, limit - 1)])
    rows[:, 0] = rng.choice(batches, len(rows))
    return padded(np.unique(rows, axis=0)[: ROWS - 3])


def padded(rows):
    table = np.full((ROWS, rows.shape[1]), PAD, np.int32)
    table[: len(rows)] = rows
    return table


def by_numpy(rows, stride, capacity):
    valid = rows[:, 0] != PAD
    coarse = np.floor_divide(rows[valid].astype(np.int64), (1, *stride))
    distinct, place = np.unique(coarse, axis=0, return_inverse=True)
    out = np.full((capacity, rows.shape[1]), PAD, np.int64)
    out[: len(distinct)] = distinct[:capacity]
    inverse = np.full(len(rows), -1)
    inverse[valid] = np.where(place.reshape(-1) < capacity, place.reshape(-1), -1)
    count = min(len(distinct), capacity)
    return out, count, len(distinct) - count, inverse


def check(rows, stride, capacity, x64=False):
    expected = by_numpy(rows, stride, capacity)
    with jax.disable_jit(), jax.enable_x64(x64):  # XLA compiles every size and stride for seconds
        found = cells._searched_cells(jnp.asarray(rows), stride, capacity)
    for name, value, wanted in zip(found._fields, found, expected, strict=True):
        assert value.dtype == jnp.int32, name
        np.testing.assert_array_equal(value, wanted, err_msg=name)
    for name, value, wanted in zip(
        found._fields, unique_cells(rows, stride, capacity), expected, strict=True
    ):
        np.testing.assert_array_equal(value, wanted, err_msg=name)


@pytest.mark.parametrize("limit", [3, 6, COORD_LIMIT])
@pytest.mark.parametrize("stride", STRIDES)
def test_cells_that_are_searched(stride, limit):
    """Dense rows, scattered ones, and those of the whole range, negative ones among them."""
    check(cloud(len(stride), limit), stride, ROWS)


@pytest.mark.parametrize("stride", [(5,), (2, 1, 2, 3)])
def test_cells_beside_64_bit_integers(stride):
    check(cloud(len(stride), 6), stride, ROWS, x64=True)


@pytest.mark.parametrize("capacity", [1, 7])
@pytest.mark.parametrize("stride", [(3, 2), (2, 2, 2)])
def test_cells_that_do_not_fit_are_counted(stride, capacity):
    check(cloud(len(stride), 6), stride, capacity)


@pytest.mark.parametrize("name", ["empty", "one", "last", "empty scene", "flat", "full"])
def test_cells_of_few_rows(name):
    limit = COORD_LIMIT - 1
    rows = {
        "empty": np.zeros((0, 4)),
        "one": np.array([[0, -3, 2, 5]]),
        "last": np.array([[0, -limit - 1, -limit - 1, -limit - 1], [2, limit, limit, limit]]),
        "empty scene": cloud(3, 3, batches=(0, 2))[:70],
        "flat": np.array([[0, x, y, -1] for x in range(-7, 7) for y in range(3)]),
        "full": np.array([[0, x, y, z] for x in range(5) for y in range(3) for z in range(6)]),
    }[name]
    check(padded(rows), (2, 2, 2), ROWS)


def test_random_clouds():
    for seed in range(12):
        rng = np.random.default_rng(seed)
        limit = int(rng.choice([2, 4, 9, 1000]))
        batches = tuple(rng.choice(4, 2, replace=False))
        check(cloud(3, limit, batches, seed, number=int(rng.integers(1, 46))), (2, 2, 2), 60)


def test_cells_equal_distinct_coarse_rows_under_vmap():
    """The library's function, mapped, against that of rows in any order."""
    tables = np.stack([cloud(3, 4, seed=seed) for seed in range(3)])
    found = jax.vmap(lambda rows: unique_cells(rows, (2, 2, 2), ROWS))(tables)
    for scene, rows in enumerate(tables):
        expected = unique_rows(coarsen(jnp.asarray(rows), (2, 2, 2)), ROWS)
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value[scene], wanted)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    ("stride", "sorts"),
    [((3, 3, 3), 0), ((1, 1, 32), 0), ((1, 1, 33), 1), ((4, 4, 4), 1), ((2, 2, 64), 1)],
)
def test_of_large_strides_gpus_sort(stride, sorts, x64):
    """More searches take longer than a sort."""
    rows = jax.ShapeDtypeStruct((ROWS, 4), jnp.int32)
    with jax.enable_x64(x64):
        traced = jax.jit(lambda rows: unique_cells(rows, stride, ROWS)).trace(rows)
        for platform in ("cuda", "rocm"):
            text = traced.lower(lowering_platforms=(platform,)).as_text()
            assert text.count("stablehlo.sort") == sorts
