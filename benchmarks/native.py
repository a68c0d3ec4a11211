"""Compare the native CPU kernels with the machine's limit and XLA's best.

    python benchmarks/native.py [--data FOLDER] [--rounds 15]

One 3x3x3 submanifold layer on real scans, 16 to 256 channels, float32: forward, dgrad, wgrad. The
lower bound is the arithmetic of the pairs that exist over this machine's own best rate of a dense
matrix product, which is measured in the same run. All candidates take turns. Results go to
results/native.md and .json. Depthwise layers are in depthwise.py, kernel maps in coordinates.py.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.own_process import KEEP_HEAP
from benchmarks.tuning import voxels_of
from benchmarks.turns import medians
from benchmarks.workloads import problem_of

# Seconds of calls that a turn has at least.
_TURN = 0.03
PRODUCTS = ("forward", "dgrad", "wgrad")
WIDTHS = (16, 32, 64, 128, 256)


# After two rounds that do not count; the first calls of a turn neither.
interleaved = functools.partial(medians, warm=2, least=_TURN)


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
    from voxax.kernels.depthwise import cpu as depthwise_cpu
    from voxax.kernels.explicit_gemm import xla as explicit_gemm_xla
    from voxax.kernels.implicit_gemm import cpu as implicit_gemm_cpu
    from voxax.tuning.measure import compiled
    from voxax.tuning.sample import sample_of
    from voxax.tuning.space import Candidate, lookup

    problem = problem_of(kernel_map, channels, product, kind, level=(1, 1, 1))
    explicit, implicit = lookup("explicit_gemm")[0], lookup("implicit_gemm")[0]
    if kind == "depthwise":
        explicit, implicit = (lookup(n, kind)[0] for n in ("explicit", "implicit"))
    native = depthwise_cpu if kind == "depthwise" else implicit_gemm_cpu
    found = [Candidate(implicit, p) for p in native.space(problem, describe())]
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


def layer(scan: str, folder: Path, channels: int, rounds: int) -> dict[str, Any]:
    """All three products of one layer, and the lower bound."""
    import voxax as vx

    voxels = voxels_of(folder, scan)
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


def lines_of(values: dict[str, Any]) -> list[str]:
    rows = []
    for r in values["layers"]:
        cells = [r["scan"], r["channels"], f"{r['pairs'] / 1e3:.0f}", f"{r['rate'] / 1e9:.0f}"]
        cells.append(f"{1e3 * r['lower_bound']:.2f}")
        for product, by in itertools.product(PRODUCTS, ("native", "xla")):
            seconds = r[product][by]
            cells.append(f"{1e3 * seconds:.2f} ({seconds / r['lower_bound']:.2f})")
        rows.append(cells)
    products = [name for product in PRODUCTS for name in (product, "XLA")]
    return [
        "# The native CPU kernels",
        "",
        f"{values['device']}, vectors: {values['simd']}, JAX {values['jax']}, float32, one 3x3x3 "
        f"submanifold layer, medians of {values['rounds']} rounds in turn, ms; in brackets the "
        "ratio to the lower bound (arithmetic of the pairs over the rate of the best dense product "
        "of the same run). XLA: the best candidate of explicit_gemm, at 256 channels without "
        "im2col, which took three times the best and more in tuning.md.",
        "",
        *report.table(["scan", "C", "pairs / 1000", "GFLOP/s", "lower bound", *products], rows),
    ]


def main() -> None:
    options, layers = measured(__doc__, WIDTHS, layer)
    values = {**report.machine(), "rounds": options.rounds, "layers": layers}
    report.write(options.out, "native", values, lines_of(values))


def measured(
    about: str | None, widths: tuple[int, ...], layer: Callable[..., dict[str, Any]]
) -> tuple[argparse.Namespace, list[dict[str, Any]]]:
    """The command line's options, and what ``layer`` tells of each scan and width."""
    parser = report.options(about, data=True, rounds=11)
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


if __name__ == "__main__":
    main()
