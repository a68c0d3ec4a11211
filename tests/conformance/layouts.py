"""Lay out the voxels of a case. All layouts share static shapes, and so programs."""

import numpy as np

import voxax as vx

CAPACITY = 48
INPUT_ROWS = 56
"""Rows handed to ``from_coords``: distinct ones, duplicates and padding."""

BATCH_SIZE = 3


def _random_rows(rng, ndim, number, scenes=(0, 1, 2)):
    """``number`` distinct rows at about 40 % occupancy, negative coordinates among them."""
    edge = max(3, round((number / len(scenes) / 0.4) ** (1 / ndim)) + 1)
    axes = np.indices((edge,) * ndim).reshape(ndim, -1).T - edge // 2
    every = np.concatenate([np.insert(axes, 0, scene, axis=1) for scene in scenes])
    return every[rng.permutation(len(every))[:number]]


def _random(rng, ndim):
    return _random_rows(rng, ndim, 34)


def _line(rng, ndim):
    """Non-cubic: 40 cells along the first axis, two along the others."""
    rows = rng.integers(0, [3, 40, *[2] * (ndim - 1)], (36, 1 + ndim))
    return np.unique(rows + np.array([0, -7, *[11] * (ndim - 1)]), axis=0)


def _gap_in_batch(rng, ndim):
    return _random_rows(rng, ndim, 30, (0, 2))


def _duplicates(rng, ndim):
    rows = _random_rows(rng, ndim, 20)
    return rows[rng.integers(0, len(rows), INPUT_ROWS)]


def _full(rng, ndim):
    """Exactly as many voxels as the capacity holds."""
    return _random_rows(rng, ndim, CAPACITY)


def _extreme(rng, ndim):
    """Pairs of neighbors at both ends of the coordinate range."""
    rows = _random_rows(rng, ndim, 30)
    low, high = -vx.coords.COORD_LIMIT, vx.coords.COORD_LIMIT - 1
    shifted = rows[:, 1:] - rows[:, 1:].min()
    rows[:, 1:] = np.where(rows[:, :1] == 1, high - shifted, low + shifted)
    return rows


def _one_voxel(rng, ndim):
    del rng
    return np.array([[1, -3, 2, 5, 0][: 1 + ndim]])


def _no_voxel(rng, ndim):
    del rng
    return np.zeros((0, 1 + ndim), int)


LAYOUTS = {
    "random": _random,
    "line": _line,
    "gap_in_batch": _gap_in_batch,
    "duplicates": _duplicates,
    "full": _full,
    "extreme": _extreme,
    "one_voxel": _one_voxel,
    "no_voxel": _no_voxel,
}


def make_case(layout, ndim, channels, seed=0):
    """``(rows int32[INPUT_ROWS, 1 + D], features float64[INPUT_ROWS, C])``, padding last."""
    rng = np.random.default_rng(seed)
    rows = LAYOUTS[layout](rng, ndim)
    padded = np.full((INPUT_ROWS, 1 + ndim), vx.PAD, np.int32)
    padded[: len(rows)] = rows
    return padded, rng.normal(size=(INPUT_ROWS, channels))
