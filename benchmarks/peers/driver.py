"""The command line of the comparison; `run.py` starts it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import environment
import report
from cases import CHANNELS, Case, cases
from crew import Member, WorkerFailed
from match import Match

from problems import SYNTHETIC, WORKLOADS, coords_of, problem
from tuning import DATA, RESULTS


def main(description: str | None) -> None:
    """Measure what the command line asks for."""
    options = parse(description)
    chosen = cases(options.workloads, options.channels, options.only, options.all)
    if not chosen:
        sys.exit(f"no case has these words in its name: {options.only}")
    if options.python is None:
        python, absent = environment.prepare(options.venv)
    else:
        python, absent = options.python, environment.unusable(options.python)
    for peer, reason in absent.items():
        print(f"{peer} is left out: {reason}", flush=True)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log.txt").open("w+") as log:
        crew, versions = muster(python, absent, options, Path(folder), log)
        try:
            taken = report.Report.open(options.out, options.threads, versions, absent, options.anew)
            measure(chosen, crew, taken, options, Path(folder))
        except report.OtherResults as error:
            sys.exit(str(error))
        finally:
            for member in crew.values():
                member.close()
            if options.verbose:
                log.seek(0)
                sys.stderr.write(log.read())
    if options.picture is not None:
        import picture

        picture.draw(taken, options.picture)


def muster(
    python: Path | None,
    absent: dict[str, str],
    options: argparse.Namespace,
    folder: Path,
    log: IO[Any],
) -> tuple[dict[str, Member], dict[str, str]]:
    """Start a worker for every library; those that fail are added to ``absent``."""
    own, threads, budget = Path(sys.executable), options.threads, str(options.budget)
    tuning = {"VOXAX_AUTOTUNE": "on", "VOXAX_AUTOTUNE_BUDGET": budget, "JAX_PLATFORMS": "cpu"}
    plans = {
        "voxax": (own, {**tuning, "VOXAX_NATIVE": "on", "VOXAX_CACHE_DIR": str(folder / "native")}),
        "voxax-xla": (
            own,
            {**tuning, "VOXAX_NATIVE": "off", "VOXAX_CACHE_DIR": str(folder / "xla")},
        ),
        "numpy": (own, {}),
    }
    plans |= {peer: (python, {}) for peer in environment.PACKAGES if peer not in absent}
    crew, versions = {}, {}
    for library, (interpreter, extra) in plans.items():
        try:
            crew[library] = Member(library, interpreter, threads, log, extra)
            own_versions = crew[library].ask("hello")["versions"]
            if library in ("voxax", "torch", "numpy"):
                crew[library].ask("sgemm")
            if library != "voxax-xla":
                versions |= own_versions
        except WorkerFailed as failure:
            if library in crew:
                crew.pop(library).close()
            if library in ("voxax", "voxax-xla", "numpy"):
                raise
            absent[library] = str(failure)
            print(f"{library} is left out: {failure}", flush=True)
    return crew, versions


def measure(
    chosen: list[Case],
    crew: dict[str, Member],
    taken: report.Report,
    options: argparse.Namespace,
    folder: Path,
) -> None:
    """Run the cases; the files are written after each, so that a run can be cut short."""
    coords = {w: coords_of(w, options.data, options.size) for w in {c.workload for c in chosen}}
    match = Match(crew, options.rounds, folder, everyone=options.all)
    for case in chosen:
        result = match.play(case, problem(case, coords[case.workload]))
        taken.add(case, result)
        taken.write(options.out)
        print(report.line(case, result), flush=True)


def parse(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    add = parser.add_argument
    add("--data", type=Path, default=Path(os.environ.get("VOXAX_TEST_DATA", DATA)))
    add("--workloads", help=f"of {', '.join(WORKLOADS)}, {SYNTHETIC}; comma between them")
    add("--channels", help=f"of {', '.join(map(str, CHANNELS))}; comma between them")
    add("--only", default="", help="cases with these words in their name; comma: or")
    add("--rounds", type=int, default=7)
    add("--threads", type=int, default=cores)
    add(
        "--budget",
        type=float,
        default=60,
        help="seconds of tuning in each case, for voxax and again on XLA alone",
    )
    add("--all", action="store_true", help="the whole grid, and everybody in every case")
    add("--quick", action="store_true", help="one workload, two channels, 3 rounds")
    add("--size", type=int, default=2000, help=f"voxels of {SYNTHETIC}")
    add("--venv", type=Path, default=environment.default_folder(), help="of the peers")
    add("--python", type=Path, help="use this Python for the peers, and install nothing")
    add("--out", type=Path, default=RESULTS, help="folder for peers.json and peers.md")
    add("--anew", action="store_true", help="replace these files instead of adding to them")
    add("--picture", type=Path, help="also draw a picture: an .svg or .png file")
    add("--verbose", action="store_true", help="show what the libraries print")
    options = parser.parse_args()
    known = (*WORKLOADS, SYNTHETIC)
    workloads = options.workloads.split(",") if options.workloads else WORKLOADS
    if unknown := [w for w in workloads if w not in known]:
        parser.error(f"unknown workloads {', '.join(unknown)}; known: {', '.join(known)}")
    channels = tuple(map(int, options.channels.split(","))) if options.channels else CHANNELS
    if options.quick:
        workloads, channels, options.rounds = workloads[:1], channels[:2], min(options.rounds, 3)
    options.workloads, options.channels = tuple(workloads), channels
    return options
