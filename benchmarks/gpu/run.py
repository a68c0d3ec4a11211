"""Everything that needs a GPU, a row at a time; it goes on where it was stopped.

    python benchmarks/gpu/run.py --data FOLDER --peers PYTHON

Stages: ``conformance`` (``pytest -m gpu``), ``sanitize`` (compute-sanitizer's memcheck and
racecheck on small cases), ``rows`` (the table; those of most worth first), ``auto``
(``benchmarks/tuning.py``: the tuner's choice against every candidate) and ``defaults`` (what the
rows tuned becomes what voxax ships for this device: ``src/voxax/tuning/defaults``, to be looked at
and committed). Each stage and each row is written to ``benchmarks/results/gpu.json`` and ``.md`` as
soon as it is there. A row that takes longer than ``--limit`` is stopped, and tried again when the
script is started again; by then much of it is compiled. Without a GPU: status 3.

``--rehearsal`` runs each kind of row once on the CPU instead, to show that the script works.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import clouds, ledger, rows  # noqa: E402

STAGES = ("conformance", "sanitize", "rows", "auto", "defaults")
NO_GPU = 3
_DEVICE_TESTS = ("-q", "-m", "gpu", "tests/kernels/test_gpu_device.py")
# Memory is checked by page: JAX must not take it all ahead.
_FRUGAL = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def main() -> None:
    options = _options()
    machine = _machine(options)
    if machine is None:
        print(
            "No GPU: JAX sees none here, so nothing was measured and no file was written.\n"
            'Install JAX for it (pip install "voxax[cuda]") on a machine that has one, and run\n'
            "benchmarks/gpu/run.sh again; or add --rehearsal to see the script work on the CPU.",
            file=sys.stderr,
        )
        sys.exit(NO_GPU)
    kept = ledger.Ledger(options.out / "gpu.json", machine)

    def check(stage: str, work: Callable[[argparse.Namespace], dict[str, Any]]) -> None:
        if stage in options.stages and (options.anew or not _done(kept, stage)):
            _note(kept, stage, work(options))

    check("conformance", _conformance)
    check("sanitize", _sanitize)
    if "rows" in options.stages:
        with tempfile.TemporaryDirectory() as folder:
            _measure(options, kept, options.clouds or Path(folder))
    check("auto", _auto)
    if "defaults" in options.stages:  # each time: rows may have come
        _note(kept, "defaults", _defaults(options))
    print(f"Results: {kept.path} and {kept.path.with_suffix('.md')}")


def _note(kept: ledger.Ledger, stage: str, values: dict[str, Any]) -> None:
    kept.stage(stage, values)
    print(f"{stage}: {values['result']}", flush=True)


def _done(kept: ledger.Ledger, stage: str) -> bool:
    return kept.known["stages"].get(stage, {}).get("passed", False)


def _machine(options: argparse.Namespace) -> dict[str, Any] | None:
    """Asked in a process of its own: this one leaves the GPU to others."""
    code = (
        "import json, jax\n"
        "d = jax.devices()[0]\n"
        "print(json.dumps([d.platform, d.device_kind, jax.__version__]))"
    )
    given = os.environ if not options.rehearsal else {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=given, check=False
    )
    if done.returncode:
        print(done.stderr.strip()[-2000:], file=sys.stderr)
        return None
    platform, kind, version = json.loads(done.stdout.strip().splitlines()[-1])
    if options.rehearsal:
        return {"device": kind, "JAX": version, "rehearsal": True}
    return {"device": kind, "JAX": version} if platform == "gpu" else None


def _conformance(options: argparse.Namespace) -> dict[str, Any]:
    # Compiling takes most of the time, so workers share the GPU.
    workers = "0" if options.rehearsal else str(min(12, os.cpu_count() or 1))
    done = _stage(options, ["-m", "pytest", "-n", workers, *_DEVICE_TESTS])
    return {"passed": done.returncode == 0, "result": _last_line(done.stdout or done.stderr)}


def _sanitize(options: argparse.Namespace) -> dict[str, Any]:
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        return {"passed": False, "result": "not run: no compute-sanitizer (it comes with CUDA)"}
    results, passed = [], True
    for check in ("memcheck", "racecheck"):
        watched = (tool, "--tool", check, "--error-exitcode", "9", "--target-processes", "all")
        cases = "explicit_gemm and strided and (float32 or bfloat16)"
        done = _stage(options, ["-m", "pytest", "-n", "0", *_DEVICE_TESTS, "-k", cases], watched)
        passed = passed and done.returncode == 0
        summary = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
        last = (summary or [_last_line(done.stdout or done.stderr)])[-1].strip()
        results.append(f"{check}: {last}")
    return {"passed": passed, "result": "; ".join(results)}


def _auto(options: argparse.Namespace) -> dict[str, Any]:
    """AUTO over the best candidate; the table is ``tuning.md`` in a folder beside the results."""
    into = options.out / "gpu_tuning"
    into.mkdir(parents=True, exist_ok=True)
    command = [str(ROOT / "benchmarks" / "tuning.py"), "--out", str(into)]
    command += [] if options.data is None else ["--data", str(options.data)]
    command += ["--only", "no such workload"] if options.rehearsal else []
    done = _stage(options, command)
    means = [line for line in done.stdout.splitlines() if "AUTO over the best" in line]
    result = means[-1].strip() if means else _last_line(done.stdout or done.stderr)
    return {"passed": done.returncode == 0, "result": result.replace("|", "/")}


def _stage(
    options: argparse.Namespace, arguments: list[str], watched: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python, inside ``watched``, at most for the time that a stage has."""
    command = [*watched, sys.executable, *arguments]
    given = {**os.environ, **_FRUGAL}
    given |= {"JAX_PLATFORMS": "cpu"} if options.rehearsal else {"VOXAX_TEST_PLATFORM": "cuda,cpu"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=options.stage_limit,
        )
    except subprocess.TimeoutExpired as error:
        shown = error.stdout or b""
        shown = shown.decode() if isinstance(shown, bytes) else shown
        last = f"stopped after {options.stage_limit:g} s; last line: {_last_line(shown)}"
        done = subprocess.CompletedProcess(command, 1, last, "")
    print((done.stdout + done.stderr)[-5000:], flush=True)
    return done


def _cache(options: argparse.Namespace) -> Path:
    """Return the cache of the rows' processes: beside the results, so a run that was stopped
    goes on with it."""
    return options.out / "gpu_cache"


def _defaults(options: argparse.Namespace) -> dict[str, Any]:
    shipped = ROOT / "src" / "voxax" / "tuning" / "defaults"
    into = options.out / "defaults" if options.rehearsal else shipped
    found = sorted((_cache(options) / "tuning").glob("*.json"))
    into.mkdir(parents=True, exist_ok=True)
    for path in found:
        shutil.copyfile(path, into / path.name)
    names = ", ".join(path.name for path in found)
    return {"passed": bool(found), "result": f"{names} written" if found else "nothing was tuned"}


def _measure(options: argparse.Namespace, kept: ledger.Ledger, folder: Path) -> None:
    wanted = rows.selected(rows.every_row(options.rehearsal), options.only)
    wanted = [row for row in wanted if options.anew or not kept.has(row)]
    processes: dict[str, _Process] = {}
    begin = time.monotonic()
    try:
        for number, row in enumerate(wanted, 1):
            if time.monotonic() - begin > options.seconds:
                print(f"{options.seconds:g} s are over: {len(wanted) - number + 1} rows are left")
                break
            values = _values_of(row, options, kept, processes, folder)
            kept.add(row, values)
            print(f"{number}/{len(wanted)} {row}: {_shown(values)}", flush=True)
    finally:
        for process in processes.values():
            process.close()


def _values_of(
    row: rows.Row,
    options: argparse.Namespace,
    kept: ledger.Ledger,
    processes: dict[str, _Process],
    folder: Path,
) -> dict[str, Any]:
    """What a row's process answers, or a note why there is nothing: the other rows go on."""
    try:
        if row.cloud:
            path = clouds.prepare(row.cloud, options.data, folder)
        if row.library in processes and processes[row.library].stopped:
            processes.pop(row.library).close()
        if row.library not in processes:
            processes[row.library] = _Process(row.library, options, folder)
        values = processes[row.library].ask(row)
        if row.operation == "layer":
            values["lower_bound"] = _lower_bound(row, path, kept)
        return values
    except Exception as error:
        return {"note": f"failed: {type(error).__name__}: {error}"[:300]}


def _lower_bound(row: rows.Row, path: Path, kept: ledger.Ledger) -> float | None:
    """Seconds that no layer goes below: products or bytes, whichever takes longer; and a launch."""
    import numpy as np

    known = kept.known["rows"]
    rates, launch = known.get("voxax rates", {}), known.get("voxax launch", {})
    rate, bandwidth = rates.get("matrix", {}).get(row.dtype), rates.get("bandwidth")
    if not rate or not bandwidth or "seconds" not in launch:
        return None
    with np.load(path) as file:
        pairs, places = int((file["neighbors"] >= 0).sum()), len(file["coords"])
    item, c = {"float32": 4}.get(row.dtype, 2), row.channels
    moved = (pairs * c + places * c + 27 * c * c) * item + 4 * pairs
    once = max(2 * pairs * c * c / rate, moved / bandwidth)
    return (3 if row.trains else 1) * once + launch["seconds"]


class _Process:
    """A library that answers row by row.

    Attributes:
      stopped: it answers no more, and a new one may.
    """

    def __init__(self, library: str, options: argparse.Namespace, folder: Path) -> None:
        peer = library != "voxax"
        python = options.peers if peer and options.peers else sys.executable
        cache = _cache(options).resolve()
        given = {**os.environ, **_FRUGAL, "VOXAX_AUTOTUNE_BUDGET": str(options.budget)}
        given["VOXAX_CACHE_DIR"] = str(cache)
        given["JAX_COMPILATION_CACHE_DIR"] = str(cache / "compiled")
        if options.rehearsal:
            given["JAX_PLATFORMS"] = "cpu"
        script = Path(__file__).with_name("measure.py")
        cache.mkdir(parents=True, exist_ok=True)
        self.stopped = False
        self._limit, self._log = options.limit, cache / f"{library}.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [str(python), str(script), library, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if options.verbose else log,
                text=True,
                env=given,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        # What does not start does not start again.
        self._absent = self._answer().get("failed")
        self.stopped = False

    def ask(self, row: rows.Row) -> dict[str, Any]:
        """Return the row's result, or a note why there is none."""
        if self._absent:
            return {"note": f"absent: {self._absent}"}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended: so says its answer
            self._process.stdin.write(json.dumps(dataclasses.asdict(row)) + "\n")
            self._process.stdin.flush()
        values = self._answer()
        return {"note": values["failed"]} if "failed" in values else values

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._limit)
        except queue.Empty:
            self._process.kill()
            self.stopped = True
            return {"failed": f"stopped after {self._limit:g} s"}
        if not line:
            self.stopped = True
            return {"failed": f"its process ended; see {self._log.name}"}
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _shown(values: dict[str, Any]) -> str:
    if "seconds" not in values:
        return str(values.get("note", ""))
    return f"{1e3 * values['seconds']:.3f} ms, alone {1e3 * values['latency']:.3f} ms"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip(" =")[:300] if lines else "no output"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = os.environ.get("VOXAX_TEST_DATA")
    parser.add_argument("--data", type=Path, default=given, help="folder of scans")
    parser.add_argument("--clouds", type=Path, help="folder that keeps the clouds of the rows")
    parser.add_argument("--peers", type=Path, help="Python that has PyTorch, and perhaps spconv")
    parser.add_argument(
        "--budget", type=float, default=60, help="seconds that voxax may tune for a row"
    )
    parser.add_argument("--limit", type=float, default=120, help="seconds of a row at most")
    parser.add_argument("--stage-limit", type=float, default=600, help="of a stage at most")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no row after so many"
    )
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--only", default="", help="rows whose names have these words")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--anew", action="store_true", help="measure again what is known")
    parser.add_argument(
        "--rehearsal", action="store_true", help="each kind of row once, on the CPU"
    )
    parser.add_argument("--verbose", action="store_true", help="show what libraries print")
    options = parser.parse_args()
    options.data = None if options.data is None else Path(options.data)
    if options.rehearsal and options.out == ROOT / "benchmarks" / "results":
        parser.error("--rehearsal needs an --out of its own: its times are no results")
    return options


if __name__ == "__main__":
    main()
