"""Entry point of the ``voxax`` command line: parse the arguments, run a command, print errors."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import sys
import traceback
from collections.abc import Iterator, Sequence

from voxax._interrupts import ended_by_signals, failure_before, never_dropped
from voxax._version import __version__
from voxax.cli.boundary import line_of
from voxax.cli.run_lock import locks_released
from voxax.errors import MissingExtraError

_DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``voxax`` command line and return the exit status.

    The status is 0 for success. It is 2 if the arguments, a file or the machine cause an error;
    stderr gets one line about the error, and ``--debug`` adds the traceback. The status is 130
    after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, and 141 if the output is a closed pipe.

    Args:
      arguments: arguments after the program name. None takes ``sys.argv[1:]`` and
          registers an exit handler, so such a call must be the last of the process.
    """
    with ended_by_signals(_drop_closed_outputs) as ending:
        if arguments is None:
            atexit.register(ending.leave)
        try:
            status = _piped(arguments)
        except KeyboardInterrupt:  # a second one, while the first is reported
            status = 130
        finally:
            if arguments is None:
                ending.finish()
    return ending.status(status)


def _piped(arguments: Sequence[str] | None) -> int:
    try:
        try:
            return _told(arguments)
        finally:
            sys.stdout.flush()  # otherwise Python does this at its end, and prints the error
    except BrokenPipeError:
        if not _drop_closed_outputs():
            raise  # another pipe is closed, such as a worker's
        return 141  # the status of a process that the signal SIGPIPE ends


def _drop_closed_outputs() -> bool:
    """Redirect stdout and stderr to the null device if their pipes are closed; True if any was."""
    closed = [number for number in _outputs() if _has_no_reader(number)]
    if closed:
        with open(os.devnull, "w") as nowhere:
            for number in closed:
                os.dup2(nowhere.fileno(), number)
    return bool(closed)


def _outputs() -> Iterator[int]:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no stream, or no file
            yield stream.fileno()


def _has_no_reader(number: int) -> bool:
    if not hasattr(select, "poll"):  # on Windows
        return True
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _told(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != _DEBUG]
    try:
        with never_dropped(), locks_released():
            return _run(words)
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if len(words) < len(given):
            traceback.print_exception(error)
        if isinstance(error, KeyboardInterrupt):
            failure = failure_before(error)
            if failure is not None and (line := line_of(failure, words)) is not None:
                print(f"voxax: {line}", file=sys.stderr)
            print("interrupted", file=sys.stderr)
            return 130
        line = line_of(error, words)
        if line is None:
            if len(words) < len(given):
                return 1  # the traceback is above
            raise
        print(f"voxax: {line}", file=sys.stderr)
        return 2


def _run(given: list[str]) -> int:
    if given == ["--version"]:
        print(f"voxax {__version__}")
        return 0
    try:
        import tyro
    except ImportError as error:
        raise MissingExtraError('the command line needs: pip install "voxax[cli]"') from error
    from voxax.cli.bench import bench
    from voxax.cli.cache_command import cache
    from voxax.cli.check import check
    from voxax.cli.demo import demo
    from voxax.cli.detect import detect
    from voxax.cli.evaluate import evaluate
    from voxax.cli.export import export
    from voxax.cli.hardware import hardware
    from voxax.cli.help_text import fitted
    from voxax.cli.process import drop_late_reports
    from voxax.cli.segment import segment
    from voxax.cli.train import train
    from voxax.cli.tune import explain, tune
    from voxax.cli.view import view

    commands = (
        demo,
        train,
        evaluate,
        segment,
        detect,
        view,
        hardware,
        tune,
        explain,
        bench,
        cache,
        check,
        export,
    )
    drop_late_reports()
    return (
        tyro.extras.subcommand_cli_from_dict(
            {command.__name__: fitted(command, given) for command in commands},
            prog="voxax",
            description="Sparse and dynamic spatial convolution for JAX.\n"
            "--debug, anywhere on the line, prints the traceback of an error.",
            args=given,
        )
        or 0
    )
