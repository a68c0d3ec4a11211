"""Output of commands while they run: spinners with times, progress bars, tables of results."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

EVERY = 10.0
"""Seconds between two lines of progress if the output is not a terminal."""


@contextlib.contextmanager
def working(message: str, *, begin: bool = True) -> Iterator[Progress | None]:
    """Show ``message`` and the elapsed time while the block runs.

    It yields rich's ``Progress``, or None without a terminal. Without a terminal, the message is
    printed when the block begins, and then every ten seconds with the elapsed time. ``begin=False``
    omits the first message and prints to stderr; it is for commands whose output other programs
    read.
    """
    console = Console(highlight=False, stderr=not begin)
    if console.is_terminal:
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(message, total=None)
            yield progress
        return
    if begin:
        console.print(message, soft_wrap=True)
    with regularly(lambda s: console.print(f"{message}: {s:.0f} s so far", soft_wrap=True)):
        yield None


@contextlib.contextmanager
def regularly(tell: Callable[[float], None]) -> Iterator[None]:
    """Call ``tell(elapsed seconds)`` every ten seconds while the block runs, in a thread."""
    begin, done = time.perf_counter(), threading.Event()

    def run() -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            while not done.wait(EVERY):
                tell(time.perf_counter() - begin)

    thread = threading.Thread(target=run, name="voxax progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class training_bar:
    """Context manager that shows a training's progress bar, with loss and scans per second.

    Args:
      steps: number of steps in total.
      done: number of steps that were made before the run was resumed.
      scans: number of scans in a step.
    """

    def __init__(self, steps: int, done: int, scans: int = 1) -> None:
        self._scans = scans
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task("training", total=steps, completed=done, status="")
        self._begin, self._done = time.perf_counter(), 0
        self._lines = contextlib.ExitStack()

    def __enter__(self) -> training_bar:
        self._progress.start()
        if not self._progress.console.is_terminal:
            self._lines.enter_context(regularly(self._tell_state))
        return self

    def __exit__(self, *error: object) -> None:
        self._lines.close()
        self._progress.stop()

    def _tell_state(self, seconds: float) -> None:
        task = self._progress.tasks[0]
        made = f"training: {task.completed:.0f} of {task.total:.0f} steps, {seconds:.0f} s so far"
        self.tell(f"{made}  {task.fields['status']}".rstrip())

    def update(self, loss: float, told: str, programs: int) -> None:
        """Count one more step, and show the state of the training.

        `loss` is a mean of the latest losses, `told` is a text about the step's prediction, and
        `programs` is the number of programs compiled so far.
        """
        self._done += 1
        rate = self._done * self._scans / max(time.perf_counter() - self._begin, 1e-9)
        status = f"loss {loss:.3f}  {told}  {rate:.1f} scans/s  {programs} programs"
        self._progress.update(self._task, advance=1, status=status)

    def tell(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, soft_wrap=True, highlight=False)


@contextlib.contextmanager
def scan_bar(number: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar of `number` scans on stderr while the block runs.

    It yields a function without arguments, which the block must call after each scan.
    """
    console, done = Console(highlight=False, stderr=True), 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    task = progress.add_task("scans", total=number)

    def count() -> None:
        nonlocal done
        done += 1
        progress.update(task, completed=done)

    def tell(seconds: float) -> None:
        console.print(f"{done} of {number} scans: {seconds:.0f} s so far", soft_wrap=True)

    with contextlib.ExitStack() as shown:
        shown.enter_context(progress if console.is_terminal else regularly(tell))
        yield count


def print_table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str,
    numbers: Sequence[str] = (),
    most: int | None = None,
) -> None:
    """Print a table on stdout; the columns named in ``numbers`` are aligned to the right.

    Without a terminal, the table is as wide as its content, at most ``most`` characters.
    """
    table = Table(title=title)
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left")
    for row in rows:
        table.add_row(*map(Text, row))  # as it is: a cell may look like markup
    console = Console(highlight=False)
    if not console.is_terminal:
        widest = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
        width = sum(widest) + 3 * len(names) + 1
        console = Console(highlight=False, width=min(width, most or width))
    console.print(table)


def result_table(
    title: str,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    metrics: dict[str, Any],
    out: Path,
) -> None:
    """Print the results of a run: a table, counts from `metrics`, and the paths of its files.

    The table has the column names `names` and the cells `rows`. `metrics` is the content of
    metrics.json, and `out` the folder of the run. The last line is the command that uses the run's
    checkpoint.
    """
    print_table(names, rows, title)
    console = Console(highlight=False, markup=False)  # paths may have brackets
    seconds = metrics["seconds"]
    console.print(
        f"{metrics['steps']} steps, {metrics['programs_compiled']} programs compiled, "
        f"{metrics['voxels_dropped']} voxels dropped, {seconds['total']:.0f} s in total"
    )
    for label, name in (
        ("picture", "demo.png"),
        ("page", "demo.html"),
        ("scan", "demo.ply"),
        ("boxes", "found.json"),
        ("metrics", "metrics.json"),
        ("losses", "losses.csv"),
        ("checkpoint", "checkpoint"),
    ):
        if not (out / name).exists():
            continue
        # soft_wrap keeps long paths in one piece, so that they can be copied.
        console.print(f"{label:>10}  {out / name}", soft_wrap=True)
    task, checkpoint = metrics["task"], shlex.quote(str(out / "checkpoint"))
    command, options = command_of(task), f"FILE --checkpoint {checkpoint}"
    if command == "evaluate":
        options = f"{checkpoint} DATA"
    console.print(f"next: voxax {command} {options}", soft_wrap=True)


def command_of(task: str) -> str:
    """Return the name of the command that applies networks trained for `task`."""
    return "evaluate" if task == "classify" else task


MESSAGES = {
    "simulate": "simulating or reading scenes",
    "objects": "cutting objects out of the training scans, once",
    "plan": "planning: which kernel maps the network needs, how large its levels are",
    "compile": "compiling the training step, once",
    "run": "compiling the network and running it",
    "validate": "validating",
    "pictures": "drawing",
}


@contextlib.contextmanager
def phase(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Show ``MESSAGES[name]`` while the block runs, and add its time to ``seconds[name]``."""
    begin, message = time.perf_counter(), MESSAGES.get(name, "")
    kept = jax.config.values["jax_compilation_cache_dir"]
    if name == "compile" and kept:
        message += f" (minutes on a TPU); later runs find it in {kept}"
    try:
        with working(message) if message else nullcontext():
            yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin
