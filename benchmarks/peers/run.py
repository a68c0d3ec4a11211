"""voxax against spconv, Open3D and plain PyTorch on this machine's CPU.

    python benchmarks/peers/run.py [--python PYTHON] [--data FOLDER] [--only WORDS]

PYTHON has the peers; for one that cannot be imported the reason is reported. Wheels of all are
there for Python 3.11, and Open3D needs Debian's libusb-1.0-0 and libgl1:

    pip install torch==2.13.0 spconv==2.3.8 open3d-cpu==0.20.0

The README has what makes the comparison fair.

Results are merged into results/peers.json, so that parts can be measured at a time
(--only "conv3 forward" takes the cases with these words in their name); the table has all that is
there. A file of another machine, other versions, other code of voxax or
other peers is not touched: --anew replaces it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import report
from benchmarks.own_process import KEEP_HEAP
from benchmarks.peers import tables
from benchmarks.peers.cases import CHANNELS, cases
from benchmarks.peers.match import SGEMM, Match
from benchmarks.peers.problems import SYNTHETIC, WORKLOADS, coords_of, problem
from benchmarks.turns import Worker, WorkerFailed

# The import that shows that it works. spconv and Open3D run on PyTorch, which comes first.
MODULES = {"torch": "torch", "spconv": "spconv.pytorch", "open3d": "open3d.ml.torch"}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
OURS = ("voxax", "voxax-xla", "numpy")


def main() -> None:
    options = parse()
    chosen = cases(tuple(options.workloads), tuple(options.channels), options.only, options.all)
    if not chosen:
        sys.exit(f"no case has these words in its name: {options.only}")
    absent = unusable(options.python)
    for peer, reason in absent.items():
        print(f"{peer} is left out: {reason}", flush=True)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log.txt").open("w+") as log:
        crew, versions = muster(absent, options, Path(folder), log)
        try:
            taken = tables.Results.open(options, versions, absent)
            sets = {w: coords_of(w, options.data, options.size) for w, *_ in chosen}
            match = Match(crew, options.rounds, Path(folder))
            for case in chosen:  # the files are written after each, so that a run can be cut short
                result = match.play(case, problem(case, sets[case.workload]))
                taken.results[str(case)] = result
                taken.write(options.out)
                print(tables.line(case, result), flush=True)
        except tables.OtherResults as error:
            sys.exit(str(error))
        finally:
            for worker in crew.values():
                worker.close()
            if options.verbose:
                log.seek(0)
                sys.stderr.write(log.read())


def unusable(python: Path) -> dict[str, str]:
    """Reasons by peer for those that ``python`` cannot import."""
    absent = {}
    for peer, modules in MODULES.items():
        command = [str(python), "-c", f"import torch, {modules}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            reason = lines[-1].strip()[:300] if lines else "no message"
            absent[peer] = f"import {modules}: {reason}"
    return absent


def muster(
    absent: dict[str, str], options: Any, folder: Path, log: Any
) -> tuple[dict[str, Worker], dict[str, str]]:
    """Start a worker for every library; those that fail are added to ``absent``."""
    tuning = {"VOXAX_AUTOTUNE": "on", "VOXAX_AUTOTUNE_BUDGET": str(options.budget)}
    variables = {
        library: {
            **tuning,
            "JAX_PLATFORMS": "cpu",
            "VOXAX_NATIVE": native,
            "VOXAX_CACHE_DIR": str(folder / native),
        }
        for library, native in (("voxax", "on"), ("voxax-xla", "off"))
    }
    crew: dict[str, Worker] = {}
    versions: dict[str, str] = {}
    for library in (*OURS, *MODULES):
        if library in absent:
            continue
        # Fresh pages doubled some times of every library (2 cores of an AMD EPYC, Zen 3).
        given = {**os.environ, **KEEP_HEAP, **dict.fromkeys(_THREADS, str(options.threads))}
        given |= variables.get(library, {})
        own = sys.executable if library in OURS else options.python
        command = [own, Path(__file__).with_name("worker.py"), library, options.threads]
        try:
            crew[library] = Worker(library, command, given, log)
            if library in SGEMM:
                crew[library].ask("sgemm")
            if library != "voxax-xla":
                versions |= crew[library].hello
        except WorkerFailed as failure:
            if library in crew:
                crew.pop(library).close()
            if library in OURS:
                raise
            absent[library] = str(failure)
            print(f"{library} is left out: {failure}", flush=True)
    return crew, versions


def parse() -> argparse.Namespace:
    parser = report.options(__doc__, data=True, rounds=7)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    known = (*WORKLOADS, SYNTHETIC)
    add = parser.add_argument
    add("--workloads", nargs="+", choices=known, default=WORKLOADS)
    add("--channels", nargs="+", type=int, default=CHANNELS)
    add("--only", default="", help="cases with these words in their name; comma: or")
    add("--threads", type=int, default=cores)
    budget = "seconds of tuning in each case, for voxax and again on XLA alone"
    add("--budget", type=float, default=60, help=budget)
    add("--all", action="store_true", help="the whole grid")
    add("--size", type=int, default=2000, help=f"voxels of {SYNTHETIC}")
    add("--python", type=Path, default=sys.executable, help="which has the peers")
    add("--anew", action="store_true", help="replace the files instead of adding to them")
    add("--verbose", action="store_true", help="show what the libraries print")
    return parser.parse_args()


if __name__ == "__main__":
    main()
