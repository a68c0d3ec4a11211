"""How far are the native CPU kernels from the machine's limit, and from XLA's best?

    python benchmarks/native.py [--data FOLDER] [--rounds 15]

One 3x3x3 submanifold layer on real scans, 16 to 256 channels, float32: forward, dgrad, wgrad. The
floor is the arithmetic of the pairs that exist over this machine's own best rate of a dense matrix
product, which is measured in the same run. All candidates take turns. The floor of a depthwise
layer is a copy of its features, by the best of three ways to copy. Also the kernel map, native and
by XLA's searches. Results go to results/native.md and .json.

glibc is told to keep its heap, as the command line does: fresh pages would be half of small times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from own_process import KEEP_HEAP

from tuning import DATA, RESULTS, SCANS

# Seconds of calls that a turn has at least.
_TURN = 0.03
WIDTHS = {"dense": (16, 32, 64, 128, 256), "depthwise": (16, 64, 256)}


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each, after two rounds that do not count.

    Short calls have several in a turn, the first of which do not count: the caches were another's.
    """
    import jax

    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 2):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            turn: list[float] = []
            while not turn or sum(turn) < _TURN:
                begin = time.perf_counter()
                jax.block_until_ready(runs[name]())
                turn.append(time.perf_counter() - begin)
            if number >= 2:
                times[name].append(statistics.median(turn[len(turn) // 3 :]))
    return {name: statistics.median(values) for name, values in times.items()}


def matrix_rates() -> dict[str, Callable[[], Any]]:
    """Programs of one 4096 x 512 x 512 product, of XLA and of NumPy."""
    import jax
    import jax.numpy as jnp

    a, b = np.ones((4096, 512), np.float32), np.ones((512, 512), np.float32)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision="highest"))
    x, y = jnp.asarray(a), jnp.asarray(b)
    return {"sgemm, XLA": lambda: product(x, y), "sgemm, NumPy": lambda: a @ b}


def copies(rows: int, channels: int) -> dict[str, Callable[[], Any]]:
    """Ways to copy float32[rows, channels]: by XLA, by NumPy, and by NumPy on two threads."""
    import jax
    import jax.numpy as jnp

    source = np.ones((rows, channels), np.float32)
    target = np.empty_like(source)
    x, half = jnp.asarray(source), rows // 2
    doubled = jax.jit(lambda x: 2 * x)
    pool = ThreadPoolExecutor(2)

    def by_two_threads() -> None:
        parts = [(target[:half], source[:half]), (target[half:], source[half:])]
        for future in [pool.submit(np.copyto, *part) for part in parts]:
            future.result()

    return {
        "copy, XLA": lambda: doubled(x),
        "copy, NumPy": lambda: np.copyto(target, source),
        "copy, two threads": by_two_threads,
    }


def candidates(kernel_map: Any, kind: str, channels: int, product: str) -> dict[str, Any]:
    """``{name: program}`` of all that can run one product of a layer."""
    from voxax.algorithms import Problem
    from voxax.algorithms.depthwise import cpu as depthwise_cpu
    from voxax.algorithms.explicit_gemm import formulations
    from voxax.algorithms.implicit_gemm import cpu
    from voxax.hardware import describe
    from voxax.tuning.measure import compiled
    from voxax.tuning.sample import sample_of
    from voxax.tuning.space import Candidate, lookup

    problem = Problem(
        product,  # pyright: ignore[reportArgumentType]
        kind,  # pyright: ignore[reportArgumentType]
        kernel_map.in_capacity,
        kernel_map.out_capacity,
        27,
        channels,
        channels,
        1,
        "float32",
        "highest",
        True,
        "cpu",
        kernel_map.spec,
        (1, 1, 1),
    )
    dense = kind == "dense"
    explicit = lookup("explicit_gemm") if dense else lookup("explicit", "depthwise")
    implicit = lookup("implicit_gemm") if dense else lookup("implicit", "depthwise")
    found = [Candidate(implicit, p) for p in (cpu if dense else depthwise_cpu).space(problem)]
    found += [
        Candidate(explicit, p)
        for p in formulations.space(problem, describe())
        if channels < 256 or p != formulations.IM2COL
    ]
    names = {v for c in found for v in c.algorithm.views(c.parameters, product, problem.symmetric)}
    sample = sample_of(problem, {"neighbors": kernel_map.neighbors}, sorted(names))
    return {f"{product}, {c}": compiled(problem, c, sample) for c in found}


def layer(scan: str, folder: Path, kind: str, channels: int, rounds: int) -> dict[str, Any]:
    """All three products of one layer, and the floor."""
    import voxax as vx

    voxels = scene(scan, folder)
    kernel_map = vx.kernel_map(voxels, 3)
    count, pairs = int(voxels.count), int((np.asarray(kernel_map.neighbors) >= 0).sum())
    limits = matrix_rates() if kind == "dense" else copies(count, channels)
    runs = dict(limits)
    for product in ("forward", "dgrad", "wgrad"):
        runs |= candidates(kernel_map, kind, channels, product)
    seconds = interleaved(runs, rounds)
    limit = min(seconds.pop(name) for name in limits)
    rows = {}
    for product in ("forward", "dgrad", "wgrad"):
        own = {k: v for k, v in seconds.items() if k.startswith(product)}
        rows[product] = {
            "native": min(v for k, v in own.items() if "native" in k),
            "xla": min(v for k, v in own.items() if "native" not in k),
        }
    own = {"scan": scan, "channels": channels, "voxels": count, "pairs": pairs, **rows}
    if kind == "depthwise":
        return {**own, "rate": 8 * count * channels / limit, "floor": limit}
    rate = 2 * 4096 * 512 * 512 / limit
    return {**own, "rate": rate, "floor": 2 * pairs * channels**2 / rate}


def scene(scan: str, folder: Path) -> Any:
    from tuning import voxels_of

    return voxels_of(folder, scan)


def kernel_maps(scan: str, folder: Path, rounds: int) -> dict[str, Any]:
    import jax

    from voxax.coords import is_valid, lookup
    from voxax.geometry import KernelSpec

    geometry = scene(scan, folder).geometry
    offsets = tuple(map(tuple, KernelSpec.make(3, 3).dilated_offsets.tolist()))
    valid = is_valid(geometry.coords)

    def searched(*arguments: Any) -> Any:
        return lookup._find_neighbors(*arguments, ordered=True)

    def by(find: Callable[..., Any]) -> Callable[[], Any]:
        program = jax.jit(lambda coords, valid: find(coords, coords, valid, offsets))
        return lambda: program(geometry.coords, valid)

    return {
        "scan": scan,
        "voxels": int(geometry.count),
        **interleaved({"native": by(lookup._merge_neighbors), "xla": by(searched)}, rounds),
    }


def rows_of(layers: list[dict[str, Any]], rate: str) -> list[str]:
    lines = [
        f"| scan | C | pairs / 1000 | {rate} | floor | forward | XLA | dgrad | XLA | wgrad | XLA |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in layers:
        cells = [r["scan"], r["channels"], f"{r['pairs'] / 1e3:.0f}", f"{r['rate'] / 1e9:.0f}"]
        cells.append(f"{1e3 * r['floor']:.2f}")
        for product in ("forward", "dgrad", "wgrad"):
            for by in ("native", "xla"):
                seconds = r[product][by]
                cells.append(f"{1e3 * seconds:.2f} ({seconds / r['floor']:.2f})")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def to_markdown(report: dict[str, Any]) -> str:
    lines = [
        "# The native CPU kernels",
        "",
        f"{report['device']}, vectors: {report['simd']}, JAX {report['jax']}, float32, one 3x3x3 "
        f"submanifold layer, medians of {report['rounds']} rounds in turn, ms; in brackets the "
        "ratio to the floor (arithmetic of the pairs over the rate of the best dense product of "
        "the same run). XLA: the best candidate of explicit_gemm, at 256 channels without im2col, "
        "which took three times the best and more in tuning.md.",
        "",
        *rows_of(report["layers"], "GFLOP/s"),
        "",
        "## Depthwise",
        "",
        "The floor is a copy of the features, the fastest of three ways in the same run; its rate "
        "counts what is read and written.",
        "",
        *rows_of(report["depthwise"], "GB/s"),
    ]
    lines += [
        "",
        "## Kernel map, 3x3x3",
        "",
        "| scan | voxels | native | XLA |",
        "|---|---:|---:|---:|",
    ]
    for r in report["maps"]:
        native, xla = 1e3 * r["native"], 1e3 * r["xla"]
        lines.append(f"| {r['scan']} | {r['voxels']} | {native:.2f} | {xla:.1f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA", DATA))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in KEEP_HEAP.items()):
        os.environ.update(KEEP_HEAP)
        os.execv(sys.executable, [sys.executable, *sys.argv])  # glibc reads them at the start
    import jax

    from voxax import _native
    from voxax.hardware import describe

    if (reason := _native.unavailable()) is not None:
        parser.error(reason)
    folder, info = Path(options.data), describe()
    layers = {"dense": [], "depthwise": []}
    for kind, widths in WIDTHS.items():
        for scan, channels in itertools.product(("lidar", "indoor"), widths):
            layers[kind].append(layer(scan, folder, kind, channels, options.rounds))
            print(kind, json.dumps(layers[kind][-1]), flush=True)
    report = {
        "device": f"{info.model or info.device_kind}, {info.cpu_cores} cores",
        "simd": _native.simd(),
        "jax": jax.__version__,
        "rounds": options.rounds,
        "layers": layers["dense"],
        "depthwise": layers["depthwise"],
        "maps": [kernel_maps(scan, folder, options.rounds) for scan in SCANS],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "native.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "native.md").write_text(to_markdown(report))


if __name__ == "__main__":
    main()
