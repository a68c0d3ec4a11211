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

import argparse
import dataclasses
import functools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).parents[2] / "shared" / "data"

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
    Workload("airborne", (32, 64), 2, 2, "forward"),
    Workload("airborne", (32, 64), 2, 2, "dgrad"),
    Workload("airborne", (32, 64), 2, 2, "wgrad"),
    Workload("lidar", (64, 128), 3, 2, "forward"),
    Workload("lidar", (64, 128), 3, 2, "wgrad"),
    Workload("indoor", (128, 256), 2, 2, "forward"),
    Workload("indoor", (16, 16), 3, 2, "dgrad"),
)


@functools.cache
def voxels_of(folder: Path, scan: str) -> Any:
    """The scan as Voxels with one channel."""
    import voxax as vx
    from voxax import io

    file, size = SCANS[scan]
    positions = np.asarray(io.read(folder / file).positions, np.float32)
    positions = positions[np.isfinite(positions).all(1)]
    return vx.voxelize(positions, np.ones((len(positions), 1), np.float32), voxel_size=size)


def compare(workload: Workload, folder: Path, rounds: int, everything: bool) -> dict[str, Any]:
    """Tune, then time every candidate in turn."""
    import jax

    import voxax as vx
    from voxax.hardware import hardware_of
    from voxax.kernels import Layer, Problem
    from voxax.tuning import choose, resolve
    from voxax.tuning import sample as tuning_sample
    from voxax.tuning.entry import density_bucket
    from voxax.tuning.measure import compiled
    from voxax.tuning.sample import sample_of
    from voxax.tuning.space import space_of

    voxels = voxels_of(folder, workload.scan)
    kernel_map = vx.kernel_map(voxels, workload.kernel, workload.stride)
    pairs = int((np.asarray(kernel_map.neighbors) >= 0).sum())
    platform = jax.default_backend()
    layer = Layer(
        in_capacity=kernel_map.in_capacity,
        out_capacity=kernel_map.out_capacity,
        num_offsets=kernel_map.num_offsets,
        symmetric=kernel_map.symmetric,
        kind="dense",
        groups=1,
        precision="highest",
        spec=kernel_map.spec,
        level=voxels.geometry.stride,
        density=density_bucket(pairs, int(kernel_map.out_geometry.count)),
    )
    problem = Problem(
        workload.product,  # type: ignore[arg-type]
        layer,
        *workload.channels,
        "float32",
        platform,
    )
    tuning_sample.note_map(tuning_sample.map_key(layer), {"neighbors": kernel_map.neighbors})
    admitted = resolve("all", kind="dense", product=problem.product)
    begin = time.perf_counter()
    choice = choose(problem, admitted)
    tuning = time.perf_counter() - begin
    hardware, _ = hardware_of(platform)
    candidates = space_of(problem, admitted, hardware).candidates
    if everything:
        elsewhere = dataclasses.replace(hardware, platform="any")
        more = space_of(problem, admitted, elsewhere).candidates
        candidates = tuple(dict.fromkeys((*candidates, *more)))
    needed: dict[str, Any] = {}
    for c in candidates:
        needed.update(c.kernel.views_of(problem, c.parameters))
    sample = sample_of(problem, {"neighbors": kernel_map.neighbors}, needed)
    runs: dict[str, Callable[[], Any]] = {str(c): compiled(problem, c, sample) for c in candidates}
    times: dict[str, list[float]] = {name: [] for name in runs}
    first = {name: min(_once(run), _once(run)) for name, run in runs.items()}
    quickest = min(first.values())
    for number in range(rounds):
        # Backwards in every other round: no candidate always follows the same other one.
        for name in list(runs)[:: 1 if number % 2 else -1]:
            if first[name] < 4 * quickest or number < 3:
                times[name].append(_once(runs[name]))
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

    begin = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin


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


def to_markdown(report: dict[str, Any]) -> str:
    results = report["results"]
    ratios = [r["ratio"] for r in results]
    seconds = sum(r["tuning_seconds"] for r in results)
    lines = [
        "# AUTO against every single candidate",
        "",
        f"{report['device']}, JAX {report['jax']}, float32 in full precision, {len(results)} "
        f"workloads, {report['rounds']} rounds, all candidates in turn. Times are medians in ms; "
        "the interval is the 95 % bootstrap interval of the ratio of medians.",
        "",
        f"AUTO over the best candidate: **{geometric_mean(ratios):.3f}** in the geometric mean, "
        f"{max(ratios):.3f} at worst. Choosing took {seconds:.0f} s in all.",
        "",
        "| workload | pairs / 1000 | AUTO chose | AUTO | best | best candidate | ratio | 95 % |",
        "|---|---:|---|---:|---:|---|---:|---|",
    ]
    for r in results:
        auto, best = 1e3 * r["medians"][r["choice"]], 1e3 * r["medians"][r["best"]]
        low, high = r["interval"]
        cells = (
            r["workload"],
            f"{r['pairs'] / 1e3:.0f}",
            r["choice"],
            f"{auto:.2f}",
            f"{best:.2f}",
            r["best"],
            f"{r['ratio']:.3f}",
            f"{low:.2f} to {high:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## What a fixed choice costs",
        "",
        "Time over that of the best candidate of each workload, for one choice everywhere that "
        "it can run.",
        "",
        "| choice | workloads | won | geometric mean | worst |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, count, won, mean, worst in fixed_choices(results):
        lines.append(f"| {name} | {count} | {won} | {mean:.2f} | {worst:.2f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA", DATA))
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--all", action="store_true", help="also what CPUs do not try")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    workloads = [workload for workload in WORKLOADS if options.only in str(workload)]
    if not workloads:
        parser.error(f"no workload is called {options.only!r}")
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["VOXAX_AUTOTUNE_BUDGET"] = "1e6"  # one process stands for many
    with tempfile.TemporaryDirectory() as cache:
        os.environ["VOXAX_CACHE_DIR"] = cache
        results = []
        for workload in workloads:
            data = Path(options.data)
            results.append(compare(workload, data, options.rounds, options.all))
            print(json.dumps(results[-1]), flush=True)
            print(write(results, options.rounds, options.out), flush=True)


def write(results: list[dict[str, Any]], rounds: int, folder: Path) -> str:
    """Write what is known so far, since a run may be stopped; return its first result."""
    import jax

    from voxax.hardware import describe

    info = describe()
    device = f"{info.model or info.device_kind}, {info.cpu_cores} cores"
    report = {"device": device, "jax": jax.__version__, "rounds": rounds, "results": results}
    text = to_markdown(report)
    (folder / "tuning.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "tuning.md").write_text(text)
    return next(line for line in text.splitlines() if line.startswith("AUTO over the best"))


if __name__ == "__main__":
    main()
