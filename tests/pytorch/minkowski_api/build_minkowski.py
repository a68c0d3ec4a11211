"""MinkowskiEngine 0.5.4, built for the CPU in an environment of its own.

    python build_minkowski.py FOLDER [--base PYTHON3.8]

The sources are the package index's, of April and May 2021. The script makes ``FOLDER/environment``
and prints its Python's path. It needs Python 3.8, a C++ compiler, OpenBLAS with headers (Debian:
``libopenblas-dev``), 4 GB of disk and a package index. One job compiles at a time, in ten minutes
on a quiet machine; ``MAX_JOBS`` raises that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from pathlib import Path

# torch 1.12.1 is the newest whose headers the sources compile with. Later NumPy and setuptools
# lack names that the sources and their setup.py use.
REQUIREMENTS = ("typing_extensions", "numpy<1.24", "setuptools<60", "wheel", "ninja")
TORCH = "torch==1.12.1"
SOURCES = "MinkowskiEngine==0.5.4"


def build(folder: Path, base: str) -> Path:
    """Return the Python of a new environment in ``folder`` that imports MinkowskiEngine."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = folder / "environment"
    subprocess.run([base, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    # setup.py calls `pip` by name.
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    variables = {"MAX_JOBS": "1", **os.environ, "PATH": path}

    def run(*arguments: str, where: Path = folder) -> None:
        command = [str(python), *arguments]
        subprocess.run(command, check=True, cwd=str(where), env=variables, stdout=sys.stderr)

    # Without its dependencies: they are CUDA's libraries in later releases.
    run("-m", "pip", "install", "--no-deps", TORCH)
    run("-m", "pip", "install", *REQUIREMENTS)
    options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    run("-m", "pip", "download", *options, SOURCES)
    (archive,) = folder.glob("MinkowskiEngine-*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(str(folder))
    unpacked = folder / archive.name[: -len(".tar.gz")]
    run("setup.py", "install", "--cpu_only", "--blas=openblas", where=unpacked)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", default="python3.8", help="a Python 3.8")
    arguments = parser.parse_args()
    print(build(arguments.folder.resolve(), arguments.base))


if __name__ == "__main__":
    main()
