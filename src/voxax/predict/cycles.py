"""Compile programs for TPUs in a separate process, and count the cycles of their kernels."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.errors import MissingExtraError, VoxaxError
from voxax.predict.chip import chip_named
from voxax.predict.compiled_program import CompiledProgram
from voxax.predict.listing import flags

Request = tuple[str, str, Mapping[str, Any]]
"""A program to compile: a TPU generation, the name of a maker (``package.module:name`` or
``FILE.py:name``), and the maker's arguments in JSON types. The maker is a function that returns
``(function, *shapes)``. If it has a parameter ``chip``, it gets the generation."""
_LAST_LINES = 15


def count(chip: str, target: str, **arguments: Any) -> CompiledProgram:
    """Compile one program for a TPU, which may be absent, and count each kernel's cycles.

    `chip` is a TPU generation. `target` is ``package.module:name`` or ``FILE.py:name`` of a
    function that takes `arguments` and returns ``(function, *shapes)``: the function to compile,
    and the shapes of its arguments.

    >>> program = count("v5e", "voxax.predict.cycles:matrix_product", size=4096)  # doctest: +SKIP
    """
    return count_all([(chip, target, arguments)])[0]


def count_all(requests: Sequence[Request]) -> list[CompiledProgram]:
    """Compile programs for TPUs, present or absent, and count each kernel's cycles.

    ``requests`` are as for :func:`outcomes`. The programs are returned in the same order.

    Raises:
      VoxaxError: a program does not compile, or an error of :func:`outcomes`.
    """
    found = []
    for outcome in outcomes(requests):
        if isinstance(outcome, VoxaxError):
            raise outcome
        found.append(outcome)
    return found


def outcomes(requests: Sequence[Request]) -> list[CompiledProgram | VoxaxError]:
    """Compile programs for TPUs, and count each kernel's cycles; return compile errors as results.

    One separate process compiles all programs. It loads libtpu with special flags and takes about
    4 s to start. If the compiler ends the process, a new one continues with the next program.

    Args:
      requests: one ``(TPU generation, name of a maker, the maker's arguments)`` per program. A
        maker is a function that returns ``(function, *shapes)``, see ``Request``.

    Returns:
      For each request its program, or an error with the compiler's message.

    Raises:
      MissingExtraError: libtpu is not installed.
      InputError: a generation is unknown.
    """
    if not _compat.has_libtpu():
        raise MissingExtraError('compiling for TPUs needs libtpu: pip install "voxax[tpu]"')
    left: list[Request] = [(chip_named(c).name, target, dict(more)) for c, target, more in requests]
    found: list[CompiledProgram | VoxaxError] = []
    silent = 0  # Processes in a row without a result: after two, the programs are not the cause.
    while left:
        told, done = _compiled(left)
        found += told
        silent = 0 if told else silent + 1
        left = left[len(told) :]
        # The compiler ends the process at an internal error. The other programs get a new process.
        lost = left if silent == 2 else left[:1]
        last = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
        for chip, target, _ in lost:
            ended = f"compiling {target} for {chip}, or before it, ended with {done.returncode}"
            found.append(VoxaxError(f"{ended}:\n{last}"))
        left = left[len(lost) :]
    return found


def _compiled(
    requests: Sequence[Request],
) -> tuple[list[CompiledProgram | VoxaxError], subprocess.CompletedProcess[str]]:
    """Compile programs in one separate process; return the list of results, and the ended process.

    There is one result for each request: a program, or an error if it does not compile. If the
    process ended early, the list has only the results of the first requests.
    """
    with tempfile.TemporaryDirectory(prefix="voxax-predict-") as name:
        folder = Path(name)
        places = asked, told, dump = folder / "requests", folder / "results", folder / "dump"
        dump.mkdir()
        asked.write_text(json.dumps(requests))
        done = subprocess.run(
            [sys.executable, "-m", "voxax.predict.child", *map(str, places), str(os.getpid())],
            env=_environment(dump),
            capture_output=True,
            text=True,
            check=False,
        )
        results = io.BytesIO(told.read_bytes() if told.exists() else b"")
    found: list[CompiledProgram | VoxaxError] = []
    for chip, target, _ in requests:
        try:
            result = pickle.load(results)
        except (EOFError, pickle.UnpicklingError):  # the process ended early
            break
        if isinstance(result, str):
            result = VoxaxError(f"{target} does not compile for {chip}: {result}")
        found.append(result)
    return found, done


def _environment(dump: Path) -> dict[str, str]:
    path = os.pathsep.join(place for place in sys.path if place)
    return os.environ | {
        "PYTHONPATH": path,
        # No device is touched, not even a GPU that is present.
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {flags(dump)}".strip(),
    }


def matrix_product(size: int = 4096, dtype: str = "bfloat16") -> tuple[Any, ...]:
    """Return ``(function, *shapes)`` of ``a @ b`` for two matrices ``[size, size]`` of ``dtype``.

    :func:`count` takes the name of this function as its ``target``.
    """
    shape = jax.ShapeDtypeStruct((size, size), jnp.dtype(dtype))
    return jnp.dot, shape, shape
