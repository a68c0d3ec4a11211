"""Trainers that run each step on several devices, with one shard of scenes on each device.

:func:`on_mesh` places shards on the devices of a mesh, which may belong to several hosts.
:func:`synchronize` lets batch norms share their statistics. The trainers call both functions.
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
    """Turn arrays ``[shards, ...]`` into global arrays, split over the devices of a mesh axis.

    Args:
      shards: a pytree of arrays, whose first axis has the shards for the devices of this process.
        With a single process these are all shards.
      mesh: the devices.
      axis: name of the mesh axis along which shards lie, or several names. Along several axes,
        the last one changes fastest.

    Returns:
      The same tree with global ``jax.Array`` leaves ``[size of the axis, ...]``: each device has
      the shard with its index along the axis.

    Raises:
      InputError: the mesh has no such axis, or the number of shards differs from the number of
        indices along the axis that this process has, see :func:`places_of`.
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
    """Return the indices along mesh axes that belong to devices of this process, ascending.

    They are the numbers of the shards that this process has to load.

    Raises:
      InputError: the mesh has no such axis.
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
    """Make every batch norm of a model compute its statistics over all devices of a mesh axis.

    The model is changed in place and returned. Afterwards its training mode runs only inside
    ``jax.shard_map`` or ``jax.vmap`` with that axis. Evaluation uses running averages and runs
    anywhere.

    This applies to :class:`voxax.nn.modules.BatchNorm` and to the batch norms of dense detector
    layers. The latter weight all devices equally, so each device needs equally many scenes.

    Args:
      model: any ``flax.nnx`` module.
      axis: name of the mapped axis, or several names.

    Raises:
      InputError: the model has a plain ``flax.nnx.BatchNorm``, which would count padding rows.
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
    """Mixin that makes a trainer's step take one shard for each device.

    Put it before the trainer's class in the list of base classes.

    Args:
      model: the module to train. Its batch norms are synchronized.
      optimizer: an optax transformation.
      mesh: the devices of all processes.
      *arguments, **options: further arguments of the trainer's class.
      axis: name of the mesh axis along which shards lie, or several names.
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
        options["axis_name"] = axis  # an argument of the class of the trainer
        super().__init__(synchronized, optimizer, *arguments, **options)
        self._replicate()

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Restore a state saved by :meth:`tree`, perhaps on another number of devices."""
        super().load_tree(tree)
        self._replicate()

    def _replicate(self) -> None:
        """Copy the trainer's state to each device, so that the second step does not recompile."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        kept = (self.params, self.state, self.optimizer_state)
        self.params, self.state, self.optimizer_state = jax.device_put(kept, whole)

    def _placed(self, arguments: Any) -> Any:
        return on_mesh(arguments, self.mesh, self.axis)

    def _jit(self, program: Callable[..., Any], by_shard: tuple[bool, ...]) -> Any:
        each, whole = PartitionSpec(self.axis), PartitionSpec()

        def shard(*arguments: Any) -> Any:
            own = jax.tree.map(lambda x: x[0], arguments[2:])
            results = program(*arguments[:2], *own)
            return tuple(
                jax.tree.map(lambda x: x[None], r) if split else r
                for r, split in zip(results, by_shard, strict=True)
            )

        outputs = tuple(each if split else whole for split in by_shard)

        def run(*arguments: Any) -> Any:
            inputs = tuple(whole if i < 2 else each for i in range(len(arguments)))
            return jax.shard_map(shard, mesh=self.mesh, in_specs=inputs, out_specs=outputs)(
                *arguments
            )

        return jax.jit(run)


class DataParallelTrainer(_OnMesh, Trainer):
    """A :class:`voxax.models.training.Trainer` whose step takes one shard for each device.

    Loss, gradients and batch statistics are computed over all scenes together, weighted by voxels.
    A step therefore gives the result of one device with all scenes in one batch, up to rounding.
    Parameters and optimizer state are copied to all devices.

    The methods take the shards of this process, from :func:`voxax.parallel.shard_scenes`.
    Predictions are ``[shards, capacity]`` and logits ``[shards, capacity, classes]``. With several
    processes these are global arrays, of which each process has a part. The number of dropped rows
    is summed over all devices.

    Args:
      model: a module that maps Voxels to Voxels of logits. Its batch norms are synchronized.
      optimizer: an optax transformation.
      mesh: the devices of all processes.
      axis: name of the mesh axis over which scenes are divided, or one scene is split
        (:class:`voxax.parallel.SceneSplit`). Give a tuple of two names to do both.
      class_weights: weight of each class in the loss, ``float[classes]``, or None.
      ignore_label, added_loss, on_metrics, keep_programs: as in that ``Trainer``.
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
    """A :class:`voxax.models.classifier.SceneTrainer` whose devices share a step's scenes.

    The arguments are those of ``SceneTrainer``, with ``mesh`` after the optimizer, and ``axis`` as
    for :class:`DataParallelTrainer`.
    """


class DataParallelCenterTrainer(_OnMesh, CenterTrainer):
    """A :class:`~voxax.models.center_training.CenterTrainer` whose devices share a step's scenes.

    The arguments are those of ``CenterTrainer``, with ``mesh`` after the optimizer, and ``axis`` as
    for :class:`DataParallelTrainer`. All shards need equally many scenes, because batch norms of
    dense layers weight them equally.
    """


class DataParallelSparseCenterTrainer(_OnMesh, SparseCenterTrainer):
    """A trainer of :class:`voxax.models.VoxelNeXt` whose devices share a step's scenes.

    The arguments are those of :class:`voxax.models.center_training.SparseCenterTrainer`, with
    ``mesh`` after the optimizer, and ``axis`` as for :class:`DataParallelTrainer`.
    """


class DataParallelAnchorTrainer(_OnMesh, AnchorTrainer):
    """A trainer of :class:`voxax.models.SECOND` with one shard for each device.

    The arguments are those of :class:`voxax.models.anchor_training.AnchorTrainer`, with ``mesh``
    after the optimizer, and ``axis`` as for :class:`DataParallelTrainer`. All shards need equally
    many scenes, because batch norms of dense layers weight them equally.
    """
