"""Ctrl-C, SIGTERM and SIGHUP: when they have to wait, that none is lost, what a second one does."""

from __future__ import annotations

import _thread
import collections
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_MOMENT = 0.01  # seconds
# A terminal that closes, and `timeout`, send the same signal to a process twice in a row.
_ONE_SIGNAL = 0.25  # seconds
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# One for each Ctrl-C that this module sends itself.
_sent: collections.deque[int] = collections.deque()


class Ending:
    """What SIGTERM and SIGHUP did to a command, see :func:`ended_by_signals`.

    Attributes:
      number: the first of them that came; None before.
    """

    def __init__(self, first: Callable[[], object]) -> None:
        self.number: int | None = None
        self._first = first
        self._late: tuple[int, float] | None = None

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first one raises :class:`KeyboardInterrupt`."""
        del frame
        if self.number is None:
            self.number = number
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self.again)
            self._first()
            raise KeyboardInterrupt

    def again(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C after :meth:`take`: let the watching thread end the process first."""
        time.sleep(10 * _MOMENT)
        signal.default_int_handler(number, frame)

    def status(self, status: int) -> int:
        """Return the exit status of a command that ended with ``status``, 0 or 130 of Ctrl-C."""
        return 128 + self.number if self.number is not None and status in (0, 130) else status

    def finish(self) -> None:
        """Let signals, Ctrl-C too, wait for the end of the process; a second one ends it at once.

        While Python joins threads there, an exception would be printed, and change no status:
        :meth:`leave` does.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, *_ENDING):
            if _is_waited_for(number, signal.getsignal(number)):
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._late is None:
            self._late = number, time.monotonic()
        elif time.monotonic() > self._late[1] + _ONE_SIGNAL:
            os._exit(128 + number)

    def leave(self) -> None:
        """End the process with the status of a signal that came after :meth:`finish`.

        For ``atexit``, before what other modules register: these run first then.
        """
        if self._late is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(128 + self._late[0])


@contextlib.contextmanager
def ended_by_signals(first: Callable[[], object] = lambda: None) -> Iterator[Ending]:
    """Let SIGTERM and SIGHUP raise :class:`KeyboardInterrupt` in the block, as Ctrl-C does.

    One that was ignored before, or that has a handler, stays so. A second signal ends the process
    at once, whatever it does; but Ctrl-C after Ctrl-C waits where the first one waits.

    Args:
      first: called when the first of them has come, before the exception.
    """
    ending = Ending(first)
    if threading.current_thread() is not threading.main_thread():  # others set no handler
        yield ending
        return
    taken = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, ending.take)
    try:
        with _second_ends(taken) if taken else contextlib.nullcontext():
            yield ending
    finally:
        for number in taken:
            if signal.getsignal(number) == ending.take:
                signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == ending.again:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _second_ends(numbers: list[int]) -> Iterator[None]:
    """End the process at a second signal, also while the main thread runs no Python."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:  # of an event loop, which needs it
        signal.set_wakeup_fd(before)
    watch = threading.Thread(target=_watch, args=(reader, numbers), daemon=True)
    watch.start()
    try:
        yield
    finally:
        now = signal.set_wakeup_fd(-1)
        if now != writer:
            signal.set_wakeup_fd(now)
        os.close(writer)
        watch.join()
        os.close(reader)


def _watch(reader: int, numbers: list[int]) -> None:
    first, since = 0, 0.0
    _sent.clear()
    while told := os.read(reader, 1):
        number = told[0]
        if number == signal.SIGINT and _sent:
            _sent.pop()
        elif number in (signal.SIGINT, *numbers):
            if not first:
                first, since = number, time.monotonic()
            elif {first, number} != {signal.SIGINT} and time.monotonic() - since > _ONE_SIGNAL:
                os._exit(128 + number)


def _is_waited_for(number: int, handler: object) -> bool:
    """Whether ``handler`` ends a command: Python's own of Ctrl-C, or one of this module."""
    if number == signal.SIGINT and handler is signal.default_int_handler:
        return True
    return isinstance(getattr(handler, "__self__", None), Ending)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, and raise :class:`KeyboardInterrupt` there.

    So do SIGTERM and SIGHUP inside :func:`ended_by_signals`.
    """
    # Other threads set no handler, and one that is not Python's could not be put back.
    ours = signal.getsignal(signal.SIGINT) is not None
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: dict[int, Any] = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
    for number in _ENDING:
        if _is_waited_for(number, handler := signal.getsignal(number)):
            before[number] = handler
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in _ENDING:
        if number in came:
            before[number](number, None)  # sent again, it would count as a second one
    if signal.SIGINT in came:
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
    _sent.append(signal.SIGINT)
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # it may wait for a lock, which this ends
    else:  # on Windows
        _thread.interrupt_main()
