"""Training with one shard of scenes on each device.

Shards are placed on the devices of a mesh (:func:`on_mesh`), also of several hosts; batch norms
share their statistics (:func:`synchronize`); the trainer does both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from voxax.errors import InputError
from voxax.models.anchor_training import AnchorTrainer
from voxax.models.bev_backbone import DenseConvNormAct
from voxax.models.center_training import CenterTrainer, SparseCenterTrainer
from voxax.models.classifier import SceneTrainer
from voxax.models.training import StepTrainer, Trainer
from voxax.models.writers import OnMetrics
from voxax.nn.modules import BatchNorm

Tree = TypeVar("Tree")
Axes = str | tuple[str, ...]


def on_mesh(shards: Tree, mesh: Mesh, axis: Axes = "data") -> Tree:
    """Arrays ``[shards, ...]`` as global arrays, one shard on each place of the mesh's axis.

    Args:
      shards: a pytree of arrays with a leading axis: the shards of this process's devices. With
        one process, all of them.
      mesh: the devices.
      axis: name of the mesh's axis that shards lie along, or several, the last one fastest.

    Returns:
      The same tree with global ``jax.Array`` leaves ``[places along the axis, ...]``.

    Raises:
      InputError: no such axis, or another number of shards than this process has places.
    """
    own, total = len(places_of(mesh, axis)), _places(mesh, axis)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shards):
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != own:
            raise InputError(
                f"{jax.tree_util.keystr(path)} has shape {np.shape(leaf)}: this process has "
                f"{own} of the {total} places along {axis!r}, so its leading axis must be {own}"
            )

    def place(leaf: jax.Array | np.ndarray) -> jax.Array:
        local = np.asarray(leaf)
        return jax.make_array_from_process_local_data(sharding, local, (total, *local.shape[1:]))

    return jax.tree.map(place, shards)


def places_of(mesh: Mesh, axis: Axes = "data") -> tuple[int, ...]:
    """The places along an axis of a mesh, or several, that devices of this process hold, ascending.

    Raises:
      InputError: no such axis.
    """
    total = _places(mesh, axis)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    held = sharding.addressable_devices_indices_map((total,)).values()
    starts = (index[0].start for index in held if index is not None)
    return tuple(sorted({0 if start is None else start for start in starts}))


def _places(mesh: Mesh, axis: Axes) -> int:
    names = (axis,) if isinstance(axis, str) else axis
    for name in names:
        if name not in mesh.shape:
            raise InputError(f"the mesh has axes {tuple(mesh.shape)}, none is called {name!r}")
    return math.prod(mesh.shape[name] for name in names)


Module = TypeVar("Module", bound=nnx.Module)


def synchronize(model: Module, axis: str | tuple[str, ...] = "data") -> Module:
    """Let every :class:`voxax.nn.modules.BatchNorm` of a model share its statistics over an axis.

    The model is changed in place, and returned. From then on it runs inside ``jax.shard_map`` or
    ``jax.vmap`` with that axis only, in training; evaluation uses running averages anywhere.

    The dense layers of detectors share theirs too. They count cells, so each place along the axis
    has to have as many scenes.

    Args:
      model: any ``flax.nnx`` module.
      axis: name of the mapped axis, or several.

    Raises:
      InputError: another ``flax.nnx.BatchNorm`` is among its modules, which would count padding.
    """
    modules: list[tuple[Any, Any]] = list(nnx.iter_modules(model))
    of_grids = {id(m.norm) for _, m in modules if isinstance(m, DenseConvNormAct)}
    for path, module in modules:
        if isinstance(module, BatchNorm) or id(module) in of_grids:
            module.axis_name = axis  # pyright: ignore[reportAttributeAccessIssue]
        elif isinstance(module, nnx.BatchNorm):
            raise InputError(
                f"{'.'.join(map(str, path))} is a flax.nnx.BatchNorm, whose statistics would "
                "contain padding rows: use voxax.nn.modules.BatchNorm"
            )
    return model


class _OnMesh(StepTrainer):
    """A trainer whose step takes one shard for each device; a base beside the trainer's class.

    Args:
      model: its batch norms are synchronized.
      optimizer: an optax transformation.
      mesh: the devices, of all processes.
      *arguments, **options: of the trainer's class.
      axis: axis of the mesh along which shards lie.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: optax.GradientTransformation,
        mesh: Mesh,
        *arguments: Any,
        axis: Axes = "data",
        **options: Any,
    ) -> None:
        self.mesh, self.axis = mesh, axis
        synchronized: Any = synchronize(model, axis)
        options["axis_name"] = axis  # which the class beside this one takes
        super().__init__(synchronized, optimizer, *arguments, **options)
        self._replicate()

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Restore what :meth:`tree` returned, on any number of devices."""
        super().load_tree(tree)
        self._replicate()

    def _replicate(self) -> None:
        """Copy the trainer's state onto each device: otherwise the second step compiles again."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        kept = (self.params, self.state, self.optimizer_state)
        self.params, self.state, self.optimizer_state = jax.device_put(kept, whole)

    def _placed(self, arguments: Any) -> Any:
        return on_mesh(arguments, self.mesh, self.axis)

    def _jit(
        self,
        program: Callable[..., Any],
        kept: int,
        by_shard: tuple[bool, ...],
    ) -> Any:
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


class DataParallelTrainer(_OnMesh, Trainer):
    """A :class:`voxax.models.training.Trainer` whose step takes one shard for each device.

    Loss, gradients and batch statistics are those of all scenes together, counted by voxels, so a
    step does what one device would do with all scenes in one batch, up to rounding. Parameters
    and optimizer state are on all devices.

    Its methods take this process's shards, of :func:`voxax.parallel.shard_scenes`. Predictions are
    ``[shards, capacity]`` and logits ``[shards, capacity, classes]``, with several processes global
    arrays of which each process has its part; rows dropped are those of all devices.

    Args:
      model: a module from Voxels to Voxels of logits; its batch norms are synchronized.
      optimizer: an optax transformation.
      mesh: the devices, of all processes.
      axis: name of the mesh's axis that scenes are divided over, or that one scene is split over
        (:class:`voxax.parallel.SceneSplit`); of both, the two names.
      class_weights: ``float[classes]`` or None.
      ignore_label, added_loss, on_metrics, keep_programs: as for that one.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: optax.GradientTransformation,
        mesh: Mesh,
        axis: str | tuple[str, ...] = "data",
        class_weights: np.ndarray | None = None,
        *,
        ignore_label: int | None = None,
        added_loss: Callable[..., jax.Array] | None = None,
        on_metrics: OnMetrics | None = None,
        keep_programs: bool = True,
    ) -> None:
        options: dict[str, Any] = {
            "ignore_label": ignore_label,
            "added_loss": added_loss,
            "on_metrics": on_metrics,
            "keep_programs": keep_programs,
        }
        super().__init__(model, optimizer, mesh, class_weights, axis=axis, **options)


class DataParallelSceneTrainer(_OnMesh, SceneTrainer):
    """A :class:`voxax.models.classifier.SceneTrainer` with one shard for each device."""


class DataParallelCenterTrainer(_OnMesh, CenterTrainer):
    """A :class:`voxax.models.center_training.CenterTrainer` with one shard for each device.

    All shards have equally many scenes, since dense layers count the cells of each.
    """


class DataParallelSparseCenterTrainer(_OnMesh, SparseCenterTrainer):
    """A trainer of :class:`voxax.models.VoxelNeXt` with one shard for each device."""


class DataParallelAnchorTrainer(_OnMesh, AnchorTrainer):
    """A trainer of :class:`voxax.models.SECOND` with one shard for each device.

    All shards have equally many scenes, since dense layers count the cells of each.
    """
