"""Splitting, reducing and naming by shapes."""

import functools

import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x):
    parts = jnp.split(x, 2)
    total = functools.reduce(jnp.add, parts)
    names = {f"p{i}_{p.shape[0]}": p for i, p in enumerate(parts)}
    ordered = [names[k] for k in sorted(names)]
    return total, jnp.stack(ordered), jnp.asarray([p.size for p in parts])


def inputs():
    return (np.arange(4, dtype=np.float32),)
