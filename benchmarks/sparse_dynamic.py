"""Does a sparse convolution cost what the pairs of its voxels' own kernel sizes cost?

    python benchmarks/sparse_dynamic.py [--data FOLDER] [--rounds 9] [--channels 32]

One layer on a LiDAR sweep (the one in FOLDER, else the recorded one), voxels of 0.2 m: size 5
beyond a range, 3 within, for ranges that give 0 to 100 % of the voxels size 5. All have the kernel
map of size 5 built before and take the sizes as an argument of one program; restricting it is in
their time. Beside them the fixed kernels of 3 and 5 with `spatially_sparse_conv`, and `taps`: one
product for each tap, as masks need. Forward, and forward with both gradients; medians of
interleaved rounds. Results go to results/sparse_dynamic.md and .json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from workloads import lidar_tiles, scan

RESULTS = Path(__file__).parent / "results"
SHARES = (0, 25, 50, 75, 100)
MODES = ("forward", "forward and gradients")


def measure(rows: np.ndarray, channels: int, rounds: int) -> list[dict[str, Any]]:
    """Pairs and median seconds of every case."""
    import jax
    import jax.numpy as jnp

    import voxax as vx
    from voxax.nn.functional import sparse_dynamic_conv, spatially_sparse_conv

    rng = np.random.default_rng(0)
    x = rng.standard_normal((len(rows), channels), np.float32)
    voxels = vx.Voxels.from_coords(rows, x, batch_size=1, capacity=len(rows))
    weights = {
        k: jnp.asarray(rng.standard_normal((k**3, channels, channels), np.float32)) for k in (3, 5)
    }
    dy = jnp.asarray(rng.standard_normal((len(rows), channels), np.float32))
    maps = {k: jax.jit(lambda v, k=k: vx.kernel_map(v, k))(voxels) for k in (3, 5)}
    reach = np.hypot(*np.asarray(voxels.coords)[:, 1:3].T)

    def program(layer: Any, size: int, with_gradients: bool) -> Any:
        def run(features: Any, weight: Any, kmap: Any, sizes: Any, dy: Any) -> Any:
            def own(features: Any, weight: Any) -> Any:
                return layer(voxels.replace_features(features), weight, kmap, sizes).features

            if not with_gradients:
                return own(features, weight)
            y, pull = jax.vjp(own, features, weight)
            return y, pull(dy)

        sizes = jnp.zeros(len(rows), jnp.int32)
        arguments = voxels.features, weights[size], maps[size], sizes, dy
        return jax.jit(run).lower(*arguments).compile()

    def fixed(v: Any, w: Any, kmap: Any, sizes: Any) -> Any:
        return spatially_sparse_conv(v, w, kernel_map=kmap)

    def dynamic(v: Any, w: Any, kmap: Any, sizes: Any) -> Any:
        return sparse_dynamic_conv(v, w, size=sizes, kernel_map=kmap)

    def taps(v: Any, w: Any, kmap: Any, sizes: Any) -> Any:
        return sparse_dynamic_conv(v, w, size=sizes, kernel_map=kmap, method="masked")

    cases: list[tuple[str, Any, int, np.ndarray]] = [
        (f"fixed {k}", fixed, k, np.full(len(rows), k)) for k in (3, 5)
    ]
    for share in SHARES:
        sizes = np.where(reach >= np.quantile(reach, 1 - share / 100), 5, 3)
        sizes = np.full(len(rows), 3) if share == 0 else sizes
        cases.append((f"{share} % of size 5", dynamic, 5, sizes))
        if share == 50:
            middle = sizes
    cases.append(("50 % of size 5, taps", taps, 5, middle))

    programs: dict[Any, Any] = {}
    runs, results = [], []
    for name, layer, size, sizes in cases:
        kmap = maps[size].within(jnp.asarray(sizes))
        result = {"name": name, "pairs": int((np.asarray(kmap.neighbors) >= 0).sum())}
        results.append(result)
        for mode in MODES:
            key = (layer, size, mode)
            if key not in programs:
                programs[key] = program(layer, size, mode != MODES[0])
            arguments = (
                voxels.features,
                weights[size],
                maps[size],
                jnp.asarray(sizes, jnp.int32),
                dy,
            )
            runs.append((result, mode, programs[key], arguments, []))
    for _ in range(rounds + 1):
        for _, _, run, arguments, seconds in runs:
            start = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            seconds.append(time.perf_counter() - start)
    for result, mode, _, _, seconds in runs:
        result[mode] = statistics.median(seconds[1:])
    return results


def to_markdown(report: dict[str, Any]) -> str:
    whole = next(r for r in report["rows"] if r["name"] == "100 % of size 5")
    lines = [
        "# What a kernel size of each voxel's own costs",
        "",
        f"{report['device']}, JAX {report['jax']}, native kernels: {report['native']}; "
        f"{report['where']}, {report['voxels']:,} voxels, {report['channels']} channels, float32; "
        f"medians of {report['rounds']} interleaved rounds. In brackets: over that of 100 % of "
        "size 5.",
        "",
        "| kernel | pairs | forward, ms | forward and gradients, ms |",
        "|---|---:|---:|---:|",
    ]
    for r in report["rows"]:
        cells = [f"{r['pairs']:,} ({r['pairs'] / whole['pairs']:.2f})"]
        cells += [f"{1e3 * r[m]:.1f} ({r[m] / whole[m]:.2f})" for m in MODES]
        lines.append(f"| {r['name']} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--channels", type=int, default=32)
    options = parser.parse_args()
    rows = lidar_tiles(30_000) if options.data is None else scan(options.data)
    import jax

    from voxax._native import library
    from voxax.hardware import describe

    results = measure(rows, options.channels, options.rounds)
    info = describe()
    report = {
        "device": f"{info.model or info.device_kind}, {info.cpu_cores} cores",
        "jax": jax.__version__,
        "native": "yes" if library()[0] is not None else "no",
        "where": "the recorded LiDAR sweep" if options.data is None else "a real LiDAR sweep",
        "voxels": len(rows),
        "channels": options.channels,
        "rounds": options.rounds,
        "rows": results,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sparse_dynamic.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "sparse_dynamic.md").write_text(to_markdown(report))
    print(to_markdown(report))


if __name__ == "__main__":
    main()
