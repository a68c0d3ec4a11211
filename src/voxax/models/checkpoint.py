"""Checkpoints: arrays through orbax (written atomically), a description in JSON beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax

from voxax._atomic_file import write_atomically
from voxax.errors import FileFormatError, MissingExtraError

_DESCRIPTION = "voxax.json"


def save_checkpoint(folder: str | Path, tree: Any, description: dict[str, Any], step: int) -> Path:
    """Write step ``step``; the two newest steps are kept.

    A process killed in the middle leaves the steps before as they were: orbax writes to a
    temporary folder and renames it, and the description is replaced in one move.

    With several processes all must call it, with global arrays; ``folder`` is one that all see.
    """
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0:
        write_atomically(folder / _DESCRIPTION, json.dumps(description, indent=2))
    ocp = _orbax()
    with ocp.CheckpointManager(
        folder,
        options=ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False),
    ) as manager:
        manager.save(step, args=ocp.args.StandardSave(tree), force=True)
    return folder


def load_description(folder: str | Path) -> dict[str, Any]:
    """Return the JSON description of a checkpoint.

    Raises:
      FileFormatError: no checkpoint in the folder, or an unreadable one.
    """
    path = Path(folder) / _DESCRIPTION
    if not path.exists():
        raise FileFormatError(
            f"no voxax checkpoint in {folder}: {_DESCRIPTION} is missing. `voxax demo --out DIR` "
            "and `voxax train CONFIG --out DIR` write one to DIR/checkpoint"
        )
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise FileFormatError(
            f"{path} is not valid JSON ({error}): the checkpoint is broken"
        ) from (error)


def load_arrays(folder: str | Path, like: Any) -> Any:
    """Return the newest complete step's arrays, in the structure of ``like``.

    Raises:
      FileFormatError: no complete step, or one of another structure.
    """
    folder = Path(folder).absolute()
    ocp = _orbax()
    with ocp.CheckpointManager(folder) as manager:
        step = manager.latest_step()
        if step is None:
            raise FileFormatError(f"{folder} holds no complete checkpoint step")
        try:
            return manager.restore(step, args=ocp.args.StandardRestore(like))
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise FileFormatError(f"cannot restore step {step} of {folder}: {error}") from error


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise MissingExtraError(
            'checkpoints need orbax-checkpoint: pip install "voxax[demo]"'
        ) from error
    return ocp
