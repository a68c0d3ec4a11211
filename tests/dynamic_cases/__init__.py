"""Every dynamic operator as a function of its arrays, beside its definition in NumPy.

A case is made by ``CASES[name](rng) -> (values, run, want)``. ``values`` is a dict with everything
that may change from call to call: float arrays, in which the operator has gradients, and integers
and geometries, in which it has none. ``run(values)`` is the operator and ``want(values)`` the same
in float64, position by position. Two cases of one name have the same shapes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from dynamic_cases import grid, named, points, voxels

CASES = {**grid.CASES, **named.CASES, **points.CASES, **voxels.CASES}


def is_float(value):
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def cast(values, dtype):
    """Float arrays of another dtype, the rest as it is."""
    return {
        name: jnp.asarray(value, dtype) if is_float(value) else value
        for name, value in values.items()
    }


def widened(values):
    """Return the arguments for the definition: float64, in NumPy."""
    return {
        name: np.asarray(value, np.float64) if is_float(value) else value
        for name, value in values.items()
    }


def smooth(name, values):
    """Away from what has no derivative: a query on a point, and the seams of a ball's mapping."""
    if name in points.KINKED:
        step = np.array([0.01, 0.02, -0.05])[: values["q"].shape[1]]
        return {**values, "q": values["q"] + step}
    return values


def slopes(run):
    """The gradient of the sum of squares by every float array of the values, as a function."""

    def gradient(values):
        held = {key: value for key, value in values.items() if is_float(value)}
        return jax.grad(lambda held: jnp.sum(run({**values, **held}) ** 2))(held)

    return gradient
