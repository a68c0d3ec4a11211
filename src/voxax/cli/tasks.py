"""The registry ``TASKS`` of training tasks, and functions that read tasks from checkpoints."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, TypeVar

import jax
from flax import nnx

from voxax._interrupts import uninterrupted
from voxax.cli.classification_task import Classification
from voxax.cli.folder_detection import FolderDetection
from voxax.cli.progress import command_of
from voxax.cli.segmentation_task import Segmentation
from voxax.cli.task import Task
from voxax.errors import FileFormatError, InputError, VoxaxError
from voxax.geometry import Plan, Voxels
from voxax.geometry.level_fit import Fit
from voxax.io.decoding import unpacked_limit
from voxax.models.checkpoint import check_arrays, load_arrays, load_description, newest_step
from voxax.models.training import StepTrainer

_ALL: tuple[type[Task], ...] = (Segmentation, FolderDetection, Classification)
TASKS = {task.task: task for task in _ALL}

Kind = TypeVar("Kind", bound=Task)
AnyTrainer = TypeVar("AnyTrainer", bound=StepTrainer)


def task_of(folder: Path) -> Task:
    """Return the task that a checkpoint describes; ``segment`` if it does not name its task."""
    description = load_description(folder)
    name = description.get("task", Segmentation.task)
    if not isinstance(name, str) or name not in TASKS:
        raise FileFormatError(
            f"the checkpoint in {folder} is for the task {name!r}; known are {', '.join(TASKS)}: "
            "a newer voxax may read it"
        )
    try:
        return TASKS[name].from_json(description["network"])
    except KeyError:
        raise FileFormatError(
            f"the description of the checkpoint in {folder} has no entry 'network'"
        ) from None


def check_network(task: Task) -> None:
    """Raise :class:`voxax.InputError` if no network can be built with the settings of a task.

    No arrays are made. Call this before scans are read, which may take long.
    """
    nnx.eval_shape(task.model)


def check_weights(folder: Path, task: Task) -> None:
    """Raise FileFormatError unless the files of a checkpoint contain the arrays of its network.

    No arrays are made. Call this before the network of an untrusted checkpoint is built, because
    the checkpoint may describe a network that does not fit into memory.
    """
    try:
        _, params, state = nnx.split(nnx.eval_shape(task.model), nnx.Param, ...)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"the description of the checkpoint in {folder} makes no network: {error}"
        ) from error
    shapes = jax.tree.leaves((params, state))
    claimed = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes)
    stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if claimed > unpacked_limit(stored):
        raise FileFormatError(
            f"the description of the checkpoint in {folder} makes a network of {claimed} bytes, "
            f"and its files of {stored} bytes hold {unpacked_limit(stored)} at most"
        )
    like = {"params": nnx.to_pure_dict(params), "state": nnx.to_pure_dict(state)}
    with uninterrupted():
        check_arrays(folder, like)


def task_as(folder: Path, kind: type[Kind]) -> Kind:
    """Return the task that a checkpoint describes; raise InputError unless its class is `kind`."""
    found = task_of(folder)
    if not isinstance(found, kind):
        raise InputError(
            f"the checkpoint in {folder} was trained for the task {found.task!r}, not "
            f"{kind.task!r}: `voxax {command_of(found.task)}` takes it"
        )
    return found


def restore(folder: Path, trainer: AnyTrainer) -> AnyTrainer:
    """Load the newest step of the checkpoint in `folder` into `trainer`, and return `trainer`."""
    with uninterrupted():
        trainer.load_tree(load_arrays(folder, trainer.tree()))
    return trainer


def plan_of(model: nnx.Module, voxels: Voxels, checkpoint: Path) -> Plan:
    """Return a network's plan of kernel maps, with the array capacities that a checkpoint stores.

    The plan has no stored capacities (its ``fit`` is None) if the checkpoint has none, or if they
    come from hardware with other bucket sizes.
    """
    plan = Plan.record(model, voxels)
    kept = load_description(checkpoint).get("capacities")
    if kept is None:  # an older checkpoint
        return plan
    try:
        fit = Fit.from_json(kept)
        # A checkpoint from other hardware has other steps of capacities, so they are not used.
        return plan.with_fit(fit) if bool(fit.rungs) == plan.on_ladder else plan
    except VoxaxError as error:
        raise FileFormatError(
            f"the description of the checkpoint in {checkpoint} has other capacities: {error}"
        ) from error


def resumed(folder: Path, task: Kind) -> Kind:
    """Return `task` with the class weights and the source codebase of the checkpoint in `folder`.

    Raises:
      InputError: another setting, except for `steps`, differs from the checkpoint's, or the run
        has more steps than `task`.
    """
    before, checkpoint = task_as(folder / "checkpoint", type(task)), folder / "checkpoint"
    done = newest_step(checkpoint) or 0
    if task.steps < done:
        raise InputError(
            f"steps = {task.steps} is less than the {done} steps of the run in {checkpoint}: give "
            "more, or begin anew in another folder"
        )
    kept: dict[str, Any] = {}
    for field in dataclasses.fields(task):
        old, new = getattr(before, field.name), getattr(task, field.name)
        if field.name in ("class_weights", "source"):
            kept[field.name] = old
        # A run may be made longer, which stretches the schedule.
        elif field.name != "steps" and old != new:
            raise InputError(
                f"the checkpoint in {checkpoint} has {field.name} = {old}, the "
                f"configuration {new}: to change it begin anew, in another folder"
            )
    return dataclasses.replace(task, **kept)
