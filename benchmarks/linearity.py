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

import functools
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.own_process import KEEP_HEAP, in_own_process, peak_added_by
from benchmarks.turns import medians
from benchmarks.workloads import lidar_tiles

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000)
CHANNELS = 32
QUANTITIES = {"map": "kernel map", "forward": "forward", "gradients": "forward and gradients"}
COLUMNS = tuple(itertools.product(QUANTITIES, ("seconds", "bytes")))


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
    result: dict[str, Any] = {"voxels": int(voxels.count), "pairs": pairs}
    for name, function, arguments in (
        ("map", neighbors, (voxels,)),
        ("forward", forward, (weight, voxels, kernel_map)),
        ("gradients", gradients, (weight, voxels, kernel_map, dy)),
    ):
        program = jax.jit(function).lower(*arguments).compile()
        run = functools.partial(program, *arguments)
        result[f"{name}_bytes"] = peak_added_by(run)
        result[f"{name}_seconds"] = medians({name: run}, rounds, warm=2, least=0.02)[name]
    return result


def fits(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Exponents of all sizes, and of those from 100,000 voxels on: there, nothing fixed counts."""
    found = {}
    for suffix, least in (("", 0), ("_from_100k", 100_000)):
        some = [r for r in rows if r["voxels"] >= least]
        for name, unit in COLUMNS:
            values = [r[f"{name}_{unit}"] for r in some]
            slope = np.polyfit(np.log([r["voxels"] for r in some]), np.log(values), 1)[0]
            found[f"{name}_{unit}{suffix}"] = float(slope)
    return found


def lines_of(values: dict[str, Any]) -> list[str]:
    scale = {"seconds": lambda s: f"{1e3 * s:.2f}", "bytes": lambda b: f"{b / 2**20:.1f}"}
    rows = [
        [
            f"{r['voxels']:,}",
            f"{r['pairs'] / r['voxels']:.2f}",
            *(scale[unit](r[f"{name}_{unit}"]) for name, unit in COLUMNS),
        ]
        for r in values["rows"]
    ]
    for suffix, title in (("", "exponent"), ("_from_100k", "exponent, from 100,000")):
        slopes = [values["exponents"][f"{name}_{unit}{suffix}"] for name, unit in COLUMNS]
        rows.append([title, "", *(f"{slope:.3f}" for slope in slopes)])
    head = [f"{title}, {unit}" for title in QUANTITIES.values() for unit in ("ms", "MiB")]
    return [
        "# Time and memory against the number of voxels",
        "",
        f"{values['device']}, vectors: {values['simd']}, JAX {values['jax']}, "
        f"medians of {values['rounds']} runs and more. The recorded LiDAR sweep side by side in a "
        "square grid; one 3x3x3 submanifold layer, "
        f"{CHANNELS} channels, float32. MiB: what the process grows by at its peak, results "
        "included.",
        "",
        *report.table(["voxels", "pairs/voxel", *head], rows),
    ]


def main() -> None:
    options = report.options(__doc__, rounds=5).parse_args()
    rows = []
    for size in SIZES:
        rows.append(in_own_process("linearity", "one", size, options.rounds, **KEEP_HEAP))
        print(json.dumps(rows[-1]), flush=True)
    values = {**report.machine(), "rounds": options.rounds, "rows": rows, "exponents": fits(rows)}
    report.write(options.out, "linearity", values, lines_of(values))


if __name__ == "__main__":
    main()
