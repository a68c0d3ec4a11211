"""Compare the native CPU kernels with the machine's limit and XLA's best.

    python benchmarks/native.py [--data FOLDER] [--rounds 15]

One 3x3x3 submanifold layer on real scans, 16 to 256 channels, float32: forward, dgrad, wgrad. The
lower bound is the arithmetic of the pairs that exist over this machine's own best rate of a dense
matrix product, which is measured in the same run. All candidates take turns. Also the kernel map,
native and by XLA's searches. Results go to results/native.md and .json. Depthwise layers are in
depthwise.py.

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
from pathlib import Path
from typing import Any

import numpy as np
from own_process import KEEP_HEAP

from tuning import DATA, RESULTS, SCANS

# Seconds of calls that a turn has at least.
_TURN = 0.03
PRODUCTS = ("forward", "dgrad", "wgrad")
WIDTHS = (16, 32, 64, 128, 256)


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


def candidates(kernel_map: Any, kind: str, channels: int, product: str) -> dict[str, Any]:
    """``{name: program}`` of all that can run one product of a layer."""
    from voxax.hardware import describe
    from voxax.kernels.explicit_gemm import xla as explicit_gemm_xla
    from voxax.tuning.measure import compiled
    from voxax.tuning.sample import sample_of
    from voxax.tuning.space import Candidate, lookup

    problem = problem_of(kernel_map, kind, channels, product)
    explicit, implicit = lookup("explicit_gemm")[0], lookup("implicit_gemm")[0]
    if kind == "depthwise":
        explicit, implicit = (lookup(n, kind)[0] for n in ("explicit", "implicit"))
    found = [Candidate(implicit, p) for p in native_space(problem)]
    found += [
        Candidate(explicit, p)
        for p in explicit_gemm_xla.space(problem, describe())
        if channels < 256 or p != explicit_gemm_xla.IM2COL
    ]
    read: dict[str, Any] = {}
    for c in found:
        read.update(c.kernel.views_of(problem, c.parameters))
    sample = sample_of(problem, {"neighbors": kernel_map.neighbors}, read)
    return {f"{product}, {c}": compiled(problem, c, sample) for c in found}


def problem_of(kernel_map: Any, kind: str, channels: int, product: str) -> Any:
    from voxax.kernels import Layer, Problem

    layer = Layer(
        in_capacity=kernel_map.in_capacity,
        out_capacity=kernel_map.out_capacity,
        num_offsets=27,
        symmetric=True,
        kind=kind,  # pyright: ignore[reportArgumentType]
        groups=1,
        precision="highest",
        spec=kernel_map.spec,
        level=(1, 1, 1),
    )
    return Problem(product, layer, channels, channels, "float32", "cpu")  # pyright: ignore


def native_space(problem: Any) -> Any:
    from voxax.hardware import describe
    from voxax.kernels.depthwise import cpu as depthwise_cpu
    from voxax.kernels.implicit_gemm import cpu

    module = depthwise_cpu if problem.layer.kind == "depthwise" else cpu
    return module.space(problem, describe())


def layer(scan: str, folder: Path, channels: int, rounds: int) -> dict[str, Any]:
    """All three products of one layer, and the lower bound."""
    import voxax as vx

    voxels = scene(scan, folder)
    kernel_map = vx.kernel_map(voxels, 3)
    count, pairs = int(voxels.count), int((np.asarray(kernel_map.neighbors) >= 0).sum())
    limits = matrix_rates()
    runs = dict(limits)
    for product in PRODUCTS:
        runs |= candidates(kernel_map, "dense", channels, product)
    seconds = interleaved(runs, rounds)
    rate = 2 * 4096 * 512 * 512 / min(seconds[name] for name in limits)
    return {
        "scan": scan,
        "channels": channels,
        "voxels": count,
        "pairs": pairs,
        **best_of_each(seconds),
        "rate": rate,
        "lower_bound": 2 * pairs * channels**2 / rate,
    }


def best_of_each(seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    """``{product: {"native": seconds, "xla": seconds}}``."""
    rows = {}
    for product in PRODUCTS:
        own = {k: v for k, v in seconds.items() if k.startswith(product)}
        rows[product] = {
            "native": min(v for k, v in own.items() if "native" in k),
            "xla": min(v for k, v in own.items() if "native" not in k),
        }
    return rows


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
        return lookup._find_neighbors(*arguments, ordered=True)[0]

    def by(find: Callable[..., Any]) -> Callable[[], Any]:
        program = jax.jit(lambda coords, valid: find(coords, coords, valid, offsets))
        return lambda: program(geometry.coords, valid)

    return {
        "scan": scan,
        "voxels": int(geometry.count),
        **interleaved({"native": by(lookup._merge_neighbors), "xla": by(searched)}, rounds),
    }


def rows_of(layers: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| scan | C | pairs / 1000 | GFLOP/s | lower bound | forward | XLA | dgrad | XLA | wgrad "
        "| XLA |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in layers:
        cells = [r["scan"], r["channels"], f"{r['pairs'] / 1e3:.0f}", f"{r['rate'] / 1e9:.0f}"]
        cells.append(f"{1e3 * r['lower_bound']:.2f}")
        for product, by in itertools.product(PRODUCTS, ("native", "xla")):
            seconds = r[product][by]
            cells.append(f"{1e3 * seconds:.2f} ({seconds / r['lower_bound']:.2f})")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def to_markdown(report: dict[str, Any]) -> str:
    lines = [
        "# The native CPU kernels",
        "",
        f"{report['device']}, vectors: {report['simd']}, JAX {report['jax']}, float32, one 3x3x3 "
        f"submanifold layer, medians of {report['rounds']} rounds in turn, ms; in brackets the "
        "ratio to the lower bound (arithmetic of the pairs over the rate of the best dense product "
        "of the same run). XLA: the best candidate of explicit_gemm, at 256 channels without "
        "im2col, which took three times the best and more in tuning.md.",
        "",
        *rows_of(report["layers"]),
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
    options, layers = measured(__doc__, WIDTHS, layer)
    maps = [kernel_maps(scan, options.data, options.rounds) for scan in SCANS]
    report = {**machine(), "rounds": options.rounds, "layers": layers, "maps": maps}
    write(options.out, "native", report, to_markdown(report))


def measured(
    about: str | None, widths: tuple[int, ...], layer: Callable[..., dict[str, Any]]
) -> tuple[argparse.Namespace, list[dict[str, Any]]]:
    """The command line's options, and what ``layer`` tells of each scan and width."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA", DATA))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in KEEP_HEAP.items()):
        os.environ.update(KEEP_HEAP)
        os.execv(sys.executable, [sys.executable, *sys.argv])  # glibc reads them at the start
    from voxax import _native

    if (reason := _native.unavailable()) is not None:
        parser.error(reason)
    layers = []
    for scan, channels in itertools.product(("lidar", "indoor"), widths):
        layers.append(layer(scan, options.data, channels, options.rounds))
        print(json.dumps(layers[-1]), flush=True)
    return options, layers


def machine() -> dict[str, Any]:
    import jax

    from voxax import _native
    from voxax.hardware import describe

    info = describe()
    name = info.model or info.device_kind
    if info.generation is not None:
        name += f" ({info.generation})"
    return {
        "device": f"{name}, {info.cpu_cores} cores",
        "simd": _native.simd(),
        "jax": jax.__version__,
    }


def write(folder: Path, name: str, report: dict[str, Any], table: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{name}.md").write_text(table)


if __name__ == "__main__":
    main()
