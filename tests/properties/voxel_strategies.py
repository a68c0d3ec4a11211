"""Strategies of hypothesis. All drawings have the same static shapes, and so share programs."""

import numpy as np
from hypothesis import strategies as st

import voxax as vx

CAPACITY = 32
BATCH_SIZE = 2
CHANNELS = 3


def rows_of_voxels(ndim=2, reach=4, max_size=CAPACITY):
    """Distinct rows ``int32[N, 1 + D]``, N from 0, in any order."""
    axes = [st.integers(0, BATCH_SIZE - 1), *[st.integers(-reach, reach)] * ndim]
    lists = st.lists(st.tuples(*axes), max_size=max_size, unique=True)
    return lists.map(lambda rows: np.asarray(rows, np.int32).reshape(-1, 1 + ndim))


def features_at(rows, channels=CHANNELS, seed=0):
    """Normal features that depend on the coordinate only, not on the row's place."""
    cells = np.random.default_rng(seed).normal(size=(BATCH_SIZE, 64, 64, channels))
    index = tuple((rows % 64).T)[:3]
    return cells[index].astype(np.float32)


def voxels_at(rows, features=None, capacity=CAPACITY, batch_size=BATCH_SIZE):
    """Voxels with the given rows; the arrays handed over are padded to ``capacity`` too."""
    features = features_at(rows) if features is None else features
    padded = np.full((capacity, rows.shape[1]), vx.PAD, np.int32)
    padded[: len(rows)] = rows
    values = np.zeros((capacity, features.shape[1]), np.float32)
    values[: len(rows)] = features
    return vx.Voxels.from_coords(padded, values, batch_size, capacity=capacity)


def equal(a, b):
    """Check that voxels and bits agree."""
    np.testing.assert_array_equal(a.valid_coords(), b.valid_coords())
    np.testing.assert_array_equal(a.valid_features(), b.valid_features())
