"""Python calls of traced layers, as JSON; run in a process of its own.

CPython 3.11 hangs where a profile function is set in a process that has run for long.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import voxax as vx
from samples import make_voxels
from voxax.nn.modules import BatchNorm, ReLU, Sequential, SubMConv3d


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


def counts() -> dict[str, int]:
    rngs = nnx.Rngs(0)
    convolution = SubMConv3d(32, 32, 3, rngs=rngs)
    larger = Sequential(*(SubMConv3d(32, 32, size) for size in (1, 2, 3, 5)))
    planned, with_more = (vx.plan(model, cube()) for model in (convolution, larger))

    def added_by_second(planned: vx.Voxels) -> int:
        once, twice = (python_calls(Sequential(*[ReLU()] * n), planned) for n in (1, 2))
        return twice - once

    dense = nnx.Conv(32, 32, (3, 3, 3), rngs=rngs)
    return {
        "relu": python_calls(ReLU(), planned),
        "jax.nn.relu": python_calls(jax.nn.relu, planned.features),
        "SubMConv3d": python_calls(convolution, planned),
        "nnx.Conv": python_calls(dense, jnp.zeros((1, 6, 6, 6, 32))),
        "BatchNorm": python_calls(BatchNorm(32), planned),
        "nnx.BatchNorm": python_calls(nnx.BatchNorm(32, rngs=rngs), jnp.zeros((216, 32))),
        "another layer": added_by_second(planned),
        "another layer, more maps": added_by_second(with_more),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(counts()))
