"""Run a script in which ``import spconv`` is voxax: ``python -m voxax.torch.spconv SCRIPT ARGS``.

``-m MODULE ARGS`` runs a module. The script sees itself as ``__main__``, its own ``sys.argv``, and
its folder first on ``sys.path``, as when Python runs it. Processes that it spawns with
``multiprocessing`` import voxax as spconv too.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from voxax.torch.spconv.aliases import install

_USAGE = "usage: python -m voxax.torch.spconv SCRIPT [ARGS...]\n       ... -m MODULE [ARGS...]"


def main() -> None:
    """Install, then run what the command line names.

    Raises:
      SystemExit: it names nothing, or a script that is not there.
    """
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.exit(_USAGE if not arguments or arguments == ["-m"] else _help())
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = Path(arguments[0])
    if not script.exists():
        sys.exit(f"no script {script}")
    sys.argv = arguments
    # `python -m` puts the current folder first; Python itself puts a script's own there.
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")


def _help() -> int:
    print(_USAGE)  # noqa: T201 (a command)
    return 0


if __name__ == "__main__":
    main()
