"""Entry of the ``voxax`` command: parse, run one command, print an error in one line."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator, Sequence

from voxax._version import __version__
from voxax.errors import MissingExtraError, VoxaxError

# What voxax[demo] brings, and voxax[cli] and voxax[tpu] do not.
_OF_DEMO = ("flax", "optax", "orbax", "matplotlib", "plotly", "laspy", "plyfile", "trimesh")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    0 is success, 2 a mistake in the request (one line names it), 130 an interruption, 141 a reader
    that closed the pipe, such as ``head``.
    """
    try:
        try:
            return _told(arguments)
        finally:
            sys.stdout.flush()  # or Python does at its end, and prints the error
    except BrokenPipeError:
        closed = [number for number in _outputs() if _has_no_reader(number)]
        if not closed:
            raise  # of another pipe, such as a worker's
        with open(os.devnull, "w") as nowhere:
            for number in closed:
                os.dup2(nowhere.fileno(), number)
        return 141  # as of a process that the signal SIGPIPE ends


def _outputs() -> Iterator[int]:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # no file behind it
            yield stream.fileno()


def _has_no_reader(number: int) -> bool:
    if not hasattr(select, "poll"):  # on Windows
        return True
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _told(arguments: Sequence[str] | None) -> int:
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (VoxaxError, ModuleNotFoundError) as error:
        # voxax.models names the extra of the library, not that of the command line.
        missing = error.__cause__ if isinstance(error, MissingExtraError) else error
        package = (getattr(missing, "name", None) or "").partition(".")[0]
        if package != "flax" and isinstance(error, VoxaxError):
            print(f"voxax: {error}", file=sys.stderr)
            return 2
        if package not in _OF_DEMO:
            raise
        print(f'voxax: this command needs {package}: pip install "voxax[demo]"', file=sys.stderr)
        return 2


def _run(arguments: Sequence[str] | None) -> int:
    if list(sys.argv[1:] if arguments is None else arguments) == ["--version"]:
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
    from voxax.cli.export import export
    from voxax.cli.hardware import hardware
    from voxax.cli.help_text import fitted
    from voxax.cli.segment import segment
    from voxax.cli.train import train
    from voxax.cli.tune import explain, tune
    from voxax.cli.view import view

    commands = (
        demo,
        train,
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
    given = sys.argv[1:] if arguments is None else list(arguments)
    return (
        tyro.extras.subcommand_cli_from_dict(
            {command.__name__: fitted(command, given) for command in commands},
            prog="voxax",
            description="Sparse and dynamic spatial convolution for JAX.",
            args=given,
        )
        or 0
    )
