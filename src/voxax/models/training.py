"""Training a voxel classifier: one jitted step over static shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from voxax.errors import CapacityError, InputError
from voxax.geometry import Voxels


def masked_cross_entropy(
    logits: jax.Array,
    labels: jax.Array,
    class_weights: jax.Array | None = None,
    axis_name: str | tuple[str, ...] | None = None,
) -> jax.Array:
    """Return the mean softmax cross entropy over rows with ``labels >= 0``; 0 if there is none.

    Args:
      logits: ``[N, classes]``.
      labels: ``int32[N]``; negative rows (padding, unlabeled) do not count.
      class_weights: ``float32[classes]`` or None.
      axis_name: also the mean over this mapped axis, each of whose places counts by its rows.

    Raises:
      InputError: other shapes.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise InputError(
            f"labels of shape {list(labels.shape)} for logits of shape {list(logits.shape)}: give "
            "[N] and [N, classes]"
        )
    known = labels >= 0
    safe = jnp.where(known, labels, 0)
    rows = jnp.where(known[:, None], logits.astype(jnp.float32), 0.0)
    loss = optax.softmax_cross_entropy_with_integer_labels(rows, safe)
    weight = known.astype(jnp.float32)
    if class_weights is not None:
        weight = weight * class_weights[safe]
    total, number = jnp.sum(loss * weight), jnp.sum(weight)
    if axis_name is not None:
        total, number = jax.lax.psum((total, number), axis_name)
    return total / jnp.maximum(number, 1e-6)


class Trainer:
    """A module, its optimizer state, and the jitted steps on them.

    The module is kept split (parameters, other state): ``nnx.split`` and ``merge`` inside
    one ``jax.jit`` cost a fifth of ``nnx.jit`` per step on small networks.

    Args:
      model: a module from Voxels to Voxels of logits.
      optimizer: an optax transformation.
      class_weights: ``float[classes]`` or None.
      axis_name: the mapped axis over which loss and lost rows are added up, for programs that
        run on several devices; see :class:`voxax.parallel.DataParallelTrainer`.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: optax.GradientTransformation,
        class_weights: np.ndarray | None = None,
        *,
        axis_name: str | tuple[str, ...] | None = None,
    ) -> None:
        model.train()
        self._train_graph, self.params, self.state = nnx.split(model, nnx.Param, ...)
        model.eval()
        self._eval_graph = nnx.split(model, nnx.Param, ...)[0]
        model.train()
        self.optimizer_state = optimizer.init(self.params)
        self.steps = 0
        self.programs = 0
        weights = None if class_weights is None else jnp.asarray(class_weights, jnp.float32)

        def everywhere(numbers: Any) -> Any:
            return numbers if axis_name is None else jax.lax.psum(numbers, axis_name)

        def train(params: Any, state: Any, opt: Any, voxels: Voxels, labels: jax.Array) -> Any:
            self.programs += 1  # runs while tracing: once per compiled program

            def loss_of(params: Any) -> tuple[jax.Array, tuple[Any, jax.Array, jax.Array]]:
                module = nnx.merge(self._train_graph, params, state, copy=True)
                out = module(voxels)
                new_state = nnx.split(module, nnx.Param, ...)[2]
                loss = masked_cross_entropy(out.features, labels, weights, axis_name)
                dropped = everywhere(out.num_dropped)
                return loss, (new_state, jnp.argmax(out.features, axis=-1), dropped)

            (loss, (new_state, prediction, dropped)), grads = jax.value_and_grad(
                loss_of, has_aux=True
            )(params)
            updates, opt = optimizer.update(grads, opt, params)
            return optax.apply_updates(params, updates), new_state, opt, loss, prediction, dropped

        def evaluate(params: Any, state: Any, voxels: Voxels) -> Any:
            self.programs += 1
            out = nnx.merge(self._eval_graph, params, state, copy=True)(voxels)
            return out.features, everywhere(out.geometry.drops)

        self._train = self._jit(train, 3, (False, False, False, False, True, False))
        self._evaluate = self._jit(evaluate, 2, (True, False))

    def _jit(self, program: Callable[..., Any], kept: int, by_shard: tuple[bool, ...]) -> Any:
        """Compile ``program``; its first ``kept`` arguments are the state of the trainer.

        ``by_shard`` tells which results are of a shard of rows, for trainers with several.
        """
        del kept, by_shard
        return jax.jit(program)

    def step(self, voxels: Voxels, labels: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Make one update; return ``(loss, predicted classes [capacity], rows dropped)``."""
        self.params, self.state, self.optimizer_state, loss, prediction, dropped = self._train(
            self.params, self.state, self.optimizer_state, voxels, labels
        )
        self.steps += 1
        return loss, prediction, dropped

    def logits(self, voxels: Voxels) -> np.ndarray:
        """Return ``float32[capacity, classes]`` in evaluation mode, on the host.

        Raises:
          CapacityError: rows were lost at some level.
        """
        features, drops = self._evaluate(self.params, self.state, voxels)
        if lost := {level: int(n) for level, n in drops.items() if int(n)}:
            levels = "; ".join(f"level of stride {k}: {n} rows lost" for k, n in lost.items())
            raise CapacityError(
                f"capacity overflow on the way to the logits: {levels}. Give a larger capacity=, "
                "or a plan that is fitted to samples as large as this one"
            )
        return np.asarray(features)

    def compile(self, voxels: Voxels, labels: Any) -> None:
        """Compile the training step for the shapes of ``voxels``, without making a step."""
        arguments = (self.params, self.state, self.optimizer_state, voxels, labels)
        self._train(*arguments)

    def model(self) -> nnx.Module:
        """Return the module with the current parameters, in training mode; a copy."""
        return nnx.merge(self._train_graph, self.params, self.state, copy=True)

    def tree(self) -> dict[str, Any]:
        """Return everything a checkpoint needs, as plain nested containers of arrays."""
        return {
            "params": nnx.to_pure_dict(self.params),
            "state": nnx.to_pure_dict(self.state),
            "optimizer": jax.tree.leaves(self.optimizer_state),
            "steps": np.asarray(self.steps),
        }

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Restore the result of :meth:`tree`."""
        nnx.replace_by_pure_dict(self.params, tree["params"])
        nnx.replace_by_pure_dict(self.state, tree["state"])
        structure = jax.tree.structure(self.optimizer_state)
        leaves = [jnp.asarray(leaf) for leaf in tree["optimizer"]]
        self.optimizer_state = jax.tree.unflatten(structure, leaves)
        self.steps = int(tree["steps"])
