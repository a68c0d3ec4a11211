"""Inputs of one case, rounded alike for the library and for the reference."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np

import voxax as vx
from conformance.layouts import BATCH_SIZE, CAPACITY, make_case
from oracle import check_sites, make_sites

TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3, "float64": 1e-12}
"""On the largest difference over the largest expected value."""


def wide_types(dtype):
    """float64 exists only inside ``jax.enable_x64``."""
    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def is_weight(value):
    return jnp.issubdtype(value.dtype, jnp.floating)


def make_inputs(operator, ndim, dtype, layout, poison=jnp.nan):
    """``(voxels, params, sites, params in float64)``; padding features hold ``poison``."""
    rows, features = make_case(layout, ndim, operator.channels)
    made = operator.params(np.random.default_rng(1), ndim, operator.channels)
    params = {
        name: jnp.asarray(value, dtype if is_weight(np.asarray(value)) else None)
        for name, value in made.items()
    }
    voxels = vx.Voxels.from_coords(
        rows, jnp.asarray(features, dtype), BATCH_SIZE, capacity=CAPACITY
    )
    sites = make_sites(rows, np.asarray(jnp.asarray(features, dtype)).astype(np.float64))
    check_sites(voxels, sites, TOLERANCE[dtype])
    # Duplicates were averaged, and that rounded: from here on no fault of the operator.
    for site, value in zip(sorted(sites), np.asarray(voxels.features), strict=False):
        sites[site] = value.astype(np.float64)
    exact = {
        name: np.asarray(value).astype(np.float64) if is_weight(value) else np.asarray(value)
        for name, value in params.items()
    }
    poisoned = jnp.where(voxels.valid[:, None], voxels.features, jnp.asarray(poison, dtype))
    return vx.Voxels(voxels.geometry, poisoned), params, sites, exact


def run(operator, voxels, params, algorithm=None):
    pins = {} if algorithm is None else {"fwd_algo": algorithm, "bwd_algo": algorithm}
    return operator.run(voxels, params, **pins)


def as_function(operator, voxels, params, algorithm=None):
    """``(f(features, weights) -> array, features, weights)``: the differentiable part."""
    weights = {name: value for name, value in params.items() if is_weight(value)}
    others = {name: value for name, value in params.items() if not is_weight(value)}

    def apply(features, weights):
        out = run(operator, vx.Voxels(voxels.geometry, features), {**others, **weights}, algorithm)
        return out.features if isinstance(out, vx.Voxels) else out

    return apply, voxels.features, weights
