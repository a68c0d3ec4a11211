"""Memory follows the number of points, whatever values labels, batch indices and ids have."""

import subprocess
import sys

import jax
import numpy as np
import pytest

import voxax as vx
from voxax.io.examples import majority

LARGE = 2**31 - 1
SLOW = pytest.mark.slow


def counted(labels, inverse, rows):
    """Votes, in plain dictionaries."""
    votes = [{} for _ in range(rows)]
    for label, row in zip(labels.tolist(), inverse.tolist(), strict=True):
        if label >= 0 and row >= 0:
            votes[row][label] = votes[row].get(label, 0) + 1
    best = [min(own, key=lambda label: (-own[label], label)) if own else -1 for own in votes]
    return np.array(best, np.int32)


def test_majority_of_any_labels_and_of_dropped_points(rng):
    for _ in range(20):
        few = rng.choice([-LARGE - 1, -1, 0, 3, 10**9 + 1, LARGE], 5)
        labels, inverse = rng.choice(few, 60).astype(np.int32), rng.integers(-1, 9, 60)
        np.testing.assert_array_equal(majority(labels, inverse, 9), counted(labels, inverse, 9))
    np.testing.assert_array_equal(majority(np.array([], int), np.array([], int), 2), [-1, -1])


def test_majority_takes_what_voxelize_returns():
    """Under jit, points beyond the capacity have no row."""
    positions = np.arange(6, dtype=np.float32)[:, None] + 0.5
    make = jax.jit(lambda p: vx.voxelize(p, voxel_size=1.0, capacity=4, return_inverse=True)[1])
    inverse = make(positions)
    assert inverse.tolist() == [0, 1, 2, 3, -1, -1]
    assert majority(np.arange(6), inverse, 4).tolist() == [0, 1, 2, 3]
    assert majority(jax.numpy.arange(6), np.asarray(inverse), 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("labels", "inverse"), [([2**31], [0]), ([0], [5]), ([0, 1], [0])], ids=str
)
def test_majority_refuses(labels, inverse):
    with pytest.raises(vx.InputError):
        majority(np.array(labels), np.array(inverse), 5)


# Each runs with 1.5 GB beside what is loaded; a table by the value of an id has 8 GB at least.
BEGIN = """
import resource
import jax, jax.numpy as jnp, numpy as np, voxax as vx
from voxax import detection
from voxax.cli.segmentation_task import class_weights
from voxax.io.examples import Preparation
from voxax.io.mean_features import MeanFeatures
from voxax.io.point_cloud import PointCloud
from voxax.models.metrics import confusion
from voxax.models.training import count_outside, masked_cross_entropy
from voxax.nn import modules as nn
from voxax.plot import coloring

LARGE = 2**31 - 1
SCENE = 2**30 - 1  # the largest
rng = np.random.default_rng(0)
n = 500
positions = rng.uniform(0, 3, (n, 3))
ids = rng.choice([-1, -LARGE - 1, 0, 10**9, LARGE - 1, LARGE], n).astype(np.int32)
scenes = rng.choice([0, 7, SCENE], n)
jax.jit(lambda x: x + 1)(1.0)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 3 * 2**29, resource.RLIM_INFINITY))
"""
CLOUDS = """
cloud = PointCloud(positions, {"ring": ids, "instance": ids}, ids)
assert Preparation(0.5, ("ring",))(cloud).labels.max() > 0
MeanFeatures(0.5, ("xyz", "instance"))(cloud)
class_weights([cloud], 3)
matrix = confusion(ids, np.zeros(n, int), 3)
assert matrix.sum() == (ids == 0).sum()
coloring.by_tile(ids, 128)
coloring.by_window(ids, np.ones((2, 4, 1), int), 1, 128)
coloring.by_feature(ids)
coloring.by_label(ids)
voxels, row = vx.voxelize(positions, None, 0.5, scenes, return_inverse=True)
assert voxels.batch_size == SCENE + 1 and (row >= 0).all()
assert sorted(set(voxels.valid_coords()[:, 0].tolist())) == [0, 7, SCENE]
host, _ = vx.voxelize_on_host(positions, np.ones((n, 1)), 0.5, scenes, capacity=voxels.capacity)
np.testing.assert_array_equal(host.coords, voxels.coords)
"""
DETECTION = """
boxes = np.ones((3, 7)) + 5 * np.arange(3)[:, None] * np.eye(7)[0]
classes, scores = np.array([0, 10**9, LARGE]), np.ones(3)
truth, found = detection.Objects(boxes, classes), detection.Objects(boxes, classes, scores)
views = {"rectangles": np.ones((3, 4)) * [0, 0, 50, 50]}
detection.KittiObjects(boxes, classes, scores, **views)
detection.nms(boxes, scores, iou_threshold=0.5, max_selected=3, classes=classes)
bank = detection.ObjectBank(0)
bank.add(positions, boxes, classes)
bank.fill(positions, boxes, classes, rng, {LARGE: 2})
assert int(count_outside(jnp.asarray(ids), 3)) == (ids > 2).sum()
jax.jit(masked_cross_entropy)(jnp.ones((n, 3)), ids)
"""
OPERATORS = """
ones = np.ones((n, 1), np.float32)
voxels = vx.voxelize(positions, ones, 0.5, scenes)
points, few = (vx.Points.make(positions, ones, s) for s in (scenes, np.minimum(scenes, 8)))
np.testing.assert_array_equal(vx.knn_search(points, k=3).rows, vx.knn_search(few, k=3).rows)
vx.devoxelize(voxels, points)
vx.curve_order(voxels, "hilbert"), vx.cubic_windows(voxels, 4)
vx.coarsen(voxels, 2), vx.union(voxels, voxels), voxels.scene(SCENE)
nn.SparseConv3d(2, 2, 3, stride=2, generative=True)(nn.BatchNorm(2)(nn.SubMConv3d(1, 2)(voxels)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory by Linux's means")
@pytest.mark.parametrize(
    "part",
    [CLOUDS, pytest.param(DETECTION, marks=SLOW), pytest.param(OPERATORS, marks=SLOW)],
    ids=["clouds", "detection", "operators"],
)
def test_nothing_is_as_large_as_an_id(part):
    done = subprocess.run([sys.executable, "-c", BEGIN + part], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("index", [2**30, 2**31 - 1, 2**32, 2**63 - 1, -(2**32)])
def test_batch_indices_that_no_batch_holds(index):
    """They wrap around into no legal index."""
    positions, ones = np.zeros((2, 3), np.float32), np.ones((2, 1), np.float32)
    scenes = np.array([0, index])
    for make in (
        lambda: vx.voxelize(positions, ones, 0.1, scenes),
        lambda: vx.voxelize_on_host(positions, ones, 0.1, scenes),
        lambda: vx.Points.make(positions, ones, scenes),
        lambda: vx.Points.make(positions, ones, scenes, batch_size=2),
    ):
        with pytest.raises(vx.InputError, match="batch ind"):
            make()
