"""Removing rows without sorting."""

import jax
import numpy as np
import pytest

from oracle import PAD
from voxax.coords import compact_rows

ROWS = np.random.default_rng(0).integers(-9, 9, (40, 3)).astype(np.int32)
ROWS[::5] = PAD
KEEP = np.random.default_rng(1).random(40) < 0.6
WANTED = np.flatnonzero(KEEP & (ROWS[:, 0] != PAD))


@pytest.mark.parametrize("capacity", [64, 8])
def test_rows_keep_their_order_under_a_capacity(capacity):
    found = compact_rows(ROWS, KEEP, capacity)
    count = min(len(WANTED), capacity)
    assert int(found.count) == count
    assert int(found.num_dropped) == len(WANTED) - count
    np.testing.assert_array_equal(found.source[:count], WANTED[:count])
    np.testing.assert_array_equal(found.coords[:count], ROWS[WANTED[:count]])
    assert (np.asarray(found.source[count:]) == -1).all()
    assert (np.asarray(found.coords[count:]) == PAD).all()


def test_nothing_to_keep():
    found = compact_rows(ROWS, np.zeros(40, bool), 8)
    assert (int(found.count), int(found.num_dropped)) == (0, 0)
    assert (np.asarray(found.coords) == PAD).all()


def test_no_sort_is_involved():
    program = jax.jit(compact_rows, static_argnums=2).lower(ROWS, KEEP, 40).as_text()
    assert "stablehlo.scatter" in program
    assert "stablehlo.sort" not in program
