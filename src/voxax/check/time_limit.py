"""Limit the time of a check, also where the program loops without end.

What the checker sees of a program (operations, reads of values) asks for the time itself. A loop of
plain Python asks for nothing, so a second thread ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from voxax.check.source import library_of

SECONDS = 60.0  # by default
# After the limit, in which what asks for the time itself ends by that, which is cleaner.
_GRACE = 0.5  # seconds
# After these, a program that is in a library's frame is ended too.
_PATIENCE = 2.0  # seconds


class RanAway(BaseException):
    """Raised where the program asks too often, or runs too long."""


class _OutOfTime(RanAway):
    def __init__(self) -> None:
        super().__init__(too_long())


class _Limit(threading.local):
    """The limit of the present thread."""

    seconds = SECONDS
    end: float | None = None


_limit = _Limit()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Give the searches of this thread ``seconds`` in all, from now on."""
    before = _limit.seconds, _limit.end
    _limit.seconds, _limit.end = seconds, time.monotonic() + seconds
    try:
        yield
    finally:
        _limit.seconds, _limit.end = before


def end(share: float = 1.0) -> float:
    """Return the time (``time.monotonic``) at which the search ends, or a share of it."""
    seconds = _limit.seconds
    last = time.monotonic() + seconds if _limit.end is None else _limit.end
    return last - (1 - share) * seconds


def too_long() -> str:
    """Return the reason for a search that ended early."""
    return f"it takes longer than {_limit.seconds:g} s"


@contextlib.contextmanager
def ended_by(last: float) -> Iterator[None]:
    """Raise :class:`RanAway` in the block at a time (``time.monotonic``), whatever runs there."""
    if time.monotonic() > last:
        raise RanAway(too_long())
    done, thread = threading.Event(), threading.get_ident()
    lock, report = threading.Lock(), sys.unraisablehook

    def report_others(what: Any) -> None:
        # It may be raised where nothing catches it, as in a callback of the garbage collector.
        if not issubclass(what.exc_type, _OutOfTime):
            report(what)

    def watch() -> None:
        if done.wait(last + _GRACE - time.monotonic()):
            return
        while not done.wait(0.005):
            patient = time.monotonic() < last + _GRACE + _PATIENCE
            if not _may_end(sys._current_frames().get(thread), patient):
                continue
            with lock:
                if not done.is_set():
                    sys.unraisablehook = report_others
                    _raise_in(thread, _OutOfTime)
            done.wait(0.2)  # and again, where the program caught it

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with lock:
            done.set()
        _raise_in(thread, None)  # what was not delivered yet
        if sys.unraisablehook is report_others:
            sys.unraisablehook = report


def _may_end(frame: Any, patient: bool) -> bool:
    """Return True where an exception leaves nothing half done: in user code, outside imports."""
    if patient and frame is not None and library_of(frame.f_code.co_filename) is not None:
        return False
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    return True


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    given = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), given)
