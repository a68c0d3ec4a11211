"""The weights that ``voxax train`` begins with, of a file or of another run's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from voxax.cli.tasks import check_weights, restore, task_of
from voxax.errors import FileFormatError, InputError, VoxaxError, listed
from voxax.interop.checkpoint_file import check_place
from voxax.interop.sources import load_weights, load_weights_part
from voxax.models.checkpoint import has_description
from voxax.models.fine_tuning import check_parts

if TYPE_CHECKING:
    from voxax.cli.task import Task
    from voxax.cli.train_config import TrainConfig


def check_parts_of(config: TrainConfig, task: Task) -> None:
    """Raise :class:`voxax.InputError` for a part that the network lacks, in the file's words."""
    training = config.training
    named = {"part_learning_rates": training.part_learning_rates, "frozen": training.frozen}
    for key, parts in named.items():
        if parts:
            with config.errors_of(f"training.{key}"):
                check_parts(nnx.eval_shape(task.model), parts)


def check_place_of_weights(config: TrainConfig) -> None:
    """Check that the weights are there, before anything else is read."""
    key, given = _given(config)
    place = _place(config, given)
    if not given or (isinstance(place, Path) and has_description(place)):
        return
    try:
        check_place(place)
    except FileNotFoundError as error:
        raise InputError(
            f"{config.path}: model.{key} = {given!r}: there is no {place}: give the path of a file "
            "with weights, a folder with a checkpoint, or hf://owner/name/file"
        ) from error
    except FileFormatError as error:
        raise InputError(f"{config.path}: model.{key} = {given!r}: {error}") from error


def starting_network(config: TrainConfig, task: Task) -> tuple[nnx.Module | None, str]:
    """Return the network with the weights that the file names, and the codebase of these.

    Prints what was taken. Without weights there is no network. Errors have the file's words.
    """
    key, given = _given(config)
    if not given:
        return None, ""
    place, whole, chosen = _place(config, given), key == "weights", config.model.source
    said = f"model.{key} = {given!r}"
    try:
        model = task.model()
        kinds = jax.tree.map(lambda x: x.dtype, nnx.state(model))
        if isinstance(place, Path) and has_description(place):
            if chosen:
                raise InputError(f"model.source = {chosen!r} is of files, leave it out")
            source = _from_run(model, place, whole, said)
        elif whole:
            source = load_weights(model, place, source=chosen or None)
            print(f"{said}: all weights taken, as {source} has them", flush=True)
        else:
            source, report = load_weights_part(model, place, source=chosen or None)
            _tell(f"{said}: as {source} has them", report.taken, report.kept, report.left)
    except VoxaxError as error:
        hint = ""
        if whole and isinstance(error, InputError):
            hint = f". weights_part = {given!r} leaves out what does not fit"
        raise type(error)(f"{config.path}: {said}: {error}{hint}") from error
    # A file may be of half precision.
    nnx.update(model, jax.tree.map(lambda x, kind: x.astype(kind), nnx.state(model), kinds))
    return model, source


def _given(config: TrainConfig) -> tuple[str, str]:
    model = config.model
    return (
        ("weights_part", model.weights_part) if model.weights_part else ("weights", model.weights)
    )


def _place(config: TrainConfig, given: str) -> Path | str:
    return given if given.startswith("hf:") else config.place(given)


def _from_run(model: nnx.Module, folder: Path, whole: bool, said: str) -> str:
    """Set the arrays of ``model`` to those of a run's checkpoint; return the source of that run."""
    before = task_of(folder)
    check_weights(folder, before)
    theirs, own = (
        dict(nnx.to_flat_state(nnx.state(m, nnx.Any(nnx.Param, nnx.BatchStat))))
        for m in (restore(folder, before.trainer()).model(), model)
    )
    fits = [
        p for p, v in own.items() if p in theirs and np.shape(v[...]) == np.shape(theirs[p][...])
    ]
    kept = [f"{_name(p)} {_shape(own[p])}" for p in own if p not in fits]
    left = [f"{_name(p)} {_shape(theirs[p])}" for p in theirs if p not in fits]
    if not fits or (whole and (kept or left)):
        raise InputError(
            f"the checkpoint is of another network: here are {listed(kept)}, there {listed(left)}"
        )
    for path in fits:
        own[path].set_value(theirs[path][...])
    if whole:
        print(f"{said}: all weights taken", flush=True)
    else:
        _tell(said, len(fits), kept, left)
    return before.source


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _shape(variable: Any) -> list[int]:
    return list(np.shape(variable[...]))


def _tell(said: str, taken: int, kept: Any, left: Any) -> None:
    print(f"{said}: {taken} taken", flush=True)
    for title, names in (("begin with random weights", kept), ("left out of the file", left)):
        for name in names:
            print(f"  {title}: {name}", flush=True)
