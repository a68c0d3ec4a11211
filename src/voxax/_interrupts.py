"""Handling of Ctrl-C, SIGTERM and SIGHUP in commands: end cleanly, and never lose a signal."""

from __future__ import annotations

import _thread
import collections
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

_MOMENT = 0.01  # seconds
# Signals within this time count as one: a closing terminal and `timeout` send theirs twice.
_ONE_SIGNAL = 0.25  # seconds
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# The numbers of the signals that this module sends to its own process.
_sent: collections.deque[int] = collections.deque()


class _Interrupts:
    """The exceptions of signals that were raised inside one :func:`never_dropped`.

    Attributes:
      raised: how many were raised so far.
      handled: how many of them, the first ones, were handled.
      signal: number of the signal of the last one.
      is_lost: whether one was lost, and has not been raised again yet.
      is_repeated: whether the signal was sent again, and has not been raised again yet.
      has_ended: whether the context has ended. Nothing is raised again then.
    """

    def __init__(self) -> None:
        self.raised = self.handled = 0
        self.signal: int = signal.SIGINT
        self.is_lost = self.is_repeated = self.has_ended = False
        self.lock = _thread.allocate_lock()

    @property
    def is_pending(self) -> bool:
        """Whether one was raised that nothing has handled."""
        return self.is_lost or self.raised > self.handled

    def repeat(self) -> None:
        """Raise a lost exception again in the main thread, after a moment."""
        self.is_lost = True
        # threading.Thread takes a lock to start. The interrupted code may hold that lock.
        _thread.start_new_thread(self._repeat_later, ())

    def _repeat_later(self) -> None:
        time.sleep(_MOMENT)
        with self.lock:
            if self.is_lost and not self.has_ended:
                self.is_lost, self.is_repeated = False, True
                _signal_main(self.signal)  # the same one, since the process may ignore others


# The interrupts of the innermost context of `never_dropped`; None outside of them.
_current: _Interrupts | None = None


class _Interrupt(KeyboardInterrupt):
    """Exception of a signal. If it is lost inside :func:`never_dropped`, it is raised again."""

    context: _Interrupts | None = None  # None in copies, which are no signals
    number = 0

    def __del__(self) -> None:
        context = self.context
        if context is not None and self.number > context.handled and not context.has_ended:
            context.repeat()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise an exception, and count it for :func:`never_dropped`."""
    del frame
    error = _Interrupt()
    if _current is not None:
        _current.raised += 1
        _current.signal, _current.is_repeated = number, False
        error.context, error.number = _current, _current.raised
    try:
        raise error
    finally:
        del error  # its traceback holds this frame: only the garbage collector would end both


_CTRL_C = (signal.default_int_handler, _interrupt)


def mark_handled() -> None:
    """Tell :func:`never_dropped` that the caller handles all interrupts so far.

    Call it in an ``except KeyboardInterrupt`` clause after which the command goes on. Otherwise the
    exception would be raised again.
    """
    if _current is not None:
        _current.handled, _current.is_lost = _current.raised, False


class Ending:
    """The signal handlers of a command, and the signal that came; see :func:`ended_by_signals`.

    Attributes:
      number: number of the first SIGTERM or SIGHUP; None if none has come yet.
    """

    def __init__(self, first: Callable[[], object]) -> None:
        self.number: int | None = None
        self._first = first
        self._late: tuple[int, float] | None = None

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM or SIGHUP: raise :class:`KeyboardInterrupt` at the first signal only.

        If this exception was lost, :func:`never_dropped` sends the signal again to raise it again.

        The arguments are those of Python's signal handlers: number of the signal, and frame.
        """
        if self.number is None:
            self.number = number
            if signal.getsignal(signal.SIGINT) in _CTRL_C:
                signal.signal(signal.SIGINT, self.again)
            with contextlib.suppress(Exception):  # in a handler it would replace the interrupt
                self._first()
            _interrupt(number, frame)
        if _current is not None and _current.is_repeated:
            _interrupt(number, frame)

    def again(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C after SIGTERM or SIGHUP: raise :class:`KeyboardInterrupt` after a moment.

        During this moment, the thread of :func:`_second_ends` normally ends the process, because
        Ctrl-C is the second signal.
        """
        time.sleep(10 * _MOMENT)
        _interrupt(number, frame)

    def status(self, status: int) -> int:
        """Return the exit status to use for a command that ended with ``status``.

        If SIGTERM or SIGHUP came, 128 + the signal's number replaces the statuses 0 and 130
        (Ctrl-C).
        """
        return 128 + self.number if self.number is not None and status in (0, 130) else status

    def finish(self) -> None:
        """Let the next signal or Ctrl-C raise no exception, but be recorded for :meth:`leave`.

        A second one ends the process. Call this method when a command is done. While Python then
        joins its threads, an exception would be printed, but would not change the exit status.
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
        """End the process with the exit status of a signal, if one came after :meth:`finish`.

        Register this method with ``atexit`` before all other functions, so that it runs last.
        """
        if self._late is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(128 + self._late[0])


@contextlib.contextmanager
def ended_by_signals(first: Callable[[], object] = lambda: None) -> Iterator[Ending]:
    """Return a context in which SIGTERM and SIGHUP raise :class:`KeyboardInterrupt` like Ctrl-C.

    A SIGTERM or SIGHUP that the process ignores or handles already is left alone. If two of the
    three signals come, the second ends the process immediately, whatever the process does. There
    are two exceptions: a second Ctrl-C after a first Ctrl-C raises :class:`KeyboardInterrupt`
    again, and a signal within 0.25 s after the first does not end the process. Outside the main
    thread, the context does nothing.

    Args:
      first: a function to call at the first SIGTERM or SIGHUP, before the exception is raised.
    """
    ending = Ending(first)
    if threading.current_thread() is not threading.main_thread():  # others set no handler
        yield ending
        return
    taken = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    try:
        with _second_ends(taken) if taken else contextlib.nullcontext():
            # Last, since starting the thread takes milliseconds, in which nothing catches the
            # exception of a signal.
            for number in taken:
                signal.signal(number, ending.take)
            yield ending
    finally:
        for number in taken:
            if signal.getsignal(number) == ending.take:
                signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == ending.again:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _second_ends(numbers: list[int]) -> Iterator[None]:
    """Return a context in which a second signal ends the process, unless both are Ctrl-C.

    Only Ctrl-C and the signal numbers in ``numbers`` count, and a signal within 0.25 s after the
    first does not. A separate thread receives the signals, so this works even while the main thread
    runs no Python code.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:  # an event loop set it, and needs it
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
        if number in _sent:
            _sent.remove(number)
        elif number in (signal.SIGINT, *numbers):
            if not first:
                first, since = number, time.monotonic()
            elif {first, number} != {signal.SIGINT} and time.monotonic() - since > _ONE_SIGNAL:
                os._exit(128 + number)


def _is_waited_for(number: int, handler: object) -> bool:
    """Return whether ``handler`` is this module's handler of signal ``number``.

    For Ctrl-C, Python's own handler counts too.
    """
    if number == signal.SIGINT and handler in _CTRL_C:
        return True
    return isinstance(getattr(handler, "__self__", None), Ending)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Return a context that delays Ctrl-C: :class:`KeyboardInterrupt` comes when the context ends.

    Inside :func:`ended_by_signals`, SIGTERM and SIGHUP are delayed too. If the block fails with an
    error, this error becomes the cause of the :class:`KeyboardInterrupt`.
    """
    # Other threads cannot set handlers, and a handler that is not Python's cannot be restored.
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
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    except Exception as error:
        # The caller may handle the error and go on. The signals would then be lost.
        try:
            _handle(came, before)
        except KeyboardInterrupt as interrupt:
            raise interrupt from error
        raise
    _handle(came, before)


def _handle(came: list[int], handlers: Mapping[int, Any]) -> None:
    """Call the handlers of the signals in ``came``, SIGTERM and SIGHUP first."""
    for number in _ENDING:
        if number in came:
            handlers[number](number, None)  # if sent again, it would count as a second signal
    if signal.SIGINT in came:
        if callable(handler := handlers[signal.SIGINT]):
            handler(signal.SIGINT, None)
        else:
            signal.raise_signal(signal.SIGINT)


def failure_before(interrupt: KeyboardInterrupt) -> BaseException | None:
    """Return the error that ended the block of :func:`uninterrupted` which delayed ``interrupt``.

    The result is None if no block delayed it, or if the block ended without an error.
    """
    return interrupt.__cause__ if isinstance(interrupt, _Interrupt) else None


@contextlib.contextmanager
def never_dropped() -> Iterator[None]:
    """Return a context that raises a :class:`KeyboardInterrupt` again if other code lost it.

    Python drops exceptions in ``__del__`` and in callbacks of its garbage collector, and JAX has
    such a callback. JAX also has ``except:`` clauses that end any exception. A command would then
    ignore a Ctrl-C, or fail later with another error. In this context, the exception is raised
    again a moment later, or at the end of the context if that is sooner. Another error that the
    lost exception led to becomes a :class:`KeyboardInterrupt`.

    Code in the context that handles a :class:`KeyboardInterrupt` calls :func:`mark_handled`.
    Outside the main thread, the context does nothing.
    """
    global _current
    if threading.current_thread() is not threading.main_thread():  # signals interrupt no other
        yield
        return
    context, outer, before = _Interrupts(), _current, sys.unraisablehook

    def told(found: sys.UnraisableHookArgs) -> None:
        if context.has_ended or not issubclass(found.exc_type, KeyboardInterrupt):
            before(found)
            return
        if isinstance(found.exc_value, _Interrupt):
            found.exc_value.context = None  # its end is no second loss
        context.repeat()

    handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    sys.unraisablehook, _current = told, context
    if handles:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    except BaseException as error:
        if context.is_pending and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    finally:
        try:
            if handles and signal.getsignal(signal.SIGINT) is _interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            with context.lock:  # from here on nothing is raised again
                context.has_ended = True
        finally:  # also if another Ctrl-C comes in these lines
            context.has_ended, _current = True, outer
            if sys.unraisablehook is told:
                sys.unraisablehook = before
    if context.is_pending:
        raise KeyboardInterrupt


def _signal_main(number: int) -> None:
    _sent.append(number)
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, number)  # this also interrupts waiting for a lock
    else:  # on Windows
        _thread.interrupt_main(signal.Signals(number))
