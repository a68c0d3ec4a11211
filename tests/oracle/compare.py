"""Comparing results with an oracle's."""

import numpy as np

from oracle.rows import PAD
from oracle.sites import rows_of


def relative_error(actual, expected):
    """Largest difference over the largest expected value; 0 for empty arrays."""
    actual, expected = (np.asarray(v).astype(np.float64) for v in (actual, expected))
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if not expected.size:
        return 0.0
    difference = np.abs(actual - expected).max()
    return float(difference / max(np.abs(expected).max(), 1e-30)) if difference else 0.0


def check_sites(voxels, expected, tolerance):
    """Voxels hold exactly the expected sites in canonical order, their features, and clean padding.

    Args:
      voxels: with attributes ``coords``, ``count``, ``features``, ``num_dropped``.
      expected: sites, see ``oracle.sites``.
      tolerance: on the largest difference over the largest expected value.
    """
    coords, count = np.asarray(voxels.coords), int(voxels.count)
    features = np.asarray(voxels.features).astype(np.float64)
    rows, values = rows_of(expected, coords.shape[1])
    np.testing.assert_array_equal(coords[:count], rows)
    assert (coords[count:] == PAD).all(), "padding rows must hold PAD"
    assert int(voxels.num_dropped) == 0
    assert (features[count:] == 0).all(), "padding features must be zero"
    if count:
        assert relative_error(features[:count], values) < tolerance
