"""Cutting a scan into training and test parts that do not touch."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from voxax.errors import InputError
from voxax.io.split import split_blocks, split_sectors


def field(count=20_000, seed=0, shift=(0.0, 0.0, 0.0), extent=40.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    positions = rng.uniform(-extent / 2, extent / 2, (count, 3)) * [1, 1, 0.01]
    return positions + np.array(shift)


def gap(positions, train, test) -> float:
    """The smallest distance in the plan between a training and a test point."""
    return float(cKDTree(positions[train, :2]).query(positions[test, :2])[0].min())


@pytest.mark.parametrize("shift", [(0.0, 0.0, 0.0), (84_000.0, 447_000.0, 5.0)])
@pytest.mark.parametrize(("size", "buffer"), [(10.0, 1.0), (5.0, 0.5), (7.3, 0.0)])
def test_blocks_are_disjoint_and_apart(size, buffer, shift):
    positions = field(shift=shift)
    train, test = split_blocks(positions, size, buffer)
    assert train.dtype == test.dtype == bool
    assert train.any()
    assert test.any()
    assert not (train & test).any()
    assert gap(positions, train, test) >= 2 * buffer - 1e-6


def test_blocks_alternate_like_a_chessboard():
    centers = np.array([[x + 5.0, y + 5.0, 0.0] for x in (0, 10, 20) for y in (0, 10, 20)])
    corner = np.zeros((1, 3))  # fixes where the first block begins
    positions = np.concatenate([corner, centers])
    train, test = split_blocks(positions, 10.0, 1.0)
    assert train[1:].tolist() == [True, False, True, False, True, False, True, False, True]
    assert test[1:].tolist() == [not t for t in train[1:]]
    assert not train[0]  # on an edge: in the buffer
    assert not test[0]


def test_blocks_keep_all_but_the_buffer():
    positions = field()
    train, test = split_blocks(positions, 10.0, 1.0)
    assert (train | test).mean() == pytest.approx(0.64, abs=0.02)
    whole = split_blocks(positions, 10.0, 0.0)
    assert (whole[0] | whole[1]).all()


def test_offset_swaps_the_parts():
    positions = field()
    for split in (split_blocks, split_sectors):
        train, test = split(positions, offset=0)
        swapped = split(positions, offset=1)
        np.testing.assert_array_equal(train, swapped[1])
        np.testing.assert_array_equal(test, swapped[0])


@pytest.mark.parametrize("sectors", [2, 4, 12])
@pytest.mark.parametrize("buffer", [0.0, 0.5, 2.0])
def test_sectors_are_disjoint_and_apart(sectors, buffer):
    positions = field()
    train, test = split_sectors(positions, sectors, buffer)
    assert train.any()
    assert test.any()
    assert not (train & test).any()
    assert gap(positions, train, test) >= 2 * buffer - 1e-6


def test_sectors_hold_equal_angles():
    positions = field()
    train, test = split_sectors(positions, 8, 0.0)
    assert (train | test).all()
    assert train.mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("split", [split_blocks, split_sectors])
def test_nothing_splits_into_nothing(split):
    train, test = split(np.zeros((0, 3)))
    assert train.shape == test.shape == (0,)
    assert train.dtype == test.dtype == bool


def test_senseless_sizes_are_refused():
    positions = field(10)
    with pytest.raises(InputError, match="twice buffer"):
        split_blocks(positions, 2.0, 1.0)
    with pytest.raises(InputError, match="twice buffer"):
        split_blocks(positions, 2.0, -0.1)
    for sectors in (0, 3):
        with pytest.raises(InputError, match="even"):
            split_sectors(positions, sectors)
