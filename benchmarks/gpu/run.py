"""Everything that needs a GPU, in the order of its worth; it goes on where it was stopped.

    python benchmarks/gpu/run.py --data FOLDER --peers PYTHON --out FOLDER

Stages, in this order: ``products`` (tests of the products on the device), the rows of ``chip``,
``networks``, ``layers``, ``torchsparse``, ``flexgemm``, ``maps``, ``more`` and ``tuned`` (see
``rows.py``), ``candidates`` (tests of every candidate), ``auto`` (``benchmarks/tuning.py``: the
tuner's choice against every candidate), ``sanitize`` (compute-sanitizer), and ``defaults`` (what
was tuned, to be looked at and copied to ``src/voxax/tuning/defaults``).

Started again into the same folder, first comes what was not begun, then what failed. Without a GPU:
status 3. ``--rehearsal`` runs each kind of row once on the CPU, to show that the script works.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from benchmarks import report  # noqa: E402
from benchmarks.gpu import clouds, ledger, rows  # noqa: E402
from benchmarks.gpu.checks import CHECKS, FRUGAL  # noqa: E402
from benchmarks.turns import Worker, WorkerFailed  # noqa: E402

ROW_STAGES = tuple(rows.stages())
STAGES = ("products", *ROW_STAGES, "candidates", "auto", "sanitize", "defaults")
NO_GPU = 3
LEAST = 5.0  # seconds below which nothing is begun


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends too
    facts = _facts(options)
    if facts is None:
        print(
            "No GPU: JAX sees none here, so nothing was measured.\n"
            'Install JAX for it (pip install "voxax[cuda]") on a machine that has one, and run\n'
            "benchmarks/gpu/run.sh again; or add --rehearsal to see the script work on the CPU.",
            file=sys.stderr,
        )
        sys.exit(NO_GPU)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        options.cache.mkdir(parents=True, exist_ok=True)
        (options.out / "gpu.tmp").write_text("")
    except OSError as error:
        sys.exit(
            f"cannot write results: {error}; give --out and --cache folders that you may write"
        )
    machine, run = facts
    kept = ledger.Ledger(options.out / "gpu.json", machine, run)
    print(", ".join(f"{name} {value}" for name, value in {**machine, **run}.items()), flush=True)
    kept.known["peers"] = _peers(options)
    if options.anew:
        kept.known["stages"], kept.known["rows"] = {}, {}
    kept.write()
    end = time.monotonic() + options.seconds
    todo = _todo(options, kept)
    for number, (stage, wanted) in enumerate(todo, 1):
        left = end - time.monotonic()
        seconds = left if number == len(todo) else left / 2
        if seconds < LEAST:
            print(f"{stage}: no time is left; start again with the same --out", flush=True)
        elif wanted is not None:
            _measure(stage, wanted, options, kept, seconds)
        else:
            try:
                values = CHECKS[stage](options, seconds)
            except Exception as error:  # the other stages go on
                values = {"passed": False, "result": f"failed: {type(error).__name__}: {error}"}
            kept.stage(stage, values)
            print(f"{stage}: {values['result']}", flush=True)
    if "defaults" in options.stages:  # takes no time, and what was tuned must not be lost
        kept.stage("defaults", _defaults(options))
    _summary(options, kept)


def _todo(options: argparse.Namespace, kept: ledger.Ledger) -> list[tuple[str, Any]]:
    """Stages with their rows, or None for those without: what was not begun, then what failed."""
    first, again = [], []
    for stage in options.stages:
        if stage in ROW_STAGES:
            wanted = [row for row in _wanted(options, kept, stage) if not kept.has(row)]
            tried = [row for row in wanted if kept.tried(row)]
            new = [row for row in wanted if row not in tried]
            first += [(stage, new)] if new else []
            again += [(stage, tried)] if tried else []
        elif stage != "defaults":
            known = kept.known["stages"].get(stage, {})
            if not known.get("passed"):
                (again if known else first).append((stage, None))
    return [*first, *again]


def _wanted(options: argparse.Namespace, kept: ledger.Ledger, stage: str) -> list[rows.Row]:
    """Rows of a stage, without those of absent peers."""
    found = rows.selected(rows.stages(options.rehearsal)[stage], options.only)
    peers = kept.known["peers"]
    return [row for row in found if "absent" not in peers.get(row.library, {})]


def _facts(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Facts of the machine and of this run; asked in a process of its own, which frees the GPU."""
    code = (
        "import json, jax\n"
        "d = jax.devices()[0]\n"
        "print(json.dumps([d.platform, d.device_kind, jax.__version__,"
        " d.client.platform_version.splitlines()[-1]]))"
    )
    given = {**os.environ, **({"JAX_PLATFORMS": "cpu"} if options.rehearsal else {})}
    done = subprocess.run(
        ["timeout", "-k", "5", "120", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=given,
        check=False,
    )
    if done.returncode:
        print(done.stderr.strip()[-2000:], file=sys.stderr)
        return None
    platform, kind, version, runtime = json.loads(done.stdout.strip().splitlines()[-1])
    if not options.rehearsal and platform != "gpu":
        return None
    run = {
        "begun": time.strftime("%Y-%m-%d %H:%M"),
        "driver": _driver(),
        "runtime": runtime,
        "Python": sys.version.split()[0],
        "code of voxax": report.code(),
    }
    rehearsal = {"rehearsal": True} if options.rehearsal else {}
    return {"device": kind, "JAX": version, **rehearsal}, run


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.partition("\n")[0]
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"


def _library(name: str, options: argparse.Namespace, seconds: float) -> Worker:
    """Start a library's process, which measures rows for at most so many seconds."""
    python = options.peers if name != "voxax" and options.peers else sys.executable
    cache = options.cache.resolve()
    given = {**os.environ, **FRUGAL, "VOXAX_AUTOTUNE_BUDGET": str(options.budget)}
    given["VOXAX_CACHE_DIR"] = str(cache)
    given["JAX_COMPILATION_CACHE_DIR"] = str(cache / "compiled")
    if options.rehearsal:  # spconv is right with one thread
        given |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "VOXAX_GPU_REHEARSAL": "1"}
    script = Path(__file__).with_name("worker.py")
    command = [python, script, name, options.clouds.resolve(), options.limit]
    with (cache / f"{name}.log").open("a") as log:
        return Worker("its process", command, given, log, seconds)


def _peers(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Versions of the peers, or why one is absent."""

    def facts(name: str) -> dict[str, str]:
        try:
            with _library(name, options, 60) as worker:
                return worker.hello
        except WorkerFailed as failure:
            return {"absent": str(failure)[:300]}

    with concurrent.futures.ThreadPoolExecutor() as pool:  # imports take long
        found = dict(zip(ledger.NAMES, pool.map(facts, ledger.NAMES), strict=True))
    for name, known in found.items():
        reason = known.get("absent")
        shown = f"absent: {reason}" if reason else ", ".join(map(" ".join, known.items()))
        print(f"{ledger.NAMES[name]}: {shown}", flush=True)
    return found


def _measure(
    stage: str,
    wanted: list[rows.Row],
    options: argparse.Namespace,
    kept: ledger.Ledger,
    seconds: float,
) -> None:
    """Measure the rows of a stage, library by library, for at most so many seconds."""
    end = time.monotonic() + seconds
    print(f"{stage}: {len(wanted)} rows, at most {seconds:.0f} s", flush=True)
    order = sorted(wanted, key=lambda row: rows.LIBRARIES.index(row.library))
    for library, group in itertools.groupby(order, key=lambda row: row.library):
        left = [row for row in group if _cloud_is_there(row, options, kept)]
        while left and end - time.monotonic() >= LEAST:
            _answers(library, left, options, kept, end)
        if left:
            print(f"{stage}: its time is over, {len(left)} rows of {library} are left")


def _cloud_is_there(row: rows.Row, options: argparse.Namespace, kept: ledger.Ledger) -> bool:
    if not row.cloud:
        return True
    try:
        with np.load(clouds.prepare(row.cloud, options.data, options.clouds)) as file:
            if row.cloud not in kept.known["clouds"]:
                facts = {"voxels": len(file["coords"]), "source": str(file["source"])}
                pairs = {"pairs": int(file["pairs"])} if "pairs" in file else {}
                kept.known["clouds"][row.cloud] = {**facts, **pairs}
    except Exception as error:  # the other rows go on
        _keep(row, {"note": f"failed: {type(error).__name__}: {error}"[:300]}, kept)
        return False
    return True


def _answers(
    library: str,
    left: list[rows.Row],
    options: argparse.Namespace,
    kept: ledger.Ledger,
    end: float,
) -> None:
    """Let a process measure rows until it ends, and take from ``left`` those that are settled."""
    begin = time.monotonic()
    try:
        with _library(library, options, end - begin) as worker:
            while left:
                try:
                    values = worker.ask("measure", row=dataclasses.asdict(left[0]))
                except WorkerFailed as failure:
                    if not failure.trace:  # it died
                        raise
                    note = f"failed: {failure}"[:300]
                    values = {"note": note, "traceback": failure.trace}
                begin = _settle(left, values, begin, kept)
    except WorkerFailed as failure:
        if time.monotonic() < end - 0.5:  # else the stage's time was over, not the row's
            stopped = time.monotonic() - begin >= options.limit
            note = f"stopped after {options.limit:g} s" if stopped else f"{failure}"[:300]
            _settle(left, {"note": f"{note}; see {library}.log"}, begin, kept)


def _settle(
    left: list[rows.Row], values: dict[str, Any], begin: float, kept: ledger.Ledger
) -> float:
    """Keep what was measured of the first row; return when the next one begins."""
    now = time.monotonic()
    if left[0].operation == "layer":
        values["lower_bound"] = _lower_bound(left[0], kept)
    _keep(left.pop(0), {**values, "took": round(now - begin, 1)}, kept)
    return now


def _keep(row: rows.Row, values: dict[str, Any], kept: ledger.Ledger) -> None:
    kept.add(row, values)
    shown = values.get("note", "")
    if "seconds" in values:
        shown = f"{1e3 * values['seconds']:.3f} ms, alone {1e3 * values['latency']:.3f} ms"
    took = f" ({values['took']} s)" if "took" in values else ""
    print(f"{row}: {shown}{took}", flush=True)


def _lower_bound(row: rows.Row, kept: ledger.Ledger) -> float | None:
    """Seconds that no layer goes below: products or bytes, whichever takes longer; and a launch."""
    known = kept.known["rows"]
    rates, launch = known.get("voxax rates", {}), known.get("voxax launch", {})
    rate, bandwidth = rates.get("matrix", {}).get(row.dtype), rates.get("bandwidth")
    cloud = kept.known["clouds"].get(row.cloud, {})
    if not rate or not bandwidth or "seconds" not in launch or "pairs" not in cloud:
        return None
    item, c, pairs = {"float32": 4}.get(row.dtype, 2), row.channels, cloud["pairs"]
    moved = (pairs * c + cloud["voxels"] * c + 27 * c * c) * item + 4 * pairs
    once = max(2 * pairs * c * c / rate, moved / bandwidth)
    return (3 if row.trains else 1) * once + launch["seconds"]


def _defaults(options: argparse.Namespace) -> dict[str, Any]:
    found = sorted((options.cache / "tuning").glob("*.json"))
    into = options.out / "defaults"
    into.mkdir(exist_ok=True)
    for path in found:
        shutil.copyfile(path, into / path.name)
    names = ", ".join(f"{into.name}/{path.name}" for path in found)
    return {"passed": bool(found), "result": names or "nothing was tuned"}


def _summary(options: argparse.Namespace, kept: ledger.Ledger) -> None:
    stages = [stage for stage in options.stages if stage in ROW_STAGES]
    wanted = [row for stage in stages for row in _wanted(options, kept, stage)]
    measured, tried = sum(map(kept.has, wanted)), sum(map(kept.tried, wanted))
    absent = sum("absent" in facts for facts in kept.known["peers"].values())
    print(
        f"{len(wanted)} rows: {measured} measured, {tried - measured} failed, "
        f"{len(wanted) - tried} left. Absent peers: {absent}.\n"
        f"Results: {kept.path} and {kept.path.with_suffix('.md')}"
    )


def _options() -> argparse.Namespace:
    parser = report.options((__doc__ or "").splitlines()[0], data=True)
    results = report.RESULTS / "gpu_run"
    parser.set_defaults(out=results, data=os.environ.get("VOXAX_TEST_DATA"))
    add = parser.add_argument
    add("--clouds", type=Path, help="folder of the clouds (in --cache)")
    add("--peers", type=Path, help="Python that has PyTorch and the peers")
    add("--cache", type=Path, help="for programs, clouds, what was tuned, logs (--out's cache)")
    add("--seconds", type=float, default=1500, help="of all stages")
    add("--limit", type=float, default=240, help="seconds of a row at most")
    add("--budget", type=float, default=20, help="seconds that a row may tune")
    add("--stages", nargs="+", choices=STAGES, default=STAGES)
    add("--only", default="", help="rows whose names have these words")
    add("--anew", action="store_true", help="forget what is known")
    add("--rehearsal", action="store_true", help="each kind of row once, on the CPU")
    options = parser.parse_args()
    options.data = None if options.data is None else Path(options.data)
    options.cache = options.cache or options.out / "cache"
    options.clouds = options.clouds or options.cache / "clouds"
    if options.rehearsal and options.out == results:
        parser.error("--rehearsal needs an --out of its own: its times are no results")
    return options


if __name__ == "__main__":
    main()
