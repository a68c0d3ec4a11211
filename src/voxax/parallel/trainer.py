"""Training with one shard of scenes on each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from voxax.models.training import Trainer
from voxax.parallel.placement import on_mesh
from voxax.parallel.synchronize import synchronize


class DataParallelTrainer(Trainer):
    """A :class:`voxax.models.training.Trainer` whose step takes one shard for each device.

    Loss, gradients and batch statistics are those of all scenes together, counted by voxels, so a
    step does what one device would do with all scenes in one batch, up to rounding. Parameters
    and optimiser state are on all devices.

    Args:
      model: a module from Voxels to Voxels of logits; its batch norms are synchronised.
      optimizer: an optax transformation.
      mesh: the devices, of all processes.
      axis: name of the mesh's axis that scenes are spread over, or that one scene is split over
        (:class:`voxax.parallel.SceneSplit`); of both, the two names.
      class_weights: ``float[classes]`` or None.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: optax.GradientTransformation,
        mesh: Mesh,
        axis: str | tuple[str, ...] = "data",
        class_weights: np.ndarray | None = None,
    ) -> None:
        self.mesh, self.axis = mesh, axis
        super().__init__(synchronize(model, axis), optimizer, class_weights, axis_name=axis)
        self._spread()

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Restore what :meth:`tree` gave, of any number of devices."""
        super().load_tree(tree)
        self._spread()

    def _spread(self) -> None:
        """A copy of what the trainer keeps on each device: else the second step compiles again."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        kept = (self.params, self.state, self.optimizer_state)
        self.params, self.state, self.optimizer_state = jax.device_put(kept, whole)

    def step(self, voxels: Any, labels: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One update.

        Args:
          voxels, labels: this process's shards, of :func:`voxax.parallel.shard_scenes`.

        Returns:
          ``(loss, predicted classes [shards, capacity], rows dropped on all devices)``; with
          several processes the prediction is a global array of which each process has its part.
        """
        return super().step(*on_mesh((voxels, labels), self.mesh, self.axis))

    def compile(self, voxels: Any, labels: Any) -> None:
        """Compile the training step for the shapes of these shards, without making a step."""
        super().compile(*on_mesh((voxels, labels), self.mesh, self.axis))

    def logits(self, voxels: Any) -> np.ndarray:
        """``float32[shards, capacity, classes]`` in evaluation mode, on the host; one process.

        Raises:
          CapacityError: rows were lost at some level.
        """
        return super().logits(on_mesh(voxels, self.mesh, self.axis))

    def _jit(self, program: Callable[..., Any], kept: int, by_shard: tuple[bool, ...]) -> Any:
        each, whole = PartitionSpec(self.axis), PartitionSpec()

        def shard(*arguments: Any) -> Any:
            own = jax.tree.map(lambda x: x[0], arguments[kept:])
            results = program(*arguments[:kept], *own)
            return tuple(
                jax.tree.map(lambda x: x[None], r) if split else r
                for r, split in zip(results, by_shard, strict=True)
            )

        outputs = tuple(each if split else whole for split in by_shard)

        def run(*arguments: Any) -> Any:
            inputs = tuple(whole if i < kept else each for i in range(len(arguments)))
            return jax.shard_map(shard, mesh=self.mesh, in_specs=inputs, out_specs=outputs)(
                *arguments
            )

        return jax.jit(run)
