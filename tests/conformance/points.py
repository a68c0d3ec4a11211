"""Points to voxels and back.

The points follow the voxels of each layout. Their positions come from whole numbers, in 64ths
of a cell, so that no dtype of the features rounds them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import voxax as vx
from conformance.convolution import WITHIN_RANGE
from conformance.definition import Operator
from conformance.layouts import BATCH_SIZE, CAPACITY
from oracle import make_sites, rows_of
from oracle import points as loops

POINTS, PADDING = 36, 4
UNIT = 64

# Powers of two, for the same reason; one entry for each of four axes.
VOXEL_SIZE = (0.5, 0.25, 2.0, 1.0)
ORIGIN = (1.0, -2.0, 0.5, 0.0)


def cloud_params(rng, ndim, channels):
    """Return the voxel near a point, the distance to its corner, and the scene's offset."""
    rows = POINTS + PADDING
    return {
        "near": rng.integers(0, 1000, rows, dtype=np.int32),
        "shift": rng.integers(-UNIT, 2 * UNIT, (rows, ndim), dtype=np.int32),
        "scenes_on": (rng.random(rows) < 0.1).astype(np.int32),
    }


def feature_params(rng, ndim, channels):
    features = rng.normal(size=(POINTS + PADDING, channels))
    return {"features": features, **cloud_params(rng, ndim, channels)}


# Jitted: as single operations this would cost more to compile than what is tested.
@functools.partial(jax.jit, static_argnames="wrap")
def points_near(voxels, params, features=None, wrap=False):
    """``vx.Points`` whose padding holds NaN. ``wrap``: no point leaves the batch."""
    ndim = voxels.geometry.ndim
    corner = voxels.coords[params["near"] % jnp.maximum(voxels.count, 1)]
    corner = jnp.where(voxels.count > 0, corner, 0)
    scene = corner[:, 0] + params["scenes_on"]
    cell = (corner[:, 1:] * UNIT + params["shift"]).astype(jnp.float32) / UNIT
    size, origin = (jnp.asarray([v[:ndim]], jnp.float32) for v in (VOXEL_SIZE, ORIGIN))
    is_point = jnp.arange(POINTS + PADDING)[:, None] < POINTS
    if features is None:
        features = jnp.zeros((POINTS + PADDING, 1), jnp.float32)
    return vx.Points(
        jnp.where(is_point, cell * size + origin, jnp.nan),
        scene % BATCH_SIZE if wrap else scene,
        jnp.where(is_point, features, jnp.nan),
        jnp.asarray(POINTS, jnp.int32),
        BATCH_SIZE,
    )


def placed(voxels):
    ndim = voxels.geometry.ndim
    return dataclasses.replace(voxels, voxel_size=VOXEL_SIZE[:ndim], origin=ORIGIN[:ndim])


def loop_cloud(sites, params, wrap=False):
    """Return the points for the loops, and the lattice."""
    size, origin = VOXEL_SIZE[: sites.ndim], ORIGIN[: sites.ndim]
    corners, _ = rows_of(sites, 1 + sites.ndim)
    cloud = []
    for near, shift, on in zip(
        params["near"][:POINTS], params["shift"], params["scenes_on"], strict=False
    ):
        row = corners[near % len(corners)] if len(corners) else np.zeros(1 + sites.ndim, int)
        scene = int(row[0] + on)
        position = [
            (c + s / UNIT) * v + o
            for c, s, v, o in zip(row[1:].tolist(), shift.tolist(), size, origin, strict=True)
        ]
        cloud.append((scene % BATCH_SIZE if wrap else scene, position))
    return cloud, (size, origin)


def voxelize(reduction):
    def run(voxels, params):
        points = points_near(voxels, params, params["features"], wrap=True)
        ndim = voxels.geometry.ndim
        return vx.voxelize(
            points,
            voxel_size=VOXEL_SIZE[:ndim],
            origin=ORIGIN[:ndim],
            reduction=reduction,
            capacity=CAPACITY,
        )

    def reference(sites, params, batch_size):
        del batch_size
        cloud, lattice = loop_cloud(sites, params, wrap=True)
        rows = np.asarray([loops.containing(*point, lattice) for point in cloud])
        return make_sites(rows, params["features"][:POINTS], reduction)

    return Operator(f"voxelize_{reduction}", run, reference, feature_params, layouts=WITHIN_FLOAT32)


def devoxelize(name, **options):
    def run(voxels, params):
        points = points_near(voxels, params)
        return vx.devoxelize(placed(voxels), points, **options).features

    def reference(sites, params, batch_size):
        del batch_size
        cloud, lattice = loop_cloud(sites, params)
        found = loops.devoxelize(sites, cloud, lattice=lattice, **options)
        return np.concatenate([found, np.zeros((PADDING, sites.channels))])

    return Operator(name, run, reference, cloud_params, layouts=WITHIN_FLOAT32)


def splat(interpolation):
    def run(voxels, params):
        points = points_near(voxels, params, params["features"])
        return vx.splat(points, None, placed(voxels), interpolation=interpolation)

    def reference(sites, params, batch_size):
        del batch_size
        cloud, lattice = loop_cloud(sites, params)
        return loops.splat(sites, cloud, params["features"][:POINTS], interpolation, lattice)

    return Operator(
        f"splat_{interpolation}", run, reference, feature_params, layouts=WITHIN_FLOAT32
    )


# float32 cannot tell cells apart at the ends of the coordinate range.
WITHIN_FLOAT32 = WITHIN_RANGE

OPERATORS = (
    *(voxelize(reduction) for reduction in ("mean", "sum", "max", "min", "first")),
    devoxelize("devoxelize_nearest", interpolation="nearest"),
    devoxelize("devoxelize_trilinear", interpolation="trilinear"),
    devoxelize("devoxelize_trilinear_normalized", interpolation="trilinear", normalize=True),
    splat("nearest"),
    splat("trilinear"),
)
