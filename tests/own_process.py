"""Python in a process of its own."""

import os
import subprocess
import sys


def run_python(*arguments, cwd=None, timeout=None, **variables):
    """Run Python, which has to succeed; return what it prints.

    ``variables`` are of its environment, beside those of this process.
    """
    ran = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env={**os.environ, **variables},
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
    return ran.stdout
