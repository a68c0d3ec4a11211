"""Rows chosen by a mask, and a mean over them."""

import jax.numpy as jnp
import numpy as np

VERDICT = "bounded dynamic"


def model(scores, boxes):
    keep = scores > 0.5
    chosen = boxes[keep]  # expect: VX105
    return chosen, jnp.mean(scores[keep])  # expect: VX105


def inputs():
    return np.array([0.2, 0.7, 0.9], np.float32), np.ones((3, 4), np.float32)
