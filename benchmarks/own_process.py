"""Running a function in a process of its own, and the memory that a call takes at its peak."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEEP_HEAP = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}
"""glibc keeps its heap, as the command line tells it: else fresh pages are half of small times.

One arena, since those of threads have at most 64 MB: what is larger, and XLA allocates large
results on its threads, was mapped anew for every call in spite of the thresholds. A kernel map of a
million voxels then took 2.2 times as long, a copy of 128 MB 6 times (2 cores of an AMD EPYC, Zen
4).
"""


def in_own_process(module: str, function: str, *arguments: Any, **environment: str) -> Any:
    """Return ``module.function(*arguments)`` of this folder; arguments and result pass as JSON.

    Runs on the CPU, with ``environment`` added to this process's.

    Raises:
      RuntimeError: it failed; the message is what it wrote to stderr.
    """
    script = (
        f"import json, {module} as m\n"
        f"print(json.dumps(m.{function}(*json.loads({json.dumps(json.dumps(arguments))}))))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        cwd=Path(__file__).parent,
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout.strip().splitlines()[-1])


def peak_added_by(run: Callable[[], Any]) -> int:
    """Bytes by which this process grows at most while ``run()`` computes; its result included.

    Linux with glibc: memory that was freed before is given back, then the kernel's high-water
    mark is set back to the present size.
    """
    import jax

    from voxax.hardware import peak_memory

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()["host"]
    result = jax.block_until_ready(run())
    peak = peak_memory()["host"]
    del result
    return peak - before
