"""Stages that are commands: tests on the device, the tuner's choices, compute-sanitizer.

Each takes the options of ``run.py`` and its seconds, and returns ``passed`` and ``result``, a line.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.turns import limited

ROOT = Path(__file__).resolve().parents[2]
# Memory is checked by page: JAX must not take it all ahead.
FRUGAL = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_TESTS = "tests/kernels/test_gpu_device.py"
_PRODUCTS = "reference or one_program"


def run_tests(options: argparse.Namespace, seconds: float, which: str) -> dict[str, Any]:
    # Compiling takes most of the time, so workers share the GPU.
    workers = "0" if options.rehearsal else str(min(12, os.cpu_count() or 1))
    tests = ["-m", "pytest", "-q", "-n", workers, "-m", "gpu", _TESTS, "-k", which]
    status, text = run(options, [sys.executable, *tests], seconds)
    failed = [line[:300] for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    result = _last_line(text)
    # Where JAX sees no GPU the tests are skipped, which is no success.
    passed = status == 0 and (" passed" in result or options.rehearsal)
    return {"passed": passed, "result": result, "failed": failed[:40]}


def _sanitize(options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        return {"passed": False, "result": "not run: no compute-sanitizer (it comes with CUDA)"}
    cases = "explicit_gemm and strided and (float32 or bfloat16)"
    tests = ["-m", "pytest", "-q", "-n", "0", "-m", "gpu", _TESTS, "-k", cases]
    results, passed = [], True
    for check in ("memcheck", "racecheck"):
        watched = [tool, "--tool", check, "--error-exitcode", "9", "--target-processes", "all"]
        status, text = run(options, [*watched, sys.executable, *tests], seconds / 2)
        passed = passed and status == 0
        summary = [line.strip() for line in text.splitlines() if "SUMMARY" in line]
        results.append(f"{check}: {(summary or [_last_line(text)])[-1]}")
    return {"passed": passed, "result": "; ".join(results)}


def _auto(options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """AUTO over the best candidate; the table is ``tuning.md`` in a folder beside the results."""
    if options.data is None:
        return {"passed": False, "result": "not run: it needs scans, --data"}
    into = ["--out", str((options.out / "gpu_tuning").resolve())]
    command = [sys.executable, "benchmarks/tuning.py", "--data", str(options.data.resolve()), *into]
    command += ["--only", "indoor 3x3x3 stride 2", "--rounds", "1"] if options.rehearsal else []
    status, text = run(options, command, seconds)
    means = [line for line in text.splitlines() if line.startswith("AUTO over the best")]
    number = f"{len(means)} workloads: {means[-1]}" if means else _last_line(text)
    return {"passed": status == 0, "result": number}


def run(options: argparse.Namespace, command: list[str], seconds: float) -> tuple[int, str]:
    """Run a command, at most for so many seconds: its status, and what it printed."""
    given = {**os.environ, **FRUGAL}
    given |= {"JAX_PLATFORMS": "cpu"} if options.rehearsal else {"VOXAX_TEST_PLATFORM": "cuda,cpu"}
    with limited(command, seconds, stderr=subprocess.STDOUT, cwd=ROOT, env=given) as process:
        text, _ = process.communicate()
    print(text[-3000:], flush=True)
    stopped = f"\nstopped after {seconds:.0f} s; last line: {_last_line(text)}"
    return process.returncode, text + (stopped if process.returncode in (124, 137) else "")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip(" =")[:300] if lines else "no output"


CHECKS = {
    "products": functools.partial(run_tests, which=_PRODUCTS),
    "candidates": functools.partial(run_tests, which=f"not ({_PRODUCTS})"),
    "auto": _auto,
    "sanitize": _sanitize,
}
