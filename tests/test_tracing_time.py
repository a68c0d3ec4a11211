"""Tracing a network takes time in proportion to its length."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from samples import make_voxels
from voxax.nn.modules import BatchNorm, ReLU, Sequential, SubMConv3d


def test_no_tracer_is_asked_for_its_sharding(monkeypatch):
    """It has none, and the message that says so costs a pass over all of the program so far."""
    asked = []

    def sharding(tracer):
        asked.append(tracer)
        raise AttributeError("sharding")

    layers = Sequential(SubMConv3d(3, 4, 3), BatchNorm(4), ReLU())
    layers.eval()
    voxels = make_voxels(np.unique(np.indices((1, 4, 4, 4)).reshape(4, -1).T, axis=0))
    monkeypatch.setattr(jax.core.Tracer, "sharding", property(sharding))
    jax.eval_shape(
        jax.grad(lambda x: layers(voxels.replace_features(x)).features.sum()), voxels.features
    )
    assert not asked


def python_calls(function: Callable[..., Any], *args: Any) -> int:
    """Calls of Python functions while ``function(*args)`` is traced, modules as arguments too.

    The first trace also fills the caches of JAX: the second one counts.
    """
    graph, state = nnx.split(function) if isinstance(function, nnx.Module) else (None, None)
    number = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal number
        number += event == "call"

    def counted(state: Any, *args: Any) -> Any:
        nonlocal number
        callee = function if graph is None else nnx.merge(graph, state)
        number, before = 0, sys.getprofile()
        sys.setprofile(count)
        try:
            return callee(*args)
        finally:
            sys.setprofile(before)

    for _ in range(2):
        jax.eval_shape(lambda *given: counted(*given), state, *args)
    return number


def cube(channels: int = 32) -> vx.Voxels:
    coords = np.unique(np.indices((1, 6, 6, 6)).reshape(4, -1).T, axis=0)
    return make_voxels(coords, channels=channels)


@pytest.fixture(scope="module")
def convolution():
    return SubMConv3d(32, 32, 3, rngs=nnx.Rngs(0))


def test_a_traced_relu_makes_few_calls(convolution):
    planned = vx.plan(convolution, cube())
    assert python_calls(ReLU(), planned) <= 2 * python_calls(jax.nn.relu, planned.features)


def test_a_traced_convolution_makes_few_calls(convolution):
    dense = nnx.Conv(32, 32, (3, 3, 3), rngs=nnx.Rngs(0))
    theirs = python_calls(dense, jnp.zeros((1, 6, 6, 6, 32)))
    assert python_calls(convolution, vx.plan(convolution, cube())) <= 2 * theirs


def test_a_traced_norm_makes_few_calls(convolution):
    theirs = python_calls(nnx.BatchNorm(32, rngs=nnx.Rngs(0)), jnp.zeros((216, 32)))
    assert python_calls(BatchNorm(32), vx.plan(convolution, cube())) <= 2 * theirs


def test_attached_maps_are_looked_at_once(convolution):
    """Each layer of a network gets all maps of the plan."""

    def added_by_second(planned: vx.Voxels) -> int:
        once, twice = (python_calls(Sequential(*[ReLU()] * n), planned) for n in (1, 2))
        return twice - once

    larger = Sequential(*(SubMConv3d(32, 32, size) for size in (1, 2, 3, 5)))
    small, large = (added_by_second(vx.plan(model, cube())) for model in (convolution, larger))
    assert small == large
