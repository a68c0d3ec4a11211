"""Morton and Hilbert keys, and rows in their order."""

import itertools

import numpy as np
import pytest

from oracle import PAD
from oracle import coordinates as loops
from voxax.coords import COORD_LIMIT, hilbert_keys, morton_keys, sort_by_curve

KEYS = {"morton": morton_keys, "hilbert": hilbert_keys}
NUMBER = 64


def far_rows(ndim):
    """Rows all over the coordinate range, its corners and their neighbors among them."""
    ends = [-COORD_LIMIT, -1, 0, COORD_LIMIT - 1]
    corners = list(itertools.product(*[ends] * ndim))[: NUMBER // 2]
    free = NUMBER - len(corners)
    inner = np.random.default_rng(0).integers(-COORD_LIMIT, COORD_LIMIT, (free, ndim))
    rows = np.concatenate([corners, inner])
    return np.insert(rows, 0, 0, axis=1).astype(np.int32)


def as_numbers(keys):
    """Words as Python integers, the first word highest."""
    return [sum(int(w) << 32 * i for i, w in enumerate(reversed(row))) for row in np.asarray(keys)]


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("curve", KEYS)
def test_keys_over_the_whole_range(curve, ndim):
    rows = far_rows(ndim)
    keys = KEYS[curve](rows)
    assert keys.shape == (NUMBER, ndim)
    assert keys.dtype == np.uint32
    assert as_numbers(keys) == [loops.curve_key(row[1:], curve) for row in rows.tolist()]


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
def test_consecutive_cells_of_the_hilbert_curve_are_neighbors(ndim):
    """On any aligned cube whose edge is a power of two."""
    edge = {1: 64, 2: 8, 3: 4, 4: 2}[ndim]
    cube = np.indices((edge,) * ndim).reshape(ndim, -1).T + np.array([-8, 72, -(2**29), 16])[:ndim]
    # One shape for all dimensions that share it.
    rows = np.full((NUMBER, 1 + ndim), PAD, np.int32)
    rows[: len(cube)] = np.insert(cube, 0, 0, axis=1)[::-1]
    path = rows[np.asarray(sort_by_curve(rows, "hilbert"))][: len(cube), 1:]
    assert (np.abs(np.diff(path, axis=0)).sum(1) == 1).all()


def test_the_reference_gives_the_number_in_the_paper():
    assert loops.interleave(loops.hilbert_transpose((5, 10, 20), 5), 5) == 7865


@pytest.mark.parametrize("curve", ["lexicographic", *KEYS])
def test_scenes_first_padding_last_equal_rows_as_they_were(curve):
    rows = far_rows(2)[np.random.default_rng(1).integers(0, 40, NUMBER)]
    rows[:, 0] = np.arange(NUMBER) % 3
    rows[5::7] = PAD
    order = sort_by_curve(rows, curve)

    def place(index):
        scene, *cell = rows[index].tolist()
        padding = scene == PAD
        return (padding, scene, 0 if padding else loops.curve_key(cell, curve))

    np.testing.assert_array_equal(order, sorted(range(NUMBER), key=place))
