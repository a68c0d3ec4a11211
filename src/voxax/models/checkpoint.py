"""Save and load training checkpoints: per step a folder of orbax arrays and a JSON description.

orbax writes the folder under a temporary name and renames it at the end, so that the arrays and the
description become visible together. A process that is killed at any moment leaves earlier steps
unchanged.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import json
import logging
import os
import re
import shutil
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from voxax import _limits
from voxax._bounded_file import MEBIBYTE, bounded_text
from voxax.errors import (
    FileFormatError,
    InputError,
    MissingExtraError,
    VoxaxError,
    check_whole,
)

_KEPT = 2
_PATIENCE = 10.0  # seconds
_STEP = re.compile("0|[1-9][0-9]{0,17}")
# Limit on the size of a description, which names settings and up to a hundred thousand classes.
_MOST_BYTES = 16 * MEBIBYTE
# Files of a step. Earlier versions wrote one description for all steps, and no checksums.
_ARRAYS, _DESCRIPTION, _DESCRIPTION_OF_ALL = "default", "description", "voxax.json"
_SUMS = "checksums"


def save_checkpoint(folder: str | Path, tree: Any, description: dict[str, Any], step: int) -> Path:
    """Save arrays and a description as a new step; return the absolute path of the checkpoint.

    Only the two newest steps of the checkpoint are kept.

    With several processes, all processes must call this function, with global arrays and a folder
    that all can access. Arrays that are divided over processes get no checksum.

    Args:
      folder: folder of the checkpoint; created if missing.
      tree: a pytree of arrays.
      description: values that JSON supports; :func:`load_description` returns them.
      step: a number above all steps in the folder.

    Raises:
      InputError: ``step`` is no integer above the newest step of the folder, a file is in the place
        of the folder, the tree has a leaf that is no number or array of numbers, or JSON does not
        support a value of the description.
      OSError: the step could not be written; earlier steps are unchanged.
    """
    folder = Path(folder).absolute()
    _limits.STEPS.check("step", check_whole("step", step, 0), 0)
    _check_savable(tree, description)
    newest = newest_step(folder)
    if newest is not None and step <= newest:
        raise InputError(
            f"step {step} cannot be saved to {folder}, which holds step {newest}: steps of a "
            "checkpoint ascend, and the newest is loaded. Give another folder, delete this one, or "
            f"go on from step {step - 1} with remove_steps_above({str(folder)!r}, {step - 1})"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{folder} is no folder, a file is in its place: give another") from error
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
        lightweight_initialize=True,  # else a damaged older step would make this save fail
    )
    with _quietly(), ocp.CheckpointManager(folder, options=options) as manager:
        manager.save(step, args=ocp.args.Composite(**items), force=True)
    return folder


def _check_savable(tree: Any, description: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not isinstance(leaf, jax.Array) and np.asarray(leaf).dtype.kind in "OSUMm":
            raise InputError(
                f"{_name(path) or 'the tree'} is {type(leaf).__name__}, and the tree of a "
                "checkpoint has arrays: put text and other values into the description"
            )
    try:
        if not isinstance(description, dict):
            raise TypeError(f"it is {type(description).__name__}, not a dict")
        json.dumps(description)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the description cannot be saved as JSON ({error}): give numbers, text, lists and "
            "dicts, and put arrays into the tree"
        ) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Return a context manager that hides the log messages of orbax's threads during a save.

    After an error these threads would go on writing into the failed step. The context therefore
    waits up to ``_PATIENCE`` seconds until they end, and then raises the error again.
    """
    threads = set(threading.enumerate())
    with _without_logs():
        try:
            yield
        except BaseException:
            end = time.monotonic() + _PATIENCE
            for thread in set(threading.enumerate()) - threads:
                with contextlib.suppress(RuntimeError):  # created, but not started
                    thread.join(max(0.0, end - time.monotonic()))
            raise


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    logs = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def steps_of(folder: str | Path) -> list[int]:
    """Return the step numbers of a checkpoint, newest first; empty if there is no checkpoint.

    Args:
      folder: folder of the checkpoint.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    return sorted((int(name) for name in names if _STEP.fullmatch(name)), reverse=True)


def newest_step(folder: str | Path) -> int | None:
    """Return the newest step number of a checkpoint, or None if there is no checkpoint.

    Args:
      folder: folder of the checkpoint.
    """
    return next(iter(steps_of(folder)), None)


def remove_steps_above(folder: str | Path, step: int) -> None:
    """Delete all steps above ``step``, such as broken steps before a run resumes from ``step``.

    With several processes, all processes must call this function.

    Args:
      folder: folder of the checkpoint.
      step: the last step to keep.
    """
    if jax.process_index() == 0:
        for number in steps_of(folder):
            if number > step:
                shutil.rmtree(Path(folder) / str(number))
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("voxax: steps are removed")


def has_description(folder: str | Path) -> bool:
    """Return whether a folder contains at least one description file, as each checkpoint does.

    Args:
      folder: path of a folder, which need not exist.
    """
    return bool(_descriptions(Path(folder)))


def _descriptions(folder: Path) -> list[Path]:
    """Return the paths of all description files in a checkpoint's folder, newest step first.

    A description file has the JSON values that :func:`save_checkpoint` was given with a step. The
    one file that earlier versions wrote for all steps comes last.
    """
    paths = [folder / str(step) / _DESCRIPTION / "metadata" for step in steps_of(folder)]
    return [path for path in (*paths, folder / _DESCRIPTION_OF_ALL) if path.is_file()]


def load_description(folder: str | Path) -> dict[str, Any]:
    """Return the newest intact description of a checkpoint; warn if newer ones are damaged.

    Args:
      folder: folder of the checkpoint.

    Raises:
      FileFormatError: the folder has no checkpoint, or no description is intact.
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
    """Check the names, shapes and dtypes of a checkpoint's arrays without reading their values.

    Only one step is checked: the newest with readable shapes and with all entries of ``like``. If
    there is no such step, no error is raised; :func:`load_arrays` reports the problem.

    Args:
      folder: folder of the checkpoint.
      like: dict from the names of top-level entries in the checkpoint's tree to the expected arrays
        or their shapes. Other entries of the checkpoint are not checked.

    Raises:
      FileFormatError: names, shapes or dtypes in this step differ from those of ``like``.
    """
    folder = Path(folder).absolute()
    with _reader() as reader:
        for step in steps_of(folder):
            try:
                stored = reader.metadata(folder / str(step) / _ARRAYS)
                stored = getattr(stored, "tree", stored)
                stored = {name: stored[name] for name in like}
            except Exception:  # load_arrays reports what is wrong with the step
                stored = None
            if stored is None:
                _drop_late_reports()
                continue
            check_same_arrays(f"step {step} of {folder}", stored, like)
            return


@contextlib.contextmanager
def _reader() -> Iterator[Any]:
    """Yield orbax's reader for the arrays of one step.

    orbax's manager is not used: it reads metadata of all steps first, so one damaged step would
    make all others unreadable.
    """
    reader = _orbax().StandardCheckpointHandler()
    with _without_logs(), contextlib.closing(reader):
        yield reader


def load_arrays(folder: str | Path, like: Any, *, cast: bool = False) -> Any:
    """Return the arrays of the newest readable step, with the structure and dtypes of ``like``.

    A step that cannot be read, for example because of a damaged disk, is skipped with a warning.
    A run that resumes must delete such steps by :func:`remove_steps_above` before it saves again.

    If ``like`` has global arrays, all processes must call this function. All processes skip a step
    that one process cannot read.

    Args:
      folder: folder of the checkpoint.
      like: a pytree of arrays or their shapes. Unless ``cast``, its dtypes must be the stored ones.
      cast: whether to convert stored arrays to the dtypes of ``like``: floats to wider floats,
        float32 to bfloat16, integers to wider integers. Other conversions are errors.

    Raises:
      FileFormatError: no step can be read, or a step has another structure or other dtypes.
      MemoryError, OSError: memory or file handles ran out, or a permission is missing. The steps
        may be intact.
    """
    folder = Path(folder).absolute()
    steps = steps_of(folder)
    if not steps:
        raise FileFormatError(f"{folder} holds no complete checkpoint step")
    problem = ""
    with _reader() as reader:
        for step in steps:
            restored, error, why, fault = None, None, "by another process", _NONE
            try:
                restored = _restored(reader, folder, step, like, cast)
            except Exception as found:  # orbax and tensorstore raise many kinds
                fault, error = _fault(found, f"step {step} of {folder}")
                why = str(error)
            if fault == _DAMAGE:
                _drop_late_reports()
            worst = _worst_of_all(fault, like)
            if worst == _FINAL:
                if fault == _FINAL and error is not None:
                    raise error from None  # the cause names internals of orbax
                raise FileFormatError(f"step {step} of {folder} cannot be read: {why}")
            if worst == _DAMAGE:
                problem = f"step {step} of {folder} cannot be read: {why}"
                continue
            if problem:
                warnings.warn(f"{problem}; step {step} is taken", stacklevel=2)
            return restored
    raise FileFormatError(
        f"{problem}: the checkpoint is broken. Restore the folder from a copy, or delete it and "
        "train again"
    )


def _drop_late_reports() -> None:
    """Suppress the messages that asyncio tasks left by a failed read would log when they end.

    No code awaits these tasks. Each would log its own error, or that the event loop is closed.
    """
    _install_filters()
    gc.collect(1)


@functools.cache  # once in a process, since the messages may come at any time
def _install_filters() -> None:
    before = sys.unraisablehook

    def told(found: sys.UnraisableHookArgs) -> None:
        if not _is_late(found.exc_value):
            before(found)

    sys.unraisablehook = told
    logging.getLogger("asyncio").addFilter(
        lambda record: record.exc_info is None or not _is_late(record.exc_info[1])
    )


def _is_late(error: BaseException | None) -> bool:
    text = str(error)
    return text == "Event loop is closed" or "TensorStore" in text or "OCDBT" in text


def _restored(reader: Any, folder: Path, step: int, like: Any, cast: bool) -> Any:
    arrays = folder / str(step) / _ARRAYS
    stored = reader.metadata(arrays)
    check_same_arrays(f"step {step} of {folder}", stored, like, cast=cast)
    kinds = {name: found.dtype for name, found in _leaves(getattr(stored, "tree", stored))}
    as_stored = _map_named(lambda name, leaf: _of_dtype(leaf, kinds.get(name)), like)
    restored = reader.restore(arrays, args=_orbax().args.StandardRestore(as_stored))
    _check_sums(folder / str(step), restored)  # before arrays are converted
    wanted = {name: _dtype(leaf) for name, leaf in _leaves(like)}
    return _map_named(
        lambda name, leaf: leaf if _dtype(leaf) == wanted[name] else leaf.astype(wanted[name]),
        restored,
    )


def _of_dtype(leaf: Any, dtype: Any) -> Any:
    """Return ``leaf`` if it has ``dtype``, else a placeholder of that dtype and the same shape.

    Also return ``leaf`` if ``dtype`` is None or ``leaf`` is a typed random key.
    """
    if dtype is None or _is_key(leaf) or _dtype(leaf) == dtype:
        return leaf
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding)
    return np.zeros(np.shape(leaf), dtype)


# Results of reading a step: intact; damaged, so it is skipped; or an error to raise.
_NONE, _DAMAGE, _FINAL = range(3)
# Errors that do not mean damage. A step must not be skipped for them: a resumed run deletes it.
_NO_DAMAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)
_NO_DAMAGE_TEXT = {
    "PERMISSION_DENIED": errno.EACCES,
    "Too many open files": errno.EMFILE,
    "RESOURCE_EXHAUSTED": errno.ENOMEM,
}


def _fault(error: Exception, where: str) -> tuple[int, Exception]:
    """Return how to proceed after an error in reading a step, and the error to report.

    The first result is ``_DAMAGE`` to skip the step, or ``_FINAL`` to raise the second result.
    ``where`` names the step in the message. The messages of orbax and tensorstore are replaced,
    since they name drivers and source lines.
    """
    if isinstance(error, FileFormatError | MemoryError | _ChangedError):
        return (_DAMAGE if isinstance(error, _ChangedError) else _FINAL), error
    number = error.errno if isinstance(error, OSError) else None
    # The errors of tensorstore have no number.
    number = number or next((n for text, n in _NO_DAMAGE_TEXT.items() if text in str(error)), None)
    if number in _NO_DAMAGE:
        return _FINAL, OSError(number, os.strerror(number), where)
    if isinstance(error, FileNotFoundError) or "NOT_FOUND" in str(error):
        return _DAMAGE, ValueError("a file of its arrays is missing")
    if number is not None:
        return _DAMAGE, ValueError(f"the system reports: {os.strerror(number)}")
    return _DAMAGE, ValueError("the files of its arrays are damaged or cut short")


class _ChangedError(ValueError):
    """A restored array differs from the array that was saved."""


def _worst_of_all(fault: int, like: Any) -> int:
    """Return the worst ``fault`` of all processes if an array in ``like`` is divided among them.

    Otherwise return ``fault``, that of this process. From best to worst, a fault is ``_NONE``,
    ``_DAMAGE`` or ``_FINAL``.
    """
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(like)]
    if all(sharding is None or sharding.is_fully_addressable for sharding in shardings):
        return fault
    return int(multihost_utils.process_allgather(np.int32(fault)).max())


def check_same_arrays(
    where: str,
    stored: Any,
    like: Any,
    *,
    cast: bool = False,
    error: type[VoxaxError] = FileFormatError,
) -> None:
    """Raise an error unless two trees of arrays have the same names, shapes and dtypes.

    Args:
      where: description of the stored arrays for the message, such as ``step 3 of FOLDER``.
      stored: the stored arrays, their shapes, or orbax's metadata of them.
      like: the expected arrays or their shapes.
      cast: whether to allow stored dtypes that :func:`load_arrays` can convert.
      error: class of the error to raise, by default FileFormatError.

    Raises:
      FileFormatError: an array is missing or differs; the message names the first such array.
    """
    there, here = dict(_leaves(getattr(stored, "tree", stored))), dict(_leaves(like))
    shapes = [
        {name: str(_shape(leaf)) for name, leaf in leaves.items()} for leaves in (there, here)
    ]
    before, now = shapes
    differing = [name for name in (*now, *before) if before.get(name) != now.get(name)]
    if there and differing:
        name = differing[0]
        raise error(
            f"{where} is of another network: {name} is {before.get(name, 'not there')}, here it is "
            f"{now.get(name, 'not there')} ({len(set(differing))} arrays differ). Build the "
            "network and optimizer that were saved"
        )
    kinds = {name: (_dtype(there[name]), _dtype(leaf)) for name, leaf in here.items() if there}
    other = [n for n, (old, new) in kinds.items() if old != new and not (cast and _casts(old, new))]
    if other:
        old, new = kinds[other[0]]
        how = " or load with cast=True," if _casts(old, new) and not cast else ""
        raise error(
            f"{where} has other dtypes: {other[0]} is {old}, here it is {new} ({len(other)} arrays "
            f"differ). Build the network with the dtypes that were saved,{how} or load them as "
            "saved and convert the result"
        )


def _casts(old: np.dtype, new: np.dtype) -> bool:
    """Return whether loading may convert dtype ``old`` to ``new``.

    Lossless conversions and float32 to bfloat16 are allowed, but not integers to floats or back.
    """
    floats = jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(new, jnp.floating)
    whole = old.kind in "iu" and new.kind in "iu"
    return (floats or whole) and (
        np.can_cast(old, new, "safe") or (old, new) == (np.float32, jnp.bfloat16)
    )


def _shape(leaf: Any) -> list[int]:
    return list(getattr(leaf, "shape", np.shape(leaf)))


def _dtype(leaf: Any) -> np.dtype:
    leaf = _untyped(leaf)
    return np.dtype(leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype)


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the path and array of each leaf; typed random keys become their integer data."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(_name(path), _untyped(leaf)) for path, leaf in leaves]


def _map_named(function: Callable[[str, Any], Any], tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(_name(path), leaf), tree)


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(map(_key, path))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.generic), jax.dtypes.prng_key)


def _untyped(leaf: Any) -> Any:
    if not _is_key(leaf):
        return leaf
    is_array = isinstance(leaf, jax.Array)
    return jax.random.key_data(leaf) if is_array else jax.eval_shape(jax.random.key_data, leaf)


def _sums_of(tree: Any) -> dict[str, str]:
    """Return a dict from array path to a text such as ``"float32 0a1b2c3d"``: dtype and CRC-32.

    Arrays that are divided over processes are left out. orbax itself stores no checksums.
    """
    sums = {}
    for name, leaf in _leaves(tree):
        # Every process has a replicated array completely.
        if getattr(leaf, "is_fully_addressable", True) or leaf.is_fully_replicated:
            array = np.ascontiguousarray(leaf)
            sums[name] = f"{array.dtype} {zlib.crc32(array.reshape(-1).view(np.uint8).data):08x}"
    return sums


def _sum_of_description(description: dict[str, Any]) -> str:
    # Convert to JSON's types first: lists for tuples, and strings as keys.
    plain = json.loads(json.dumps(description))
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def _saved_sums(step: Path) -> dict[str, Any]:
    """Return the checksums in the step folder ``step``; an empty dict if they cannot be read.

    The entry ``_ARRAYS`` is a result of :func:`_sums_of`, the entry ``_DESCRIPTION`` a text.
    """
    try:
        found = json.loads(bounded_text(step / _SUMS / "metadata", _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _check_sums(step: Path, restored: Any) -> None:
    """Raise :class:`_ChangedError` if an array's checksum differs from that saved with ``step``.

    ``restored`` is the pytree of arrays read from the folder ``step``. Arrays without a saved
    checksum pass.
    """
    saved = _saved_sums(step).get(_ARRAYS)
    if not isinstance(saved, dict):
        return
    for name, found in _sums_of(restored).items():
        if saved.get(name, found) != found:
            raise _ChangedError(f"{name} is not what was saved: its checksum differs")


def _key(entry: Any) -> str:
    """Return the name that orbax gives to one entry of a pytree path."""
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
