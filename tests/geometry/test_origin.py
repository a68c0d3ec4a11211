"""The origin of a lattice: float64 digits that are data, in every tree and file."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.geometry.origin import Origin

ORIGINS = [
    (500_000.1, 5_400_000.123456789, -0.3),
    (1e-3, -1 / 3, 1.7e9 + 1e-7),
    (2.0**52 + 1, np.pi * 1e6, 0.0),
]
COORDS = np.array([[0, 0, 0, 0], [0, 3, -2, 5], [0, 7, 1, 1]], np.int32)


def voxels_at(origin):
    features = np.ones((3, 2), np.float32)
    return vx.Voxels.from_coords(COORDS, features, voxel_size=0.1, origin=origin)


@pytest.mark.parametrize("origin", ORIGINS)
def test_no_digit_is_lost(origin):
    voxels = voxels_at(origin)
    ways = {
        "made": voxels,
        "replaced": dataclasses.replace(voxels_at(ORIGINS[0]), origin=origin),
        "jit": jax.jit(lambda v: v.map(jnp.tanh))(voxels),
        "scan": jax.lax.scan(lambda v, _: (v.map(jnp.tanh), None), voxels, length=2)[0],
        "pickle": pickle.loads(pickle.dumps(voxels)),
        "deepcopy": copy.deepcopy(voxels),
        "host": jax.device_get(voxels),
        "batch": vx.batch([voxels, voxels]),
        "scene": vx.batch([voxels, voxels]).scene(1),
        "strided": vx.coarsen(voxels, 2),
        "planned": vx.plan(lambda v: vx.coarsen(v, 2), voxels),
        "halved": jax.tree.map(  # a cast of every float, as mixed precision does it
            lambda a: a.astype(jnp.bfloat16) if jnp.issubdtype(a.dtype, jnp.floating) else a, voxels
        ),
    }
    for name, way in ways.items():
        assert way.origin == origin, name
        assert np.array_equal(np.asarray(way.origin), origin), name
    assert vx.to_bev(voxels, 1).origin == (origin[0], origin[2])


def test_another_origin_compiles_nothing():
    traces = []

    @jax.jit
    def run(voxels, points):
        traces.append(1)
        at = vx.devoxelize(voxels, points, interpolation="nearest")
        return vx.union(voxels, voxels).positions(), at

    for origin in ORIGINS:
        run(voxels_at(origin), jnp.zeros((4, 3)))
    assert len(traces) == 1


def test_it_reads_as_the_tuple_that_it_is():
    origin = Origin(ORIGINS[0])
    assert (len(origin), origin[1], repr(origin)) == (3, ORIGINS[0][1], repr(ORIGINS[0]))
    assert origin == Origin(ORIGINS[0]) != Origin(ORIGINS[1])
    assert hash(origin) == hash(ORIGINS[0])
    assert voxels_at(()).origin == ()


def test_it_has_no_values_inside_jit():
    def run(voxels):
        assert "traced" in repr(voxels.origin)
        assert len(voxels.origin) == 3
        return jnp.asarray(np.asarray(voxels.origin))

    with pytest.raises(TypeError, match=r"has no values.*positions\(\)"):
        jax.jit(run)(voxels_at(ORIGINS[0]))
