"""Ctrl-C: when it has to wait, and that it is never lost."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator

_MOMENT = 0.01  # seconds


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, and raise :class:`KeyboardInterrupt` there."""
    # Other threads set no handler, and one that is not Python's could not be put back.
    ours = signal.getsignal(signal.SIGINT) is not None
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def never_dropped() -> Iterator[None]:
    """Raise a Ctrl-C that Python drops again, a moment later or at the end of the block.

    Python drops what is raised in ``__del__`` and in callbacks of its garbage collector, of which
    JAX has one: the command would go on to its end.
    """
    lock, dropped, ended = _thread.allocate_lock(), False, False
    before = sys.unraisablehook

    def told(found: sys.UnraisableHookArgs) -> None:
        nonlocal dropped
        if ended or not issubclass(found.exc_type, KeyboardInterrupt):
            before(found)
            return
        dropped = True
        # threading.Thread takes a lock to start. The interrupted code may hold that lock.
        _thread.start_new_thread(raise_again, ())

    def raise_again() -> None:
        nonlocal dropped
        time.sleep(_MOMENT)
        with lock:
            if dropped:
                dropped = False
                _interrupt_main()

    sys.unraisablehook = told
    try:
        yield
    finally:
        if sys.unraisablehook is told:
            sys.unraisablehook = before
        with lock:
            lost, dropped, ended = dropped, False, True
    if lost:
        raise KeyboardInterrupt


def _interrupt_main() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # it may wait for a lock, which this ends
    else:  # on Windows
        _thread.interrupt_main()
