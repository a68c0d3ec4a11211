"""A parameter decides which layers run."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

VERDICT = "not static"


class Net(nnx.Module):
    def __init__(self, rngs):
        self.gate = nnx.Param(jnp.zeros(()))
        self.linear = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        if self.gate[...] > 0:  # expect: VX101
            return self.linear(x)
        return x


model = Net(nnx.Rngs(0))


def inputs():
    return (np.ones((4, 3), np.float32),)
