"""Run a script that imports a package of voxax by another library's name."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path


def run_script(package: str, install: Callable[[], None], described: str | None) -> None:
    """Call ``install``, then run the script or module that the command line names.

    The script is ``__main__``, with its own ``sys.argv`` and its folder first on ``sys.path``.
    ``package`` is the dotted name of the voxax package, and ``install`` registers it under another
    library's name. ``--help`` prints the usage of ``python -m package`` and the text ``described``.

    Raises:
      SystemExit: the command line names nothing, a script that does not exist, or a folder without
        ``__main__.py``.
    """
    usage = f"usage: python -m {package} SCRIPT [ARGS...]\n       ... -m MODULE [ARGS...]"
    arguments = sys.argv[1:]
    if not arguments or arguments == ["-m"]:
        sys.exit(usage)
    if arguments[0] in ("-h", "--help"):
        print(f"{usage}\n\n{described}")  # noqa: T201 (a command)
        sys.exit(0)
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = Path(arguments[0])
    if not script.exists():
        sys.exit(f"no script {script}")
    if script.is_dir() and not (script / "__main__.py").exists():
        sys.exit(f"{script} is a folder without __main__.py: give a script")
    sys.argv = arguments
    # `python -m` puts the current folder first; Python itself puts a script's own there.
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")
