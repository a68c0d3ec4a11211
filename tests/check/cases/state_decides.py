"""A field of the state, handed on, decides."""

import dataclasses

import jax
import jax.numpy as jnp

VERDICT = "not static"


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    x: jax.Array
    step: jax.Array


def model(state):
    if state.step % 10 == 0:  # expect: VX101
        return State(state.x * 0.5, state.step + 1)
    return State(state.x, state.step + 1)


def inputs():
    return (State(jnp.ones(3), jnp.int32(1)),)
