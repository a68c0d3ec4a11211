"""Maps of cells read backwards by a search of cells, as programs for TPUs do: as by inverting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.geometry import kernel_maps


def voxels(rng, axes, number, capacity, low=-40, high=40):
    coords = rng.integers(low, high, (number, axes))
    scene = rng.integers(0, 2, (number, 1))
    coords = np.unique(np.concatenate([scene, coords], 1), axis=0).astype(np.int32)
    features = np.ones((len(coords), 1), np.float32)
    return vx.Voxels.from_coords(coords, features, batch_size=2, capacity=capacity)


CASES = [
    pytest.param((2, 2, 2), 3000, 4096, None, id="cubes"),
    pytest.param((1, 2, 4), 3000, 3500, None, id="boxes"),
    pytest.param((3, 3), 700, 800, None, id="squares"),
    pytest.param((2,), 60, 128, None, id="one axis"),
    pytest.param((2, 2, 2), 3000, 4096, 700, id="cells were dropped"),
    pytest.param((2, 2, 2), 1, 8, None, id="one voxel"),
    pytest.param((2, 2, 2), 0, 8, None, id="no voxel"),
]


@pytest.mark.parametrize(("stride", "number", "capacity", "cells"), CASES)
def test_cells_are_found_where_the_table_says(stride, number, capacity, cells, rng):
    fine = voxels(rng, len(stride), number, capacity)

    @jax.jit
    def both(fine):
        found = vx.kernel_map(fine, stride, stride, capacity=cells)
        assert found.memo.get(kernel_maps._CELLS) is not None
        rows, coarse = found.in_geometry.coords, found.out_geometry.coords
        by_tiles = kernel_maps._cells_by_tiles(found.neighbors, rows, coarse, stride)[0]
        inverted = kernel_maps.invert_neighbors(found.neighbors, found.in_capacity)
        return by_tiles, inverted, found.view("transposed_neighbors")

    by_tiles, inverted, view = both(fine)
    assert by_tiles.dtype == inverted.dtype == jnp.int32
    np.testing.assert_array_equal(by_tiles, inverted)
    np.testing.assert_array_equal(view, inverted)
    assert (np.asarray(inverted) >= 0).any() == bool(number)


@pytest.mark.parametrize("size", [3, 2])
def test_other_tables_are_read_backwards(size, rng):
    """Boxes that overlap, and pairs that were taken out: cells do not say what the table holds."""
    fine = voxels(rng, 3, 500, 512)

    @jax.jit
    def some(fine):
        found = vx.kernel_map(fine, size, 2)
        if size == 2:
            found = found.restrict(jnp.arange(8)[None] % 2 == 0)
        assert found.memo.get(kernel_maps._CELLS) is None
        inverted = kernel_maps.invert_neighbors(found.neighbors, found.in_capacity)
        return found.view("transposed_neighbors"), inverted

    np.testing.assert_array_equal(*some(fine))
