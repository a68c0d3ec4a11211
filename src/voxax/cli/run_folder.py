"""Check, claim and clear the folder into which one training run writes its results."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import jax

from voxax.cli.run_lock import lock_folder
from voxax.errors import FileFormatError, InputError
from voxax.io.box_file import FOUND, TRUE
from voxax.models.checkpoint import newest_step

CHECKPOINT = "checkpoint"
BEST = "best"
_REMOVED = "checkpoint.removed"
# All files that a run writes.
_FILES = (
    *("metrics.json", "losses.csv"),
    *("demo.png", "demo.html", "demo.ply", FOUND, TRUE),
)
# A checkpoint keeps two steps while it writes a third.
_COPIES = 3


def claim_folder(folder: Path, *, resume: bool, overwrite: bool) -> bool:
    """Make a run's folder, check that files can be written there, and return whether to resume.

    The result is `resume`, with one exception: if the checkpoint has no complete step, because its
    first save was interrupted, print a message and return False.

    Raises:
      InputError: the folder contains a run and neither `resume` nor `overwrite` is set, both are
        set, another process runs there, or files cannot be written.
      FileFormatError: `resume` is set, but there is no checkpoint.
    """
    if resume and overwrite:
        raise InputError("--resume goes on with a run, --overwrite deletes it: give one of them")
    if folder.is_dir():
        lock_folder(folder)
    _end_removal(folder)
    checkpoint = folder / CHECKPOINT
    step = newest_step(checkpoint)
    if resume and not checkpoint.is_dir():
        raise FileFormatError(
            f"no voxax checkpoint in {checkpoint}: there is no run to resume, leave --resume out"
        )
    held = newest_step(folder / BEST) if step is None else step
    if held is not None and not (resume or overwrite):
        raise InputError(
            f"{folder} holds a run already, up to step {held}: give --resume to go on from it, "
            "--overwrite to delete it, or another folder by --out"
        )
    check_writable(folder)
    lock_folder(folder)  # also if it is new
    if checkpoint.exists():
        check_writable(checkpoint)
    for path in (folder / name for name in _FILES):
        if path.is_dir():
            raise InputError(f"{path} is a folder, in the place of a file of the run: move it away")
    if resume and step is None:
        print(f"{checkpoint} holds no whole step: the run begins anew")
    return resume and step is not None


def check_writable(folder: Path) -> None:
    """Make a folder for results, and raise InputError if no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{folder} is no folder, a file is in its place: give another") from error
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written to ({error.strerror}): give another folder"
        ) from error


def check_space(folder: Path, tree: object, kinds: int = 1) -> None:
    """Raise :class:`InputError` if the disk has no room for a run's checkpoints.

    Args:
      folder: folder of the run.
      tree: the arrays in one checkpoint, in a pytree.
      kinds: 1 if only the last checkpoint is kept, 2 if the best one is kept too.
    """
    copies = _COPIES * kinds
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    free = shutil.disk_usage(folder).free
    if free < copies * size:
        raise InputError(
            f"{folder} has {free / 2**20:.0f} MB free, and checkpoints take "
            f"{copies * size / 2**20:.0f} MB: free some, or give another folder by --out"
        )


def remove_run(folder: Path) -> None:
    """Delete the files of an earlier run in the folder, and no other files.

    The checkpoint is renamed first, so an interrupted removal never leaves a broken checkpoint. The
    next run in the folder completes the removal.
    """
    _end_removal(folder)
    try:
        (folder / CHECKPOINT).rename(folder / _REMOVED)
    except FileNotFoundError:
        (folder / _REMOVED).mkdir()
    _end_removal(folder)


def _end_removal(folder: Path) -> None:
    """Complete the removal of a run if :func:`remove_run` was interrupted."""
    removed = folder / _REMOVED
    if removed.is_symlink() or removed.exists():
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
        for place in (folder / BEST, removed):  # last the folder that marks an unfinished removal
            if place.is_symlink():
                place.unlink()
            elif place.exists():
                shutil.rmtree(place)
