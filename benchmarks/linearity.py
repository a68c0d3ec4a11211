"""Do time and memory grow in proportion to the number of voxels?

    python benchmarks/linearity.py [--rounds 5]

Scenes of 10,000 to 2,000,000 voxels, as dense at every size: the recorded LiDAR sweep, side by side
in a square grid, so that neighbors lie further apart in memory the larger the scene. Each size
runs in a process of its own: the jitted 3x3x3 kernel map; forward, and forward with both
gradients, of a layer with 32 channels in float32 with AUTO. Times are medians. Memory is what the
process grows by at the peak of its first run, results included. The exponent is the slope of the
least-squares line through the logarithms: 1 is proportional. Linux.
Results go to results/linearity.md and .json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from own_process import KEEP_HEAP, in_own_process, peak_added_by
from workloads import lidar_tiles

from native import machine

RESULTS = Path(__file__).parent / "results"
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000)
CHANNELS = 32
QUANTITIES = {
    "map": "kernel map",
    "forward": "forward",
    "gradients": "forward and gradients",
}


def one(size: int, rounds: int) -> dict[str, Any]:
    """Seconds and bytes of each quantity at one size."""
    import jax
    import jax.numpy as jnp

    import voxax as vx
    from voxax.nn.functional import spatially_sparse_conv

    rng = np.random.default_rng(0)
    features = rng.standard_normal((size, CHANNELS), np.float32)
    weight = jnp.asarray(rng.standard_normal((27, CHANNELS, CHANNELS), np.float32))
    voxels = vx.Voxels.from_coords(lidar_tiles(size), features, batch_size=1, capacity=size)
    dy = jnp.asarray(rng.standard_normal((size, CHANNELS), np.float32))

    def neighbors(voxels: Any) -> Any:
        return vx.kernel_map(voxels, 3).neighbors

    def forward(weight: Any, voxels: Any, kernel_map: Any) -> Any:
        out = spatially_sparse_conv(voxels, weight, kernel_size=3, kernel_map=kernel_map)
        return out.features

    def gradients(weight: Any, voxels: Any, kernel_map: Any, dy: Any) -> Any:
        def own(weight: Any, features: Any) -> Any:
            return forward(weight, voxels.replace_features(features), kernel_map)

        y, pull = jax.vjp(own, weight, voxels.features)
        return y, pull(dy)

    kernel_map = jax.jit(lambda v: vx.kernel_map(v, 3))(voxels)
    pairs = int((np.asarray(kernel_map.neighbors) >= 0).sum())
    runs: dict[str, Callable[[], Any]] = {}
    for name, function, arguments in (
        ("map", neighbors, (voxels,)),
        ("forward", forward, (weight, voxels, kernel_map)),
        ("gradients", gradients, (weight, voxels, kernel_map, dy)),
    ):
        program = jax.jit(function).lower(*arguments).compile()
        runs[name] = lambda program=program, arguments=arguments: program(*arguments)
    result: dict[str, Any] = {"voxels": int(voxels.count), "pairs": pairs}
    for name, run in runs.items():
        result[f"{name}_bytes"] = peak_added_by(run)
        result[f"{name}_seconds"] = _median_seconds(run, rounds)
    return result


def _median_seconds(run: Callable[[], Any], rounds: int) -> float:
    """Return the median of ``rounds`` runs, or of more if they fit into a tenth of a second."""
    import jax

    seconds, begin = [], time.perf_counter()
    while len(seconds) < rounds + 2 or time.perf_counter() - begin < 0.1:
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of ``log value`` over ``log size``."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def fits(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Exponents of all sizes, and of those from 100,000 voxels on: there, nothing fixed counts."""
    large = [r for r in rows if r["voxels"] >= 100_000]
    return {
        f"{name}_{unit}{suffix}": exponent(
            [r["voxels"] for r in some], [r[f"{name}_{unit}"] for r in some]
        )
        for suffix, some in (("", rows), ("_from_100k", large))
        for name in QUANTITIES
        for unit in ("seconds", "bytes")
    }


def to_markdown(report: dict[str, Any]) -> str:
    rows, slopes = report["rows"], report["exponents"]
    head = [f"{title}, {unit}" for title in QUANTITIES.values() for unit in ("ms", "MiB")]
    lines = [
        "# Time and memory against the number of voxels",
        "",
        f"{report['device']}, vectors: {report['simd']}, JAX {report['jax']}, "
        f"medians of {report['rounds']} runs and more. The recorded LiDAR sweep side by side in a "
        "square grid; one 3x3x3 submanifold layer, "
        f"{CHANNELS} channels, float32. MiB: what the process grows by at its peak, results "
        "included.",
        "",
        f"| voxels | pairs/voxel | {' | '.join(head)} |",
        f"|---:|---:{'|---:' * len(head)}|",
    ]
    for r in rows:
        cells = [f"{r['voxels']:,}", f"{r['pairs'] / r['voxels']:.2f}"]
        for name in QUANTITIES:
            cells += [f"{1e3 * r[f'{name}_seconds']:.2f}", f"{r[f'{name}_bytes'] / 2**20:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    for suffix, title in (("", "exponent"), ("_from_100k", "exponent, from 100,000")):
        cells = [
            f"{slopes[f'{name}_{unit}{suffix}']:.3f}"
            for name in QUANTITIES
            for unit in ("seconds", "bytes")
        ]
        lines.append(f"| {title} | | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    rows = []
    for size in SIZES:
        rows.append(in_own_process("linearity", "one", size, rounds, **KEEP_HEAP))
        print(json.dumps(rows[-1]), flush=True)
    write(rows, rounds)


def write(rows: list[dict[str, Any]], rounds: int) -> None:
    slopes = fits(rows)
    print(json.dumps(slopes))
    report = {**machine(), "rounds": rounds, "rows": rows, "exponents": slopes}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "linearity.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "linearity.md").write_text(to_markdown(report))


if __name__ == "__main__":
    main()
