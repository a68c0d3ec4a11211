"""Optimizers that treat parts of a network differently, and averages of its parameters.

A part is named by its attribute path: ``head``, ``down.0``, ``down_blocks.1.0.first``.

Source of the average: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging",
SIAM J. Control Optim. 1992. The weights here are exponential, as in most training programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from voxax.errors import InputError, listed


def part_of(path: Sequence[Any], parts: Iterable[str]) -> str | None:
    """Return the name of the innermost part that contains a parameter; None if no part does.

    Args:
      path: path of the parameter, as keys of ``jax.tree_util``.
      parts: names of the parts to choose from, such as ``head`` or ``down.0``.
    """
    name = ".".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
    inside = [part for part in parts if f"{name}.".startswith(f"{part}.")]
    return max(inside, key=len, default=None)


def check_parts(model: nnx.Module, parts: Iterable[str]) -> None:
    """Check that each named part exists in a network and has parameters.

    Args:
      model: the network, which may come from ``nnx.eval_shape``.
      parts: names of parts.

    Raises:
      InputError: a part has no parameters; the message names it and the parts that exist.
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(nnx.state(model, nnx.Param))]
    for part in parts:
        if not any(part_of(path, [part]) for path in paths):
            known = dict.fromkeys(str(getattr(path[0], "key", path[0])) for path in paths)
            raise InputError(
                f"{part!r} is no part of {type(model).__name__} with parameters: its parts are "
                f"{listed(known)}, and those inside of them, as {_example(paths)!r}"
            )


def _example(paths: list[Any]) -> str:
    longest = max(paths, key=len)
    return ".".join(str(getattr(key, "key", key)) for key in longest[:2])


def by_part(
    parts: Mapping[str, optax.GradientTransformation], rest: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Return an optimizer that updates each part of a network by the part's own optimizer.

    Args:
      parts: optimizers by the name of the part. If one part contains another, the inner part's
        optimizer updates the inner part.
      rest: optimizer of all other parameters.
    """

    def labels(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: part_of(path, parts) or "", params)

    return optax.multi_transform({"": rest, **parts}, labels)


class AverageState(NamedTuple):
    """State of :func:`averaged`.

    Attributes:
      inner: state of the wrapped optimizer.
      total: weighted sum of the parameters after each update.
      weight: ``float32[]``, the sum of the weights.
    """

    inner: Any
    total: Any
    weight: jax.Array


def averaged(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """Wrap an optimizer so that its state also keeps an exponential average of the parameters.

    An update gives the newest parameters the weight ``1 - decay``, and multiplies the weights of
    earlier parameters by ``decay``. The initial parameters do not count. Trainers use the averaged
    parameters for evaluation.

    Args:
      optimizer: an optax transformation.
      decay: factor on earlier weights, from 0 to below 1.

    Raises:
      InputError: ``decay`` is out of range.
    """
    if not 0 <= decay < 1:
        raise InputError(f"decay={decay} must be at least 0 and below 1, such as 0.999")

    def init(params: Any) -> AverageState:
        total = jax.tree.map(jnp.zeros_like, params)
        return AverageState(optimizer.init(params), total, jnp.zeros((), jnp.float32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AverageState]:
        updates, inner = optimizer.update(updates, state.inner, params)
        new = optax.apply_updates(params, updates)
        total = optax.incremental_update(new, state.total, 1 - decay)
        weight = decay * state.weight + (1 - decay)
        return updates, AverageState(inner, total, weight)

    return optax.GradientTransformation(init, update)


def average_in(optimizer_state: Any, params: Any) -> Any:
    """Return the averaged parameters in an optimizer's state; ``params`` if it has no average.

    Args:
      optimizer_state: state of an optimizer that may contain :func:`averaged`.
      params: the current parameters.
    """
    found = jax.tree.leaves(optimizer_state, is_leaf=lambda x: isinstance(x, AverageState))
    for state in found:
        if isinstance(state, AverageState):
            return _average(state.total, state.weight, params)
    return params


@jax.jit
def _average(total: Any, weight: jax.Array, params: Any) -> Any:
    scale = 1 / jnp.maximum(weight, jnp.finfo(jnp.float32).tiny)

    def of(summed: jax.Array, now: jax.Array) -> jax.Array:
        return jnp.where(weight > 0, summed * scale.astype(summed.dtype), now)

    return jax.tree.map(of, total, params)
