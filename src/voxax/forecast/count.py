"""Compiling in a process of its own, and counting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxax import _compat
from voxax.errors import MissingExtraError, VoxaxError
from voxax.forecast.chip import chip_named
from voxax.forecast.program import Program, from_json

Request = tuple[str, str, Mapping[str, Any]]
"""Generation, ``package.module:name`` or ``FILE.py:name``, and the arguments of that function: what
JSON can hold; where it has a parameter ``chip`` it is told the generation. It returns what to
compile: ``(function, *shapes)``."""
_LAST_LINES = 15


def count(chip: str, target: str, **arguments: Any) -> Program:
    """Compile for one generation and count; see :func:`count_all`.

    >>> program = count("v5e", "voxax.forecast.plain:product", size=4096)  # doctest: +SKIP
    """
    return count_all([(chip, target, arguments)])[0]


def count_all(requests: Sequence[Request]) -> list[Program]:
    """Compile programs for TPUs that need not be there, and count each kernel's cycles.

    All in one process, which loads libtpu with flags of its own; about 4 s to start, and what the
    compilations take.

    Args:
      requests: see ``Request``.

    Raises:
      MissingExtraError: libtpu is not installed.
      InputError: an unknown generation.
      VoxaxError: a program does not compile, with the compiler's message.
    """
    if not _compat.has_libtpu():
        raise MissingExtraError('compiling for TPUs needs libtpu: pip install "voxax[tpu]"')
    requests = [(chip_named(chip).name, target, dict(more)) for chip, target, more in requests]
    with tempfile.TemporaryDirectory(prefix="voxax-forecast-") as name:
        folder = Path(name)
        asked, told, dump = folder / "requests", folder / "results", folder / "dump"
        dump.mkdir()
        asked.write_text(json.dumps(requests))
        done = subprocess.run(
            [sys.executable, "-m", "voxax.forecast.child", str(asked), str(told), str(dump)],
            env=_environment(dump),
            capture_output=True,
            text=True,
            check=False,
        )
        lines = told.read_text().splitlines() if told.exists() else []
    programs = []
    for (chip, target, _), line in zip(requests, lines, strict=False):
        values = json.loads(line)
        if "error" in values:
            raise VoxaxError(f"{target} does not compile for {chip}: {values['error']}")
        programs.append(from_json(values))
    if len(programs) < len(requests):
        chip, target, _ = requests[len(programs)]
        last = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
        raise VoxaxError(f"compiling {target} for {chip} ended with {done.returncode}:\n{last}")
    return programs


def _environment(dump: Path) -> dict[str, str]:
    from voxax.forecast.child import flags

    path = os.pathsep.join(place for place in sys.path if place)
    return os.environ | {
        "PYTHONPATH": path,
        # No device is touched: neither a TPU nor a GPU that is there.
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {flags(dump)}".strip(),
    }
