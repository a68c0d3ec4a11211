"""Writes a whole file or none of it."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: str | os.PathLike, content: bytes) -> Path:
    """Write `content` to `path` and return the path.

    The bytes go to a temporary file in the same folder, which then takes the name:
    a reader never sees half a file, and a failure leaves an older file as it was.

    Raises:
        OSError: the folder does not exist or cannot be written to.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp makes files private; a picture should be as readable as any new file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
