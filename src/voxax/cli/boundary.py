"""Turn errors that the user's input or machine causes into one line of text for stderr."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import tomllib
import zipfile
import zlib
from collections.abc import Sequence
from types import TracebackType

from voxax.errors import MissingExtraError, VoxaxError

# Packages that voxax[demo] installs, and voxax[cli] and voxax[tpu] do not.
_OF_DEMO = ("flax", "optax", "orbax", "pydantic", "matplotlib", "plotly", "laspy", "plyfile")
# Packages that read and write files. Their errors are usually caused by the file.
_OF_FILES = {
    **dict.fromkeys(("laspy", "lazrs", "plyfile", "pye57", "lzf"), "the scan"),
    **dict.fromkeys(("h5py", "pyarrow", "safetensors", "safetensors_rust"), "the file"),
    **dict.fromkeys(("orbax", "tensorstore"), "the checkpoint"),
    **dict.fromkeys(("huggingface_hub", "httpx", "requests", "urllib3"), "the download"),
}
# Errors of the readers of Python's standard library.
_OF_DATA = (
    *(json.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError),
    *(zipfile.BadZipFile, zlib.error, pickle.UnpicklingError),
)
_FIXES = {
    errno.ENOENT: "check the path",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM), "change its permissions, or give another file or folder"
    ),
    errno.EROFS: "give a folder that can be written to",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space, or give another"),
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR, errno.EEXIST), "give another path"),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), "give a shorter path, without loops"),
    errno.EMFILE: "raise the limit of open files, see `ulimit -n`",
    **dict.fromkeys((errno.EAGAIN, errno.ENOMEM), "close other programs, or give fewer workers"),
    errno.EIO: "the disk cannot read or write it: take a copy from elsewhere",
    errno.EADDRINUSE: "give another port",
}
_LONGEST = 400


def line_of(error: BaseException, arguments: Sequence[str]) -> str | None:
    """Return the line that explains an error to the user, or None for an error in voxax itself.

    `arguments` are the command-line arguments. If the error names no file, the line names the
    arguments that are existing files or folders.
    """
    # voxax.models names the extra of the library, not the extra of the command line.
    missing = error.__cause__ if isinstance(error, MissingExtraError) else error
    package = ""
    if isinstance(missing, ModuleNotFoundError):
        package = (missing.name or "").partition(".")[0]
    if package == "rich":
        return 'the command line needs rich: pip install "voxax[cli]"'
    if package == "flax" or (package in _OF_DEMO and missing is error):
        return f'this command needs {package}: pip install "voxax[demo]"'
    if isinstance(error, VoxaxError):
        # An error of a library may have several lines, and the name of a file may be too long.
        line = " ".join(str(error).split())
        return re.sub(rf"\S{{{_LONGEST},}}", lambda found: _shown(found[0]), line)
    if isinstance(error, MemoryError) or _is_of_a_full_device(error):
        return (
            f"there is not enough memory{_with(arguments)}{_why(error)}: close other programs, or "
            "ask for less: smaller inputs, networks or batches, or larger voxels"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return _of_the_system(error, arguments)
    if isinstance(error, ValueError) and str(error).startswith("embedded null"):
        return "a path has a zero byte in it: check the paths that are given"
    name = _library(error)
    if name is None and not isinstance(error, (OSError, *_OF_DATA)):
        return None
    what = f"{name} failed" if name else "a file is broken"
    fix = f"check {_OF_FILES.get(name or '', 'the file')}, or take another copy of it"
    kind = type(error).__name__
    return f"{what}{_with(arguments)}: {kind}{_why(error)}; {fix} (--debug shows where)"


def _of_the_system(error: OSError, arguments: Sequence[str]) -> str:
    names = [_shown(name) for name in (error.filename, error.filename2) if name is not None]
    where = " and ".join(names) or f"the system refuses a call{_with(arguments)}"
    reason = error.strerror or os.strerror(error.errno or 0)
    fix = _FIXES.get(error.errno or 0, "check the path (--debug shows where)")
    return f"{where}: {reason}; {fix}"


def _shown(name: object) -> str:
    text = os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else str(name)
    return text if len(text) < _LONGEST else f"{text[:80]}... of {len(text)} characters"


def _with(arguments: Sequence[str]) -> str:
    """Return text such as ``" with FILE, FILE"`` that names the `arguments` that exist as paths.

    At most four are named. The text is empty if no argument is an existing path.
    """
    given = [word for argument in arguments for word in (argument, argument.partition("=")[2])]
    there = [_shown(word) for word in given if word and _exists(word)]
    return f" with {', '.join(there[:4])}" if there else ""


def _exists(word: str) -> bool:
    try:
        return os.path.exists(word)
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def _why(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f" ({text[:_LONGEST]})" if text else ""


def _is_of_a_full_device(error: BaseException) -> bool:
    """Return True for the error that XLA raises if an array does not fit into memory."""
    ours = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    return ours and re.match(r"RESOURCE_EXHAUSTED|.*[Oo]ut of memory", str(error)) is not None


def _library(error: BaseException) -> str | None:
    """Return the name of the file-reading package that raised `error`, or None if none did."""
    root = type(error).__module__.partition(".")[0]
    if root in _OF_FILES:
        return root
    for package in reversed(_packages(error.__traceback__)):
        if package == "voxax" or package in _OF_FILES:
            return package if package in _OF_FILES else None
    return None


def _packages(trace: TracebackType | None) -> list[str]:
    """Return the top-level package of each frame of a traceback, innermost frame last."""
    found = []
    while trace is not None:
        found.append(str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        trace = trace.tb_next
    return found
