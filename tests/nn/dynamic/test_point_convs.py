"""Convolutions over neighboring points at their limits, kernel points, and errors.

Against their definitions, with derivatives and in one program: test_dynamic_cases.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynamic_cases import CASES, cast, is_float
from dynamic_cases.points import around, clouds, made
from voxax.errors import InputError
from voxax.nn.functional import continuous_conv, kernel_point_conv, kernel_point_positions

MAIN = ("continuous", "kernel_point_deformable", "point")


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN)
def test_slopes_are_finite(name, rng):
    """Check order two, also for a query on a point or alone, and with garbage in padding."""
    values, run, _ = CASES[name](rng)
    values = cast(values, jnp.float32)
    held = {key: value for key, value in values.items() if is_float(value)}

    @jax.jit
    def slopes(held):
        gradient = jax.grad(lambda held: jnp.sum(run({**values, **held}) ** 2))
        return jax.jvp(gradient, (held,), (held,))

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes(held)))


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
    values = clouds(rng)
    points, queries = made(values, jnp.float32)
    found = around(values)
    w = jnp.ones((4, 3, 5))
    with pytest.raises(InputError, match="expected \\[\\*T, C, C_out\\] with 3 sizes"):
        continuous_conv(points, w, found, queries, radius=1.0)
    with pytest.raises(InputError, match="known: volume_preserving, radial, identity"):
        continuous_conv(points, w[None, None], found, queries, radius=1.0, mapping="polar")
    with pytest.raises(InputError, match="search with these points and queries"):
        kernel_point_conv(points, w, found, jnp.ones((4, 3)), extent=1.0)
    with pytest.raises(InputError, match="kernel_points of shape"):
        kernel_point_conv(points, w, found, jnp.ones((3, 3)), queries, extent=1.0)
    with pytest.raises(InputError, match="weight of shape"):
        kernel_point_conv(points, w[:, :2], found, jnp.ones((4, 3)), queries, extent=1.0)
