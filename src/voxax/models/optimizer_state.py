"""The state that an optimizer begins with, without a program for each array."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax

from voxax import _compat


def initial_state(optimizer: optax.GradientTransformation, params: Any) -> Any:
    """Return ``optimizer.init(params)``; constants, as most optimizers begin with, cost no program.

    Run eagerly, ``init`` compiles a program for every shape of parameters, and another for every
    constant: 32 for AdamW and a MinkUNet18.

    Args:
      optimizer: an optax transformation.
      params: a pytree of arrays.
    """
    program, shapes = jax.make_jaxpr(optimizer.init, return_shape=True)(params)
    leaves, tree = jax.tree.flatten(shapes)
    values = _compat.constants_of(program)
    if values is None or any(
        not p.is_fully_addressable or len(p.devices()) > 1 for p in jax.tree.leaves(params)
    ):
        return jax.jit(optimizer.init)(params)
    made = [
        jax.device_put(np.full(leaf.shape, value, leaf.dtype))
        for leaf, value in zip(leaves, values, strict=True)
    ]
    return jax.tree.unflatten(tree, made)
