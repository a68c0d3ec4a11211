"""The worker pipeline: order, errors, NumPy only, and real examples with maps."""

import dataclasses
import functools
import os
import pickle
import signal

import jax
import numpy as np
import pytest

import voxax as vx
from voxax.errors import WorkerError
from voxax.io.augment import rotate_z
from voxax.io.examples import Preparation
from voxax.io.pipeline import Pipeline
from voxax.io.point_cloud import PointCloud
from voxax.nn.functional import spatially_sparse_conv


def square(value):
    if value < 0:
        raise ValueError(f"no square of {value}")
    return value * value


def backend_started(_):
    import jax._src.xla_bridge as bridge

    return bridge.backends_are_initialized()


def prepare(preparation, cloud):
    example = preparation(cloud)
    return example, backend_started(None)


def small_cloud(rng, points=400):
    return PointCloud(rng.uniform(-4, 4, (points, 3)), labels=rng.integers(0, 3, points))


@pytest.mark.parametrize("workers", [0, 1])
def test_results_keep_their_order(workers):
    with Pipeline(square, workers=workers, prefetch=3) as pipeline:
        assert list(pipeline(range(10))) == [i * i for i in range(10)]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_is_raised_where_its_example_would_come(workers):
    with Pipeline(square, workers=workers) as pipeline:
        results = pipeline([1, 2, -3, 4])
        assert [next(results), next(results)] == [1, 4]
        with pytest.raises(ValueError, match="no square of -3"):
            next(results)


def killed(item):
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_worker_that_is_killed_is_told():
    told = pytest.raises(WorkerError, match=r"a worker process was killed.*fewer workers")
    with Pipeline(killed, workers=1) as pipeline, told:
        list(pipeline(range(5)))


def test_workers_build_maps_without_starting_a_backend(rng):
    preparation = Preparation(0.5)
    cloud = small_cloud(rng)
    weight = np.zeros((27, preparation.num_channels, 2), np.float32)
    plan = vx.Plan.record(lambda v: spatially_sparse_conv(v, weight), preparation(cloud).voxels)
    preparation = dataclasses.replace(preparation, plan=plan)
    with Pipeline(functools.partial(prepare, preparation), workers=1) as pipeline:
        ((example, started),) = pipeline([cloud])
    assert not started
    leaves = jax.tree.leaves(example.voxels)
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves)
    assert len(example.voxels.geometry.attached.records) == 1
    here = preparation(cloud).voxels
    jax.tree.map(np.testing.assert_array_equal, example.voxels, here)


def test_preparation_pickles_with_its_plan(rng):
    preparation = Preparation(0.5)
    voxels = preparation(small_cloud(rng)).voxels
    plan = vx.Plan.record(lambda v: v, voxels).fitted([voxels])
    again = pickle.loads(pickle.dumps(dataclasses.replace(preparation, plan=plan)))
    assert again.plan == plan


def test_min_capacity_gives_scenes_of_similar_size_one_shape(rng):
    preparation = Preparation(0.5, min_capacity=512)
    shapes = {preparation(small_cloud(rng, n)).voxels.capacity for n in (100, 200, 300)}
    assert shapes == {512}


def test_examples_of_national_grid_coordinates_keep_their_detail(rng):
    cloud = small_cloud(rng)
    moved = dataclasses.replace(cloud, positions=cloud.positions + np.array([85e3, 446e3, 0]))
    near, far = Preparation(0.5)(cloud), Preparation(0.5)(moved)
    assert int(near.voxels.count) == int(far.voxels.count)
    np.testing.assert_allclose(
        np.sort(near.voxels.features, axis=0), np.sort(far.voxels.features, axis=0), atol=1e-3
    )


def test_augmentation_is_seeded(rng):
    cloud = small_cloud(rng)
    first, second = (rotate_z(cloud, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first.positions, second.positions)
