"""A line on the terminal while measuring holds up the caller."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from voxax.tuning.budget import spent

_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def progress(what: str, candidates: int) -> Iterator[None]:
    """Say what is measured; the line is taken back afterwards.

    Nothing is written where stderr is not a terminal: there the log serves, see
    ``VOXAX_AUTOTUNE_LOG``.
    """
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield
        return
    words = f"voxax measures {candidates} ways to compute: {what}"
    stream.write(f"{_CLEAR}{words[:90]} ({spent():.0f} s so far)")
    stream.flush()
    try:
        yield
    finally:
        stream.write(_CLEAR)
        stream.flush()
