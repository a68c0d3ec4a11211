"""Convolutions over neighbouring points against their definitions, neighbour by neighbour."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle import point_operators as oracle
from oracle.derivatives import check_derivatives
from samples import slow_unless
from voxax.errors import InputError
from voxax.geometry import radius_search
from voxax.nn.functional import (
    continuous_conv,
    kernel_point_conv,
    kernel_point_penalty,
    kernel_point_positions,
    neighbor_conv,
    point_conv,
    point_density,
)

POINTS, QUERIES, RADIUS = 23, 11, 1.2


class Clouds:
    """Points and queries of two scenes with padding, and what is around each query."""

    def __init__(self, rng, ndim=3):
        self.p = rng.uniform(-1, 1, (POINTS, ndim))
        # One query on a point, and one that is alone.
        self.q = np.concatenate([self.p[:1], rng.uniform(-1, 1, (QUERIES - 2, ndim))])
        self.q = np.concatenate([self.q, np.full((1, ndim), 9.0)])
        self.x = rng.standard_normal((POINTS, 3))
        self.sides = [rng.integers(0, 2, n) for n in (POINTS, QUERIES)]
        self.sides[1][0] = self.sides[0][0]
        points, queries = self.made(self.p, self.x, self.q, np.float32)
        self.found = radius_search(points, queries, radius=RADIUS, capacity=POINTS)
        self.lists = [row[row >= 0] for row in np.asarray(self.found.rows)[:QUERIES]]

    def made(self, p, x, q, dtype=None):
        """With garbage in the padding rows."""

        def cloud(positions, features, side):
            def pad(array):
                array = jnp.asarray(array, dtype)
                garbage = jnp.full((2, *array.shape[1:]), jnp.nan, array.dtype)
                return jnp.concatenate([array, garbage])

            scenes = jnp.asarray([*side, 0, 0], jnp.int32)
            count = jnp.asarray(len(side), jnp.int32)
            return vx.Points(pad(positions), scenes, pad(features), count, 2)

        return cloud(p, x, self.sides[0]), cloud(q, jnp.zeros_like(q[:, :1]), self.sides[1])


def continuous(r, ndim=3, mapping="volume_preserving", normalize=False):
    c = Clouds(r, ndim)
    v = {"p": c.p, "x": c.x, "q": c.q, "w": r.standard_normal((*(4, 3, 2)[:ndim], 3, 5))}
    options = {"mapping": mapping, "normalize": normalize}

    def run(v):
        points, queries = c.made(v["p"], v["x"], v["q"])
        y = continuous_conv(points, v["w"], c.found, queries, radius=RADIUS, **options)
        return y.features[:QUERIES]

    def want(v):
        return oracle.continuous_conv(
            v["p"], v["x"], v["w"], c.lists, v["q"], RADIUS, mapping, normalize
        )

    return v, run, want


def kernel_points(r, deformable=False, influence="linear"):
    c = Clouds(r)
    v = {
        "p": c.p,
        "x": c.x,
        "q": c.q,
        "w": r.standard_normal((4, 3, 5)),
        "nodes": r.uniform(-0.8, 0.8, (4, 3)),
    }
    if deformable:
        v |= {
            "offsets": r.uniform(-0.3, 0.3, (QUERIES, 4, 3)),
            "factors": r.standard_normal((QUERIES, 4)),
        }

    def run(v):
        points, queries = c.made(v["p"], v["x"], v["q"])
        moves = {}
        if deformable:
            pad = [(0, 2), (0, 0)]
            moves["offsets"] = jnp.pad(v["offsets"], [*pad, (0, 0)])
            moves["modulation"] = jnp.pad(v["factors"], pad)
        y = kernel_point_conv(
            points, v["w"], c.found, v["nodes"], queries, extent=0.7, influence=influence, **moves
        )
        return y.features[:QUERIES]

    def want(v):
        moves = (v.get("offsets"), v.get("factors"), influence)
        return oracle.kernel_point_conv(
            v["p"], v["x"], v["w"], c.lists, v["q"], v["nodes"], 0.7, *moves
        )

    return v, run, want


def point(r):
    c = Clouds(r)
    v = {
        "p": c.p,
        "x": c.x,
        "q": c.q,
        "w": r.standard_normal((4, 3, 5)),
        "net": r.standard_normal((3, 4)),
        "scale": r.standard_normal(1),
        "density": r.uniform(0.5, 3, POINTS),
    }

    def run(v):
        points, queries = c.made(v["p"], v["x"], v["q"])
        y = point_conv(
            points,
            v["w"],
            c.found,
            lambda places: jnp.tanh(places @ v["net"]),
            queries,
            density=jnp.pad(v["density"], (0, 2)),
            density_net=lambda s: jnp.sin(s * v["scale"].reshape(1, 1, 1)),
        )
        return y.features[:QUERIES]

    def want(v):
        return oracle.point_conv(
            v["p"],
            v["x"],
            v["w"],
            c.lists,
            v["q"],
            lambda place: np.tanh(place @ v["net"]),
            v["density"],
            lambda s: np.sin(s * v["scale"]),
        )

    return v, run, want


OPERATORS = {
    "continuous": continuous,
    "continuous_2d_normalized": lambda r: continuous(r, 2, normalize=True),
    "continuous_1d": lambda r: continuous(r, 1),
    "continuous_radial": lambda r: continuous(r, mapping="radial"),
    "continuous_identity": lambda r: continuous(r, mapping="identity"),
    "kernel_point": kernel_points,
    "kernel_point_gaussian": lambda r: kernel_points(r, influence="gaussian"),
    "kernel_point_deformable": lambda r: kernel_points(r, deformable=True),
    "point": point,
}
MAIN = ("continuous", "kernel_point_deformable", "point")


def cast(values, dtype):
    return {key: jnp.asarray(value, dtype) for key, value in values.items()}


@pytest.mark.parametrize("name", [slow_unless(n in MAIN[1:], n) for n in OPERATORS])
def test_exact(name, rng, monkeypatch):
    # Several blocks of queries, the last one with padding.
    monkeypatch.setattr(neighbor_conv, "_BLOCK", 1000)
    values, run, want = OPERATORS[name](rng)
    with jax.enable_x64(True):
        y = jax.jit(run)(cast(values, jnp.float64))
    assert y.dtype == np.float64
    assert not y[-1].any()
    np.testing.assert_allclose(y, want(values), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN[1:])
def test_float32(name, rng):
    values, run, want = OPERATORS[name](rng)
    rounded = {k: np.asarray(v, np.float64) for k, v in cast(values, jnp.float32).items()}
    expected = want(rounded)
    y = jax.jit(run)(cast(values, jnp.float32))
    np.testing.assert_allclose(y, expected, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["continuous", "kernel_point_deformable", "point"])
def test_derivatives(name, rng):
    """Of features, weights, kernel points, offsets, networks and both positions."""
    values, run, _ = OPERATORS[name](rng)
    if name.startswith(("continuous", "kernel_point")):
        # At a distance of zero norms have a kink, and the mapping one on diagonals.
        values["q"] = values["q"] + np.array([0.01, 0.02, -0.05])[: values["q"].shape[1]]
    with jax.enable_x64(True):
        check_derivatives(run, values, rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN)
def test_lowers_and_slopes_are_finite(name, rng):
    """Also where a query lies on a point or is alone, and with garbage in the padding."""
    values, run, _ = OPERATORS[name](rng)
    values = cast(values, jnp.float32)
    step = jax.jit(jax.grad(lambda v: jnp.sum(run(v) ** 2)))
    jax.export.export(step, platforms=["tpu", "cuda"])(values)
    assert all(np.isfinite(leaf).all() for leaf in step(values).values())


@pytest.mark.slow
def test_penalty(rng):
    c = Clouds(rng)
    nodes, offsets = rng.uniform(-0.8, 0.8, (4, 3)), rng.uniform(-0.3, 0.3, (QUERIES, 4, 3))
    points, queries = c.made(c.p, c.x, c.q, jnp.float32)
    got = kernel_point_penalty(
        points,
        c.found,
        jnp.asarray(nodes, jnp.float32),
        jnp.asarray(np.pad(offsets, [(0, 2), (0, 0), (0, 0)]), jnp.float32),
        queries,
        extent=0.7,
    )
    want = oracle.kernel_point_penalty(c.p, c.lists, c.q, nodes, offsets, 0.7)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.slow
def test_density(rng):
    p = rng.uniform(-1, 1, (30, 2)).astype(np.float32)
    points = vx.Points.make(p, capacity=32)
    found = radius_search(points, radius=3.0, capacity=30)
    got = point_density(points, found, bandwidth=0.3)
    squares = ((p[:, None] - p[None]) ** 2).sum(-1)
    want = (np.exp(-squares / 0.18) / (2 * np.pi * 0.09)).sum(1)
    np.testing.assert_allclose(got[:30], want, rtol=1e-5)
    np.testing.assert_array_equal(got[30:], 0)


@pytest.mark.parametrize(("number", "ndim"), [(15, 3), (7, 2), (5, 1), (1, 3)])
def test_kernel_points_are_spread(number, ndim):
    places = kernel_point_positions(number, ndim, radius=1.5)
    assert places.shape == (number, ndim)
    np.testing.assert_array_equal(places[0], 0)
    np.testing.assert_array_equal(places, kernel_point_positions(number, ndim, radius=1.5))
    if number > 1:
        assert np.linalg.norm(places[1:], axis=1).mean() == pytest.approx(1.5)
        apart = np.linalg.norm(places[:, None] - places[None], axis=-1) + 9 * np.eye(number)
        # Of 14 places on a sphere the nearest are 0.93 radii apart at best (Tammes' problem).
        assert apart.min() > 1.5 * {3: 0.75, 2: 0.8, 1: 0.3}[ndim]


def test_refused(rng):
    c = Clouds(rng)
    points, queries = c.made(c.p, c.x, c.q, jnp.float32)
    w = jnp.ones((4, 3, 5))
    with pytest.raises(InputError, match="expected \\[\\*T, C, C_out\\] with 3 sizes"):
        continuous_conv(points, w, c.found, queries, radius=1.0)
    with pytest.raises(InputError, match="known: volume_preserving, radial, identity"):
        continuous_conv(points, w[None, None], c.found, queries, radius=1.0, mapping="polar")
    with pytest.raises(InputError, match="search with these points and queries"):
        kernel_point_conv(points, w, c.found, jnp.ones((4, 3)), extent=1.0)
    with pytest.raises(InputError, match="kernel_points of shape"):
        kernel_point_conv(points, w, c.found, jnp.ones((3, 3)), queries, extent=1.0)
    with pytest.raises(InputError, match="weight_net returned"):
        point_conv(points, w, c.found, lambda p: p, queries)
    with pytest.raises(InputError, match="weight of shape"):
        point_conv(points, w[:, :2], c.found, lambda p: p, queries)
