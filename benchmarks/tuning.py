"""Does the tuner choose well? AUTO against every single candidate, on maps of real scans.

    python benchmarks/tuning.py [--data FOLDER] [--only TEXT] [--rounds 15] [--all]

Each workload is one product of one layer on one scan. The tuner chooses first, within its usual
budget and into an empty cache. Then every candidate runs in turn, many rounds in one process, so
that a slow spell of the machine hits all alike. AUTO adds nothing to a call: its time is that of
the candidate it chose. Two tables: AUTO against the best candidate, with a bootstrap interval of
the ratio of medians; and what each fixed choice (one algorithm with one set of parameters
everywhere) costs against the best. --all adds the candidates that are not tried on CPUs.
Results go to results/tuning.json and .md.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.turns import in_turns, seconds_of
from benchmarks.workloads import positions_of, problem_of

# file, voxel size: 15 to 60 thousand voxels each
SCANS = {
    "lidar": ("lidar_os0_128.npz", 0.15),
    "airborne": ("air_ahn3_delft.npz", 1.0),
    "indoor": ("rgbd_office1.pcd", 0.03),
    "room": ("room_scan1.pcd", 0.05),
    "mesh": ("mesh_cycloidal.ply", 0.0293),
}


class Workload(NamedTuple):
    """One product of one layer on one scan."""

    scan: str
    channels: tuple[int, int]
    kernel: int
    stride: int
    product: str

    def __str__(self) -> str:
        c_in, c_out = self.channels
        size = "x".join([str(self.kernel)] * 3)
        stride = f" stride {self.stride}" if self.stride > 1 else ""
        return f"{self.scan} {size}{stride} {c_in}->{c_out} {self.product}"


WORKLOADS = (
    *(
        Workload(scan, (c, c), 3, 1, product)
        for scan, c in (("lidar", 16), ("airborne", 32), ("indoor", 64), ("lidar", 128))
        for product in ("forward", "dgrad", "wgrad")
    ),
    Workload("room", (64, 64), 3, 1, "forward"),
    Workload("room", (256, 256), 3, 1, "forward"),
    Workload("mesh", (32, 32), 3, 1, "forward"),
    Workload("mesh", (16, 16), 3, 1, "wgrad"),
    Workload("room", (256, 256), 3, 1, "wgrad"),
    Workload("lidar", (4, 32), 5, 1, "forward"),
    Workload("lidar", (32, 32), 5, 1, "forward"),
    Workload("room", (16, 32), 5, 1, "wgrad"),
    *(Workload("airborne", (32, 64), 2, 2, p) for p in ("forward", "dgrad", "wgrad")),
    Workload("lidar", (64, 128), 3, 2, "forward"),
    Workload("lidar", (64, 128), 3, 2, "wgrad"),
    Workload("indoor", (128, 256), 2, 2, "forward"),
    Workload("indoor", (16, 16), 3, 2, "dgrad"),
)


@functools.cache
def voxels_of(folder: Path, scan: str) -> Any:
    """The scan as Voxels with one channel."""
    import voxax as vx

    file, size = SCANS[scan]
    positions = positions_of(folder / file)
    return vx.voxelize(positions, np.ones((len(positions), 1), np.float32), voxel_size=size)


def compare(workload: Workload, folder: Path, rounds: int, everything: bool) -> dict[str, Any]:
    """Tune, then time every candidate in turn."""
    import jax

    import voxax as vx
    from voxax.hardware import hardware_of
    from voxax.tuning import admitted, choose
    from voxax.tuning.concrete_maps import note_map
    from voxax.tuning.entry import density_bucket
    from voxax.tuning.measure import compiled
    from voxax.tuning.sample import sample_of
    from voxax.tuning.space import space_of

    voxels = voxels_of(folder, workload.scan)
    kernel_map = vx.kernel_map(voxels, workload.kernel, workload.stride)
    pairs = int((np.asarray(kernel_map.neighbors) >= 0).sum())
    platform = jax.default_backend()
    density = density_bucket(pairs, int(kernel_map.out_geometry.count))
    own = {"level": voxels.geometry.stride, "density": density}
    problem = problem_of(kernel_map, workload.channels, workload.product, platform=platform, **own)
    note_map(problem.layer, kernel_map.neighbors)
    every = admitted("all", kind="dense", product=problem.product).names
    begin = time.perf_counter()
    choice = choose(problem, every)
    tuning = time.perf_counter() - begin
    hardware, _ = hardware_of(platform)
    candidates = space_of(problem, every, hardware).candidates
    if everything:
        elsewhere = dataclasses.replace(hardware, platform="any")
        more = space_of(problem, every, elsewhere).candidates
        candidates = tuple(dict.fromkeys((*candidates, *more)))
    needed: dict[str, Any] = {}
    for c in candidates:
        needed.update(c.kernel.views_of(problem, c.parameters))
    sample = sample_of(problem, {"neighbors": kernel_map.neighbors}, needed)
    runs: dict[str, Callable[[], Any]] = {str(c): compiled(problem, c, sample) for c in candidates}
    first = {name: min(_once(run), _once(run)) for name, run in runs.items()}
    slow = {name for name, seconds in first.items() if seconds >= 4 * min(first.values())}
    players = {name: functools.partial(_once, run) for name, run in runs.items()}
    times, _ = in_turns(players, rounds, lambda name, _: 3 if name in slow else rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(medians, key=medians.__getitem__)
    auto = str(choice)  # AUTO runs this very program
    flops = 2 * pairs * workload.channels[0] * workload.channels[1]
    return {
        "workload": str(workload),
        "rows": [kernel_map.in_capacity, kernel_map.out_capacity],
        "pairs": pairs,
        "choice": str(choice),
        "source": choice.source,
        "tuning_seconds": tuning,
        "best": best,
        "medians": medians,
        "ratio": medians[auto] / medians[best],
        "interval": _interval(times[auto], times[best]),
        "gigaflops": flops / medians[auto] / 1e9,
    }


def _once(run: Callable[[], Any]) -> float:
    import jax

    return seconds_of(lambda: jax.block_until_ready(run()))


def _interval(auto: list[float], best: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of medians."""
    rng = np.random.default_rng(0)

    def medians(values: list[float]) -> np.ndarray:
        picks = rng.integers(0, len(values), (2000, len(values)))
        return np.median(np.asarray(values)[picks], axis=1)

    low, high = np.percentile(medians(auto) / medians(best), [2.5, 97.5])
    return float(low), float(high)


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def fixed_choices(results: list[dict[str, Any]]) -> list[tuple[str, int, int, float, float]]:
    """``(candidate, workloads it runs, times it won, mean ratio, worst ratio)``, best first."""
    names = {name for r in results for name in r["medians"]}
    rows = []
    for name in names:
        ratios = [
            r["medians"][name] / r["medians"][r["best"]] for r in results if name in r["medians"]
        ]
        won = sum(r["best"] == name for r in results)
        rows.append((name, len(ratios), won, geometric_mean(ratios), max(ratios)))
    return sorted(rows, key=lambda row: (-row[1], row[3]))


def lines_of(values: dict[str, Any]) -> list[str]:
    results = values["results"]
    ratios = [r["ratio"] for r in results]
    seconds = sum(r["tuning_seconds"] for r in results)
    rows = []
    for r in results:
        auto, best = (f"{1e3 * r['medians'][r[which]]:.2f}" for which in ("choice", "best"))
        low, high = r["interval"]
        cells = [r["workload"], f"{r['pairs'] / 1e3:.0f}", r["choice"], auto, best, r["best"]]
        rows.append([*cells, f"{r['ratio']:.3f}", f"{low:.2f} to {high:.2f}"])
    fixed = [(*some, f"{a:.2f}", f"{b:.2f}") for *some, a, b in fixed_choices(results)]
    head = ["workload", "pairs / 1000", "AUTO chose", "AUTO", "best", "best candidate", "ratio"]
    return [
        "# AUTO against every single candidate",
        "",
        f"{values['device']}, JAX {values['jax']}, float32 in full precision, {len(results)} "
        f"workloads, {values['rounds']} rounds, all candidates in turn. Times are medians in ms; "
        "the interval is the 95 % bootstrap interval of the ratio of medians.",
        "",
        f"AUTO over the best candidate: **{geometric_mean(ratios):.3f}** in the geometric mean, "
        f"{max(ratios):.3f} at worst. Choosing took {seconds:.0f} s in all.",
        "",
        *report.table([*head, "95 %"], rows),
        "",
        "## What a fixed choice costs",
        "",
        "Time over that of the best candidate of each workload, for one choice everywhere that "
        "it can run.",
        "",
        *report.table(["choice", "workloads", "won", "geometric mean", "worst"], fixed),
    ]


def main() -> None:
    parser = report.options(__doc__, data=True, rounds=15)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--all", action="store_true", help="also what CPUs do not try")
    options = parser.parse_args()
    workloads = [workload for workload in WORKLOADS if options.only in str(workload)]
    if not workloads:
        parser.error(f"no workload is called {options.only!r}")
    os.environ["VOXAX_AUTOTUNE_BUDGET"] = "1e6"  # one process stands for many
    with tempfile.TemporaryDirectory() as cache:
        os.environ["VOXAX_CACHE_DIR"] = cache
        values: dict[str, Any] = {"rounds": options.rounds, "results": []}
        for workload in workloads:  # written after each, since a run may be stopped
            data = Path(options.data)
            values["results"].append(compare(workload, data, options.rounds, options.all))
            print(json.dumps(values["results"][-1]), flush=True)
            values = {**report.machine(), **values}
            lines = lines_of(values)
            report.write(options.out, "tuning", values, lines, show=False)
            print(next(line for line in lines if line.startswith("AUTO over the best")), flush=True)


if __name__ == "__main__":
    main()
