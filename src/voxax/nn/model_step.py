"""Turn a model into a pure function that computes one evaluation or training step."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry.voxels import Voxels


@dataclasses.dataclass(frozen=True)
class Step:
    """One evaluation or training step: a pure function and all its arguments except the voxels.

    Attributes:
      call: the function, called as ``call(*state, *fresh, voxels)``.
      state: parameters and other variables of the model, with their values.
      fresh: shapes and dtypes of the optimizer's state, without values; empty without an optimizer.
    """

    call: Callable[..., Any]
    state: tuple[Any, ...]
    fresh: tuple[Any, ...] = ()

    def arguments(self, voxels: Any) -> tuple[Any, ...]:
        return (*self.state, *self.fresh, voxels)


def step_of(
    model: Callable[..., Any], params: Any, training: bool, optimizer: Any, loss: Any
) -> Step:
    """Return the evaluation or training step of a model. Arguments as in :func:`voxax.fits`.

    A training step computes the loss, its gradients and, with an optimizer, the new parameters.

    Raises:
      InputError: there are no parameters to train, or the optimizer has no ``init`` or ``update``.
    """
    if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise InputError(
            f"optimizer={optimizer!r:.80} has no init and update: give one of optax, such as "
            "optax.adam(1e-3)"
        )
    call, weights, rest = _functional(model, params, training)
    if not training:
        return Step(lambda w, r, v: call(w, r, v)[0], (weights, rest))
    if not jax.tree.leaves(weights):
        raise InputError(
            "training=True needs parameters to differentiate by: give a flax.nnx module, or "
            "model(params, voxels) with params="
        )
    measure = _mean_square if loss is None else loss

    def gradients(w: Any, r: Any, v: Voxels) -> Any:
        def of(w: Any) -> tuple[jax.Array, Any]:
            out, new_rest = call(w, r, v)
            return measure(out), (new_rest, out)

        return jax.value_and_grad(of, has_aux=True, allow_int=True)(w)

    if optimizer is None:
        return Step(gradients, (weights, rest))

    def update(w: Any, r: Any, state: Any, v: Voxels) -> Any:
        value, grads = gradients(w, r, v)
        updates, state = optimizer.update(grads, state, w)
        return jax.tree.map(lambda a, u: a + u.astype(a.dtype), w, updates), state, value

    return Step(update, (weights, rest), (jax.eval_shape(optimizer.init, weights),))


def _functional(model: Any, params: Any, training: bool) -> tuple[Any, Any, Any]:
    """Return ``(call, weights, rest)``, with ``call(weights, rest, voxels) -> (output, new rest)``.

    For a flax.nnx module, ``weights`` are its parameters and ``rest`` its other variables. A copy
    of the module is called, in training or evaluation mode. For another model, ``rest`` is empty.
    It is called as ``model(weights, voxels)``, where ``weights`` are ``params``. If ``params`` is
    None, it is called as ``model(voxels)``, and ``weights`` are empty. flax is not imported here.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(model, nnx.Module):
        if params is not None:
            raise InputError("a flax.nnx module brings its own parameters: leave params= out")
        graph, weights, rest = nnx.split(model, nnx.Param, ...)

        def call(w: Any, r: Any, v: Voxels) -> tuple[Any, Any]:
            module = nnx.merge(graph, w, r, copy=True)
            module.train() if training else module.eval()
            out = module(v)
            return out, nnx.split(module, nnx.Param, ...)[2]

        return call, weights, rest
    if params is not None:
        return lambda w, _, v: (model(w, v), ()), params, ()
    return lambda w, _, v: (model(v), ()), (), ()


def _mean_square(out: Any) -> jax.Array:
    """Return a scalar loss, the sum of the mean squares of all float arrays in ``out``.

    ``out`` is the model's output: Voxels, whose features are taken, or a tree of arrays.
    """
    features = out.features if isinstance(out, Voxels) else out
    leaves = [x for x in jax.tree.leaves(features) if jnp.issubdtype(x.dtype, jnp.floating)]
    parts = [jnp.mean(jnp.square(x.astype(jnp.float32))) for x in leaves]
    return jnp.sum(jnp.stack(parts)) if parts else jnp.zeros((), jnp.float32)
