"""Check the way from a cloud to voxels, features and labels."""

import pickle

import numpy as np
import pytest

from voxax.coords import bucket_capacity
from voxax.errors import InputError
from voxax.geometry import Plan
from voxax.io.examples import GEOMETRIC_FEATURES, Preparation, majority
from voxax.io.mean_features import MeanFeatures
from voxax.io.point_cloud import PointCloud


def cloud(count=400, seed=0, shift=(0.0, 0.0, 0.0), labeled=True) -> PointCloud:
    rng = np.random.default_rng(seed)
    # Halves of a 1/64: exact in float32, and never on a voxel's face.
    positions = (rng.integers(0, 256, (count, 3)) + 0.5) / 64 + np.array(shift)
    labels = rng.integers(-1, 3, count) if labeled else None
    return PointCloud(positions, {"intensity": rng.random(count)}, labels)


def test_majority():
    inverse = np.array([0, 0, 0, 1, 1, 2, 2, 3])
    labels = np.array([2, 2, 1, 0, 1, -1, 1, -1])
    # A majority, a tie (smallest), an unlabeled point that does not vote, no vote, no point.
    assert majority(labels, inverse, 5).tolist() == [2, 0, 1, -1, -1]
    assert majority(labels, inverse, 5).dtype == np.int32


def test_majority_without_any_label():
    assert majority(np.full(3, -1), np.arange(3), 4).tolist() == [-1] * 4
    assert majority(np.zeros(0, int), np.zeros(0, int), 2).tolist() == [-1, -1]


def test_voxels_labels_and_inverse_agree():
    given = cloud()
    example = Preparation(0.5)(given)
    count, capacity = int(example.voxels.count), example.voxels.capacity
    assert capacity == bucket_capacity(count)
    assert example.labels.shape == (capacity,)
    assert (example.labels[count:] == -1).all()
    assert example.inverse.shape == (len(given),)
    assert set(example.inverse) == set(range(count))
    np.testing.assert_array_equal(
        np.asarray(example.voxels.coords)[example.inverse, 1:],
        np.floor(given.positions / 0.5).astype(int),
    )
    for row in range(count):
        known = given.labels[(example.inverse == row) & (given.labels >= 0)]
        best = np.bincount(known).argmax() if len(known) else -1
        assert example.labels[row] == best
    np.testing.assert_array_equal(example.point_labels, given.labels)


def test_features_are_means_over_the_voxel():
    given = cloud()
    height = np.linspace(-5, 30, len(given)).astype(np.float32)
    preparation = Preparation(0.5, ("intensity",))
    example = preparation(given, height)
    features = np.asarray(example.voxels.features)
    count = int(example.voxels.count)
    assert features.shape == (example.voxels.capacity, preparation.num_channels)
    assert preparation.num_channels == len(GEOMETRIC_FEATURES) + 1
    assert features.dtype == np.float32
    assert (features[:count, 0] == 1).all()
    assert (features[count:] == 0).all()
    offset = 2 * np.mod(given.positions / 0.5, 1) - 1
    expected = np.column_stack([np.clip(height, -2, 20) / 4, offset, given.attributes["intensity"]])
    for row in (0, count // 2, count - 1):
        np.testing.assert_allclose(
            features[row, 1:], expected[example.inverse == row].mean(0), atol=1e-5
        )


def test_national_grid_coordinates_keep_their_voxels():
    near = Preparation(0.5)(cloud())
    far = Preparation(0.5)(cloud(shift=(84_000.0, 447_000.0, 0.0)))
    assert int(near.voxels.count) == int(far.voxels.count)
    np.testing.assert_array_equal(near.inverse, far.inverse)
    np.testing.assert_array_equal(near.labels, far.labels)
    np.testing.assert_allclose(near.voxels.features, far.voxels.features, atol=1e-4)


def test_without_labels_and_without_points():
    example = Preparation(0.5)(cloud(labeled=False))
    assert example.point_labels is None
    assert (example.labels == -1).all()
    empty = Preparation(0.5)(cloud(0))
    assert int(empty.voxels.count) == 0
    assert (empty.labels == -1).all()


def test_capacity_has_a_floor():
    assert Preparation(0.5, min_capacity=3000)(cloud()).voxels.capacity == bucket_capacity(3000)


def test_plan_is_attached_and_preparation_is_picklable():
    drafted = Preparation(0.5)(cloud())
    plan = Plan.record(lambda v: v, drafted.voxels).fitted([drafted.voxels])
    preparation = pickle.loads(pickle.dumps(Preparation(0.5, plan=plan)))
    example = preparation(cloud())
    assert example.voxels.geometry.attached is not None
    assert example.voxels.capacity == plan.capacity(int(drafted.voxels.count))
    np.testing.assert_array_equal(example.voxels.valid_features(), drafted.voxels.valid_features())


def test_unknown_attribute_is_refused():
    with pytest.raises(InputError, match=r"no attribute 'ring'.*it has intensity"):
        Preparation(0.5, ("ring",))(cloud())
    wide = PointCloud(np.zeros((2, 3)), {"rgb": np.zeros((2, 4), np.uint8)}, source="scan.ply")
    with pytest.raises(InputError, match=r"'rgb' of scan\.ply has 4 numbers.*reads 3"):
        Preparation(0.5, ("rgb",))(wide)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
@pytest.mark.parametrize("kind", [Preparation, MeanFeatures])
def test_values_that_are_not_finite_are_refused(kind, value):
    given = cloud()
    given.attributes["intensity"][7] = value
    with pytest.raises(InputError, match=r"'intensity' of .* at 1 of 400 .* at row 7: "):
        kind(0.5, ("intensity",))(given)


def test_colors_are_three_channels_from_0_to_1():
    colors = np.asarray([[0, 51, 255], [255, 0, 102]], np.uint8)
    given = PointCloud(np.asarray([[0.1, 0.1, 0.1], [5, 5, 5]]), {"rgb": colors})
    preparation = Preparation(0.5, ("rgb",))
    example = preparation(given)
    assert example.voxels.num_channels == preparation.num_channels == 8
    found = example.voxels.features[example.inverse, 5:]
    np.testing.assert_allclose(found, [[0, 0.2, 1], [1, 0, 0.4]], rtol=1e-6)
