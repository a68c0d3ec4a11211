"""Height above ground, on made-up terrain of known height."""

import numpy as np
import pytest
from scipy.ndimage import minimum_filter

from voxax.errors import InputError
from voxax.io.ground import _sliding, height_above_ground

SLOPE = 0.05


def terrain(seed=0, count=40_000, edge=60.0) -> np.ndarray:
    """A slope with points every 0.3 m or so."""
    plan = np.random.default_rng(seed).uniform(0, edge, (count, 2))
    return np.column_stack([plan, SLOPE * plan[:, 0]])


def with_building(positions, height=8.0) -> tuple[np.ndarray, np.ndarray]:
    """The points of a 12 x 10 m footprint lifted onto a flat roof; ``(positions, roof)``."""
    roof = (np.abs(positions[:, 0] - 30) < 6) & (np.abs(positions[:, 1] - 30) < 5)
    lifted = positions.copy()
    lifted[roof, 2] = SLOPE * 30 + height
    return lifted, roof


def inside(positions) -> np.ndarray:
    """Half a window and more away from the edge."""
    return (np.abs(positions[:, :2] - 30) < 19).all(1)


def test_bare_slope_is_ground():
    height = height_above_ground(terrain())
    assert height.dtype == np.float32
    assert height.min() >= 0
    inner = inside(terrain())
    assert height[inner].max() < 0.15  # the lowest of 1 m cells
    # Where the scan ends uphill, half a window finds no ground beyond to open towards.
    assert height[~inner].max() < SLOPE * 11


def test_building_stands_on_the_slope():
    positions, roof = with_building(terrain())
    height = height_above_ground(positions)
    truth = positions[:, 2] - SLOPE * positions[:, 0]
    # Below the roof the ground of its surroundings stands in: up to half a window off.
    assert np.abs(height[roof] - truth[roof]).max() < SLOPE * 12
    assert height[~roof & inside(positions)].max() < 0.8
    assert np.median(height[~roof]) < 0.1


def test_window_narrower_than_the_roof_loses_the_building():
    positions, roof = with_building(terrain())
    assert np.median(height_above_ground(positions, window=6.0)[roof]) < 1.0


def test_national_grid_coordinates_do_not_matter():
    # Whole meters, so that grid cells stay where they were.
    positions, _ = with_building(terrain())
    shift = np.array([84_000.0, 447_000.0, -3.0])
    np.testing.assert_allclose(
        height_above_ground(positions + shift), height_above_ground(positions), atol=1e-4
    )


def test_one_low_outlier_spoils_its_own_cell_only():
    positions, _ = with_building(terrain())
    low = np.append(positions, [[20.3, 20.3, -40.0]], axis=0)
    before, after = height_above_ground(positions), height_above_ground(low)[:-1]
    near = (np.floor(positions[:, :2]) == 20).all(1)
    np.testing.assert_allclose(after[~near], before[~near], atol=1.0)


@pytest.mark.parametrize("reach", [1, 2, 3, 7])
def test_sliding_minimum_is_scipys(reach, rng):
    grid = rng.random((23, 17))
    expected = minimum_filter(grid, 2 * reach + 1, mode="constant", cval=np.inf)
    np.testing.assert_array_equal(_sliding(grid, reach, np.minimum, np.inf), expected)


def test_far_outlier_does_not_exhaust_memory():
    positions = np.append(terrain(count=1000), [[1e7, 0.0, 0.0]], axis=0)
    assert np.isfinite(height_above_ground(positions)).all()


def test_few_points():
    assert height_above_ground(np.zeros((0, 3))).shape == (0,)
    assert height_above_ground(np.array([[1.0, 2.0, 3.0]])).tolist() == [0.0]


@pytest.mark.parametrize("options", [{"cell": 0.0}, {"cell": -1.0}, {"cell": 2.0, "window": 1.0}])
def test_senseless_options_are_refused(options):
    with pytest.raises(InputError, match="cell"):
        height_above_ground(terrain(count=10), **options)
