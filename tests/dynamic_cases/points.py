"""Searches among points, and convolutions over what they find.

Clouds of two scenes with padding that holds garbage; one query lies on a point and one is alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import voxax as vx
from oracle import point_operators as oracle
from recipes import recipe
from voxax.geometry import knn_search, radius_search
from voxax.geometry.neighbors import Neighbors
from voxax.nn.functional import continuous_conv, kernel_point_conv, kernel_point_penalty

POINTS, QUERIES, RADIUS = 23, 11, 1.2


def clouds(r, ndim=3):
    """Positions and features, the scene of each, and the neighbors of each query."""
    p = r.uniform(-1, 1, (POINTS, ndim))
    q = np.concatenate([p[:1], r.uniform(-1, 1, (QUERIES - 2, ndim)), np.full((1, ndim), 9.0)])
    sides = [r.integers(0, 2, n).astype(np.int32) for n in (POINTS, QUERIES)]
    sides[1][0] = sides[0][0]
    x = r.standard_normal((POINTS, 3))
    v = {"p": p, "x": x, "q": q, "p_scene": sides[0], "q_scene": sides[1]}
    with jax.enable_x64(False):
        found = radius_search(*made(v, np.float32), radius=RADIUS, capacity=POINTS)
    return v | {"rows": np.asarray(found.rows)}


def made(v, dtype=None):
    """Points and queries, with garbage in their padding rows."""

    def cloud(positions, features, scenes):
        def pad(array):
            array = jnp.asarray(array, dtype)
            garbage = jnp.full((2, *array.shape[1:]), jnp.nan, array.dtype)
            return jnp.concatenate([array, garbage])

        scenes = jnp.pad(jnp.asarray(scenes), (0, 2))
        count = jnp.asarray(len(positions), jnp.int32)
        return vx.Points(pad(positions), scenes, pad(features), count, 2)

    points = cloud(v["p"], v["x"], v["p_scene"])
    return points, cloud(v["q"], jnp.zeros_like(v["q"][:, :1]), v["q_scene"])


def around(v):
    rows = jnp.asarray(v["rows"])
    return Neighbors(rows, jnp.sum(rows >= 0, axis=1, dtype=jnp.int32))


def lists(v):
    return [row[row >= 0] for row in np.asarray(v["rows"])[:QUERIES]]


def search(r, find):
    """Each query's neighbors, of which the j-th weighs j."""
    v = clouds(r)
    del v["rows"]
    v["radius"] = np.array(RADIUS)

    def run(v):
        points, queries = made(v)
        rows = find(points, queries, v["radius"]).rows[:QUERIES]
        near = v["x"].at[jnp.maximum(rows, 0)].get(mode="clip")
        rank = jnp.arange(1, rows.shape[1] + 1, dtype=near.dtype).reshape(1, -1, 1)
        return jnp.sum(jnp.where(rows[..., None] >= 0, near * rank, 0), axis=1)

    def want(v):
        radius = np.inf if find is nearest else v["radius"]
        found = oracle.neighbors(v["p"], v["p_scene"], v["q"], v["q_scene"], radius)
        found = [rows[:4] for rows in found] if find is nearest else found
        return np.stack([np.arange(1, len(rows) + 1) @ v["x"][rows] for rows in found])

    return v, run, want


def within(algorithm):
    def find(points, queries, radius):
        return radius_search(points, queries, radius=radius, capacity=POINTS, algorithm=algorithm)

    return find


def nearest(points, queries, radius):
    return knn_search(points, queries, k=4)


def continuous(r, ndim=3, mapping="volume_preserving", normalize=False):
    v = clouds(r, ndim) | {
        "w": r.standard_normal((*(4, 3, 2)[:ndim], 3, 5)),
        "bias": r.standard_normal(5),
        "radius": np.array(RADIUS),
    }
    options = {"mapping": mapping, "normalize": normalize}

    def run(v):
        points, queries = made(v)
        given = {"radius": v["radius"], "bias": v["bias"], **options}
        return continuous_conv(points, v["w"], around(v), queries, **given).features[:QUERIES]

    def want(v):
        own = lists(v), v["q"], v["radius"], mapping, normalize
        return oracle.continuous_conv(v["p"], v["x"], v["w"], *own) + v["bias"]

    return v, run, want


def kernel_points(r, deformable=False, influence="linear"):
    v = clouds(r) | {
        "w": r.standard_normal((4, 3, 5)),
        "nodes": r.uniform(-0.8, 0.8, (4, 3)),
        "extent": np.array(0.7),
    }
    if deformable:
        v |= {
            "offsets": r.uniform(-0.3, 0.3, (QUERIES, 4, 3)),
            "factors": r.standard_normal((QUERIES, 4)),
        }

    def run(v):
        points, queries = made(v)
        moves = {}
        if deformable:
            pad = [(0, 2), (0, 0)]
            moves["offsets"] = jnp.pad(v["offsets"], [*pad, (0, 0)])
            moves["modulation"] = jnp.pad(v["factors"], pad)
        options = {"extent": v["extent"], "influence": influence, **moves}
        y = kernel_point_conv(points, v["w"], around(v), v["nodes"], queries, **options)
        return y.features[:QUERIES]

    def want(v):
        moves = (v.get("offsets"), v.get("factors"), influence)
        return oracle.kernel_point_conv(
            v["p"], v["x"], v["w"], lists(v), v["q"], v["nodes"], v["extent"], *moves
        )

    return v, run, want


def penalty(r):
    v = clouds(r) | {
        "nodes": r.uniform(-0.8, 0.8, (4, 3)),
        "offsets": r.uniform(-0.3, 0.3, (QUERIES, 4, 3)),
        "extent": np.array(0.7),
    }
    del v["x"]

    def run(v):
        points, queries = made({**v, "x": v["p"]})
        moved = jnp.pad(v["offsets"], [(0, 2), (0, 0), (0, 0)])
        given = points, around(v), v["nodes"], moved, queries
        return jnp.stack(kernel_point_penalty(*given, extent=v["extent"]))

    def want(v):
        given = v["p"], lists(v), v["q"], v["nodes"], v["offsets"], v["extent"]
        return np.stack(oracle.kernel_point_penalty(*given))

    return v, run, want


def point(r):
    v = clouds(r) | {
        "w": r.standard_normal((4, 3, 5)),
        "net": r.standard_normal((3, 4)),
        "scale": r.standard_normal(1),
        "density": r.uniform(0.5, 3, POINTS),
    }

    def run(v):
        points, queries = made(v)
        y = recipe("point_conv")(
            points,
            v["w"],
            around(v),
            lambda places: jnp.tanh(places @ v["net"]),
            queries,
            density=jnp.pad(v["density"], (0, 2)),
            scale=lambda s: jnp.sin(s * v["scale"].reshape(1, 1, 1)),
        )
        return y.features[:QUERIES]

    def want(v):
        nets = (lambda place: np.tanh(place @ v["net"])), (lambda s: np.sin(s * v["scale"]))
        return oracle.point_conv(
            v["p"], v["x"], v["w"], lists(v), v["q"], nets[0], v["density"], nets[1]
        )

    return v, run, want


def density(r):
    v = clouds(r)
    with jax.enable_x64(False):
        points, _ = made(v, np.float32)
        found = radius_search(points, radius=RADIUS, capacity=POINTS)
    v = {name: v[name] for name in ("p", "p_scene")}
    v |= {"rows": np.asarray(found.rows), "bandwidth": np.array(0.3)}

    def run(v):
        points, _ = made({**v, "x": v["p"], "q": v["p"], "q_scene": v["p_scene"]})
        return recipe("point_density")(points, around(v), v["bandwidth"])

    def want(v):
        own = [row[row >= 0] for row in np.asarray(v["rows"])[:POINTS]]
        y = oracle.point_density(v["p"], own, v["p"], v["bandwidth"])
        return np.concatenate([y, np.zeros(2)])  # padding

    return v, run, want


CASES = {
    "radius_search": functools.partial(search, find=within("all")),
    "radius_search_cells": functools.partial(search, find=within("cells")),
    "knn_search": functools.partial(search, find=nearest),
    "continuous": continuous,
    "continuous_2d_normalized": functools.partial(continuous, ndim=2, normalize=True),
    "continuous_1d": functools.partial(continuous, ndim=1),
    "continuous_radial": functools.partial(continuous, mapping="radial"),
    "continuous_identity": functools.partial(continuous, mapping="identity"),
    "kernel_point": kernel_points,
    "kernel_point_gaussian": functools.partial(kernel_points, influence="gaussian"),
    "kernel_point_deformable": functools.partial(kernel_points, deformable=True),
    "kernel_point_penalty": penalty,
    "point": point,
    "point_density": density,
}
# With a norm, or the seams of a mapping, where a query lies on a point.
KINKED = tuple(name for name in CASES if name.startswith(("continuous", "kernel_point")))
