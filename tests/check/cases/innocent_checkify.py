"""Errors of checkify are values of the program; their numbers differ from trace to trace."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

VERDICT = "static"


def checked(x):
    checkify.check(jnp.all(x < 9), "too large: {most}", most=x.max())
    return jax.lax.map(rooted, x)


def rooted(value):
    checkify.check(value >= 0, "negative: {value}", value=value)
    return jnp.sqrt(value)


def model(x):
    error, result = checkify.checkify(checked)(x)
    again, total = checkify.checkify(jnp.log, errors=checkify.all_checks)(result.sum())
    return error, result, again, total


def inputs():
    return (np.array([1.0, 4.0, 2.0], np.float32),)
