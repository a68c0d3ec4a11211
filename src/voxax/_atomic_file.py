"""Functions that replace a file in one step: a reader sees the old file or the whole new one."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_atomically(
    path: str | os.PathLike[str], data: bytes | str, *, private: bool = False
) -> Path:
    """Write ``data`` to the file ``path`` in one step, and return the path.

    Args:
      path: the file to create or replace.
      data: the whole content of the file; text is written as UTF-8.
      private: whether only the owner may read and write the file; otherwise the umask decides.

    Raises:
      OSError: the folder does not exist or cannot be written to; an existing file is unchanged.
    """
    with replacing(path, private=private) as file:
        file.write(data.encode() if isinstance(data, str) else data)
    return Path(path)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[BinaryIO]:
    """Return a context with a writable temporary file, which is renamed to ``path`` at the end.

    After an error in the context, an existing file ``path`` is unchanged, and the temporary file is
    deleted.

    Args:
      path: the file to create or replace, in an existing folder.
      private: whether only the owner may read and write the file; otherwise the umask decides.

    Raises:
      OSError: the folder does not exist or cannot be written to, or ``path`` is a folder.
    """
    path = Path(path)
    # Opened here, since `tempfile` makes every file private.
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        descriptor = os.open(temporary, flags, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        # An error of a write names no file, and that of opening only the temporary one.
        if isinstance(error, OSError) and error.filename in (None, temporary, str(temporary)):
            error.filename = str(path)
        raise
