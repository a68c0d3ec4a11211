"""Limit the time of a check, also if the program loops without end.

The checker compares the time with the limit at each operation and each request for a value. In a
loop of plain Python there are none, so a second thread ends such a loop.
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
# Time after the limit in which a program can still end at its next operation, which is cleaner.
_GRACE = 0.5  # seconds
# Further time after which a program is ended even in a frame of a library.
_PATIENCE = 2.0  # seconds


class RanAway(BaseException):
    """The checked program read too many values, ran too many operations, or ran too long."""


class _OutOfTime(RanAway):
    def __init__(self) -> None:
        super().__init__(too_long())


class _Limit(threading.local):
    """The time limit of the present thread for all its searches together.

    `seconds` is the whole time, and `end` the ``time.monotonic()`` at which it is over. Outside of
    :func:`within`, `end` is None.
    """

    seconds = SECONDS
    end: float | None = None


_limit = _Limit()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Return a context in which all searches for findings in this thread take at most ``seconds``.

    The limit is on their total time.
    """
    before = _limit.seconds, _limit.end
    _limit.seconds, _limit.end = seconds, time.monotonic() + seconds
    try:
        yield
    finally:
        _limit.seconds, _limit.end = before


def end(share: float = 1.0) -> float:
    """Return the ``time.monotonic()`` at which `share` of the search's time limit has passed.

    The limit is that of :func:`within`. Outside of it, the search is assumed to begin at this call.
    """
    seconds = _limit.seconds
    last = time.monotonic() + seconds if _limit.end is None else _limit.end
    return last - (1 - share) * seconds


def too_long() -> str:
    """Return the message for a search that exceeded the time limit."""
    return f"it takes longer than {_limit.seconds:g} s"


@contextlib.contextmanager
def ended_by(last: float) -> Iterator[None]:
    """Return a context that raises :class:`RanAway` when ``time.monotonic()`` reaches `last`."""
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
    """Return True if the time limit may raise its error while the thread runs the code of `frame`.

    The result is False during an import and, if `patient` is True, in the code of a library.
    """
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
