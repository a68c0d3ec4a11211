"""Checkpoints: the arrays of a step through orbax, with a description in JSON.

A step is a folder. orbax writes it under another name and renames it last, so that its arrays and
its description become visible together: a process that is killed at any moment leaves the steps
before as they were.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import shutil
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from voxax._bounded_file import MEBIBYTE, bounded_text
from voxax.errors import FileFormatError, InputError, MissingExtraError

_KEPT = 2
_PATIENCE = 10.0  # seconds
_STEP = re.compile("0|[1-9][0-9]{0,17}")
# A description names settings and classes, a hundred thousand of these at most.
_MOST_BYTES = 16 * MEBIBYTE
# Items of a step. Steps that voxax wrote before had a description for all of them, and no sums.
_ARRAYS, _DESCRIPTION, _DESCRIPTION_OF_ALL = "default", "description", "voxax.json"
_SUMS = "checksums"


def save_checkpoint(folder: str | Path, tree: Any, description: dict[str, Any], step: int) -> Path:
    """Write step ``step`` with its description; the two newest steps are kept.

    With several processes all must call it, with global arrays; ``folder`` is one that all see.

    Raises:
      InputError: ``step`` is not above the newest one of the folder.
      OSError: it could not be written; the steps before are as they were.
    """
    folder = Path(folder).absolute()
    newest = newest_step(folder)
    if newest is not None and step <= newest:
        raise InputError(
            f"step {step} cannot be saved to {folder}, which holds step {newest}: steps of a "
            "checkpoint ascend, and the newest is loaded. Give another folder, or delete this one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    ocp = _orbax()
    items = {
        _ARRAYS: ocp.args.StandardSave(tree),
        _DESCRIPTION: ocp.args.JsonSave(description),
        _SUMS: ocp.args.JsonSave(
            {_ARRAYS: _sums_of(tree), _DESCRIPTION: _sum_of_description(description)}
        ),
    }
    options = ocp.CheckpointManagerOptions(
        max_to_keep=_KEPT,
        enable_async_checkpointing=False,
        cleanup_tmp_directories=True,
        lightweight_initialize=True,  # damaged facts of an older step would refuse this one
    )
    with _quietly(), ocp.CheckpointManager(folder, options=options) as manager:
        manager.save(step, args=ocp.args.Composite(**items), force=True)
    return folder


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep orbax from logging the traceback of each of its threads, beside the error it raises.

    After an error the others are waited for: they would write on into a step that is given up.
    """
    log, threads = logging.getLogger("absl"), set(threading.enumerate())
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    except BaseException:
        end = time.monotonic() + _PATIENCE
        for thread in set(threading.enumerate()) - threads:
            with contextlib.suppress(RuntimeError):  # made, and not begun
                thread.join(max(0.0, end - time.monotonic()))
        raise
    finally:
        log.setLevel(before)


def steps_of(folder: str | Path) -> list[int]:
    """Return the steps of a checkpoint, the newest first; none where there is no checkpoint."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    return sorted((int(name) for name in names if _STEP.fullmatch(name)), reverse=True)


def newest_step(folder: str | Path) -> int | None:
    """Return the newest step of a checkpoint, or None."""
    return next(iter(steps_of(folder)), None)


def remove_steps_above(folder: str | Path, step: int) -> None:
    """Delete the steps behind ``step``: of a run that goes on from it, those that were broken."""
    for number in steps_of(folder):
        if number > step:
            shutil.rmtree(Path(folder) / str(number))


def has_description(folder: str | Path) -> bool:
    """Return whether a folder is a checkpoint, with a description of a step or of all."""
    return bool(_descriptions(Path(folder)))


def _descriptions(folder: Path) -> list[Path]:
    """The files with a description, that of the newest step first."""
    paths = [folder / str(step) / _DESCRIPTION / "metadata" for step in steps_of(folder)]
    return [path for path in (*paths, folder / _DESCRIPTION_OF_ALL) if path.is_file()]


def load_description(folder: str | Path) -> dict[str, Any]:
    """Return the description of a checkpoint's newest step that has one.

    Raises:
      FileFormatError: no checkpoint in the folder, or an unreadable one.
    """
    paths = _descriptions(Path(folder))
    if not paths:
        raise FileFormatError(
            f"no voxax checkpoint in {folder}: it holds no whole step. `voxax demo --out DIR` and "
            "`voxax train CONFIG --out DIR` write one to DIR/checkpoint"
        )
    problems = []
    for path in paths:
        try:
            found = json.loads(bounded_text(path, _MOST_BYTES))
        except (ValueError, RecursionError) as error:
            problems.append(f"{path} is not valid JSON ({_line(error)})")
            continue
        if not isinstance(found, dict):
            problems.append(f"{path} is not an object")
            continue
        saved = _saved_sums(path.parents[1]).get(_DESCRIPTION)
        if saved is not None and saved != _sum_of_description(found):
            problems.append(f"{path} is not what was saved")
            continue
        if problems:
            warnings.warn(f"{'; '.join(problems)}; {path} is taken", stacklevel=2)
        return found
    raise FileFormatError(f"{'; '.join(problems)}: the checkpoint is broken")


def check_arrays(folder: str | Path, like: dict[str, Any]) -> None:
    """Compare the arrays of a checkpoint with those that a network has, without reading them.

    Args:
      folder: of the checkpoint.
      like: the entries of its tree to compare, with arrays or their shapes.

    Raises:
      FileFormatError: the newest step whose shapes can be read has others.
    """
    folder = Path(folder).absolute()
    with _reader() as reader:
        for step in steps_of(folder):
            try:
                stored = reader.metadata(folder / str(step) / _ARRAYS)
                stored = getattr(stored, "tree", stored)
                stored = {name: stored[name] for name in like}
            except Exception:  # load_arrays tells what is wrong with it
                continue
            _check_structure(f"step {step} of {folder}", stored, like)
            return


@contextlib.contextmanager
def _reader() -> Iterator[Any]:
    """What reads the arrays of one step.

    Not orbax's manager, which reads facts of all steps first: one that is damaged would take the
    others with it.
    """
    reader = _orbax().StandardCheckpointHandler()
    try:
        yield reader
    finally:
        reader.close()


def load_arrays(folder: str | Path, like: Any) -> Any:
    """Return the newest whole step's arrays, in the structure of ``like``.

    A step that cannot be read, of a damaged disk, say, is passed over with a warning.

    Raises:
      FileFormatError: no whole step, or one of another structure.
      MemoryError, OSError, ValueError: out of memory or files, or no permission; every step may be
        whole.
    """
    folder = Path(folder).absolute()
    steps = steps_of(folder)
    if not steps:
        raise FileFormatError(f"{folder} holds no complete checkpoint step")
    ocp = _orbax()
    problem = ""
    with _reader() as reader:
        for step in steps:
            arrays = folder / str(step) / _ARRAYS
            try:
                _check_structure(f"step {step} of {folder}", reader.metadata(arrays), like)
                restored = reader.restore(arrays, args=ocp.args.StandardRestore(like))
                _check_sums(folder / str(step), restored)
            except FileFormatError:
                raise
            except Exception as error:  # orbax and tensorstore raise many kinds
                if _is_of_the_machine(error):
                    raise
                problem = f"step {step} of {folder} cannot be read: {_line(error)}"
                continue
            if problem:
                warnings.warn(f"{problem}; step {step} is taken", stacklevel=2)
            return restored
    raise FileFormatError(f"{problem}: the checkpoint is broken")


# Faults that say nothing of a step: it would be passed over, and a run that resumes removes it.
_NO_DAMAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)
_NO_DAMAGE_TEXT = re.compile("RESOURCE_EXHAUSTED|PERMISSION_DENIED|Too many open files")


def _is_of_the_machine(error: Exception) -> bool:
    """Return whether a step could not be read now, but may be whole."""
    if isinstance(error, OSError) and error.errno in _NO_DAMAGE:
        return True
    return isinstance(error, MemoryError) or _NO_DAMAGE_TEXT.search(str(error)) is not None


def _check_structure(where: str, stored: Any, like: Any) -> None:
    """Raise :class:`FileFormatError` naming the first array that one has and the other has not."""
    there, here = _shapes(stored), _shapes(like)
    differing = [name for name in (*here, *there) if there.get(name) != here.get(name)]
    if there and differing:
        name = differing[0]
        raise FileFormatError(
            f"{where} is of another network: {name} is {there.get(name, 'not there')}, here it is "
            f"{here.get(name, 'not there')} ({len(set(differing))} arrays differ). Build the "
            "network and optimizer that were saved"
        )


def _shapes(tree: Any) -> dict[str, str]:
    """The shape of each array by its path."""
    leaves = _leaves(getattr(tree, "tree", tree))
    return {name: str(list(getattr(leaf, "shape", np.shape(leaf)))) for name, leaf in leaves}


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    """The arrays with their paths; typed random keys as the integers that are stored."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [("/".join(map(_key, path)), _untyped(leaf)) for path, leaf in leaves]


def _untyped(leaf: Any) -> Any:
    if not jax.numpy.issubdtype(getattr(leaf, "dtype", np.generic), jax.dtypes.prng_key):
        return leaf
    is_array = isinstance(leaf, jax.Array)
    return jax.random.key_data(leaf) if is_array else jax.eval_shape(jax.random.key_data, leaf)


def _sums_of(tree: Any) -> dict[str, str]:
    """The dtype and a checksum of each array, by its path: orbax stores numbers without any.

    Arrays of which other processes have a part get none.
    """
    sums = {}
    for name, leaf in _leaves(tree):
        if getattr(leaf, "is_fully_addressable", True):
            array = np.ascontiguousarray(leaf)
            sums[name] = f"{array.dtype} {zlib.crc32(array.reshape(-1).view(np.uint8).data):08x}"
    return sums


def _sum_of_description(description: dict[str, Any]) -> str:
    # As JSON has it: lists for tuples, and strings as keys.
    plain = json.loads(json.dumps(description))
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def _saved_sums(step: Path) -> dict[str, Any]:
    """What was noted when a step was saved; nothing where that cannot be read."""
    try:
        found = json.loads(bounded_text(step / _SUMS / "metadata", _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _check_sums(step: Path, restored: Any) -> None:
    """Raise :class:`ValueError` for an array that has other bytes than were saved."""
    saved = _saved_sums(step).get(_ARRAYS)
    if not isinstance(saved, dict):
        return
    for name, found in _sums_of(restored).items():
        before = str(saved.get(name, found))
        # Of another dtype it was converted.
        if before != found and before.split()[0] == found.split()[0]:
            raise ValueError(f"{name} is not what was saved: its checksum differs")


def _key(entry: Any) -> str:
    """An entry of a path, as orbax names it."""
    for name in ("key", "name", "idx"):
        if hasattr(entry, name):
            return str(getattr(entry, name))
    return str(entry)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise MissingExtraError(
            'checkpoints need orbax-checkpoint: pip install "voxax[demo]"'
        ) from error
    return ocp
