"""Processes that end, with all that they started, in time or with the one that started them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import Row

# Memory is checked by page: JAX must not take it all ahead.
FRUGAL = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@contextlib.contextmanager
def limited(command: list[str], seconds: float, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command that ends, with all that it started, after so many seconds or with this block."""
    command = ["timeout", "-k", "5", str(math.ceil(seconds)), *command]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, process_group=0, **options
    )
    try:
        with process:
            yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def library_process(
    library: str, options: argparse.Namespace, seconds: float, wanted: list[Row]
) -> Iterator[subprocess.Popen[str]]:
    """A library's process, which measures rows and ends."""
    python = options.peers if library != "voxax" and options.peers else sys.executable
    cache = options.cache.resolve()
    given = {**os.environ, **FRUGAL, "VOXAX_AUTOTUNE_BUDGET": str(options.budget)}
    given["VOXAX_CACHE_DIR"] = str(cache)
    given["JAX_COMPILATION_CACHE_DIR"] = str(cache / "compiled")
    if options.rehearsal:  # spconv is right with one thread
        given |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "VOXAX_GPU_REHEARSAL": "1"}
    command = [str(python), str(Path(__file__).with_name("measure.py")), library]
    command += [str(options.clouds.resolve()), str(options.limit)]
    command += [json.dumps([dataclasses.asdict(row) for row in wanted])]
    with (cache / f"{library}.log").open("a") as log:
        process = limited(command, seconds, stdin=subprocess.PIPE, stderr=log, env=given)
        with process as started:
            yield started
