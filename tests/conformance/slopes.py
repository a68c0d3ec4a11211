"""Gradients against loops, without finite differences.

A convolution is affine in its features and in each of its weights. So the reference also gives
its derivative along a direction, exactly: a difference of two values.
"""

import jax
import jax.numpy as jnp
import numpy as np

from conformance.cases import as_function, is_weight
from conformance.layouts import BATCH_SIZE
from oracle.sites import Sites

_TOLERANCE = {"float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11, "float64": 1e-13}
"""On the error along a random direction, as a part of the gradient's length times its own. In half
precision that is what rounding the result once may amount to: half a unit in the last place."""


def check_slopes(operator, case, expected, out, algorithm):
    """All first derivatives of one case, under a cotangent whose padding rows hold NaN.

    Args:
      operator: affine in its features and in each weight.
      case: what ``make_inputs`` returned.
      expected: the reference's sites.
      out: the library's voxels.
      algorithm: the pin.
    """
    voxels, params, sites, exact = case
    dtype = voxels.features.dtype
    apply, features, weights = as_function(operator, voxels, params, algorithm)
    rng = np.random.default_rng(2)
    cotangent = jnp.asarray(rng.normal(size=out.features.shape), dtype)
    poisoned = jnp.where(out.valid[:, None], cotangent, jnp.asarray(jnp.nan, dtype))
    slope, weight_slopes = jax.vjp(apply, features, weights)[1](poisoned)
    slope = _wide(slope)
    assert (slope[int(voxels.count) :] == 0).all(), "padding rows must have no gradient"

    by_site = dict(zip(sorted(expected), _wide(cotangent), strict=False))

    def change(sites, exact):
        moved = operator.reference(sites, exact, BATCH_SIZE)
        return sum(by_site[site] @ (moved[site] - expected[site]) for site in expected)

    step = rng.normal(size=(len(sites), operator.channels))
    moved = {site: sites[site] + v for site, v in zip(sorted(sites), step, strict=True)}
    along = change(Sites(moved, sites.ndim, sites.channels), exact)
    _check(slope[: len(sites)], step, along, dtype.name)
    for name, value in params.items():
        if is_weight(value):
            step = rng.normal(size=value.shape)
            along = change(sites, {**exact, name: exact[name] + step})
            _check(_wide(weight_slopes[name]), step, along, dtype.name)


def _wide(array):
    return np.asarray(array).astype(np.float64)


def _check(slope, step, along, dtype):
    scale = np.linalg.norm(slope) * np.linalg.norm(step)
    assert abs(np.sum(slope * step) - along) <= _TOLERANCE[dtype] * max(scale, 1e-30)
