"""Python containers that are walked through while tracing; None and is."""

import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(parameters, x, mask=None):
    for name in sorted(parameters):
        layer = parameters[name]
        x = x @ layer["w"] + layer["b"] if "b" in layer else x @ layer["w"]
    if mask is not None:
        x = jnp.where(mask, x, 0)
    return {"out": x, "rows": [row * 2 for row in x]}


def inputs():
    layer = {"w": np.eye(3, dtype=np.float32), "b": np.zeros(3, np.float32)}
    return {"1": layer, "2": {"w": layer["w"]}}, np.ones((2, 3), np.float32)
