"""Compare native depthwise layers with the lower bound set by memory.

    python benchmarks/depthwise.py [--data FOLDER] [--rounds 11]

One 3x3x3 submanifold layer on real scans, 16 to 256 channels, float32: forward, dgrad, wgrad, and
the backward of a training step, which is dgrad and wgrad at once. The lower bound is that of
``voxax.explanation.lower_bound`` (what ``explain`` shows): operands, kernel map and results, each
once, at the rate of a copy. The copy is of 256 MiB, by the best of three ways, in the same run.
Beside it stands a copy of the layer's features alone, which may lie in a cache. All take turns.
Results go to results/depthwise.md and .json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import native, report
from benchmarks.tuning import voxels_of
from benchmarks.workloads import problem_of

CHANNELS = (16, 32, 64, 128, 256)
_BYTES = 1 << 28


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


def backward(kernel_map: Any, channels: int) -> Callable[[], Any]:
    """dgrad and wgrad in one program, as the gradient of a layer has them."""
    import jax
    import jax.numpy as jnp

    from voxax.products import convolve

    rng = np.random.default_rng(0)
    x, dy = (
        jnp.asarray(rng.standard_normal((kernel_map.in_capacity, channels)), jnp.float32)
        for _ in range(2)
    )
    w = jnp.asarray(rng.standard_normal((27, channels)), jnp.float32)
    pinned = {f"{product}_algo": "implicit" for product in ("fwd", "dgrad", "wgrad")}

    @jax.jit
    def gradients(x: Any, w: Any, dy: Any) -> Any:
        return jax.vjp(lambda x, w: convolve(x, w, kernel_map, **pinned), x, w)[1](dy)

    return lambda: gradients(x, w, dy)


def layer(scan: str, folder: Path, channels: int, rounds: int) -> dict[str, Any]:
    """All three products of one layer, and their lower bounds."""
    import voxax as vx
    from voxax.explanation.lower_bound import lower_bound_of

    voxels = voxels_of(folder, scan)
    kernel_map = vx.kernel_map(voxels, 3)
    count, pairs = int(voxels.count), int((np.asarray(kernel_map.neighbors) >= 0).sum())
    memory = {f"memory, {k}": v for k, v in copies(_BYTES // 1024, 256).items()}
    features = {f"features, {k}": v for k, v in copies(count, channels).items()}
    runs = memory | features
    for product in native.PRODUCTS:
        runs |= native.candidates(kernel_map, "depthwise", channels, product)
    runs["backward"] = backward(kernel_map, channels)
    seconds = native.interleaved(runs, rounds)
    rate = 2 * _BYTES / min(seconds[name] for name in memory)
    problems = [problem_of(kernel_map, channels, p, "depthwise") for p in native.PRODUCTS]
    moved = {p.product: lower_bound_of(p, pairs, None).bytes for p in problems}
    # Gradients and the kernel map, which dgrad and wgrad both read, once.
    read_by_both = 4 * kernel_map.out_capacity * (channels + 27)
    moved["backward"] = moved["dgrad"] + moved["wgrad"] - read_by_both
    best = native.best_of_each(seconds)
    apart = best["dgrad"]["xla"] + best["wgrad"]["xla"]
    return {
        "scan": scan,
        "channels": channels,
        "voxels": count,
        "capacity": kernel_map.out_capacity,
        "pairs": pairs,
        **best,
        "backward": {"native": seconds["backward"], "xla": apart},
        "rate": rate,
        "copy": min(seconds[name] for name in features),
        "lower_bounds": {product: count / rate for product, count in moved.items()},
    }


def lines_of(values: dict[str, Any]) -> list[str]:
    parts = {name: [name] for name in (*native.PRODUCTS, "backward")}
    parts["all"] = ["forward", "backward"]
    rows = []
    for r in values["layers"]:
        cells = [r["scan"], r["channels"], f"{r['pairs'] / 1e3:.0f}", f"{r['rate'] / 1e9:.0f}"]
        cells += [f"{1e3 * r['copy']:.2f}", f"{1e3 * r['lower_bounds']['forward']:.2f}"]
        for products in parts.values():
            lower_bound = sum(r["lower_bounds"][p] for p in products)
            for by in ("native", "xla"):
                seconds = sum(r[p][by] for p in products)
                cells.append(f"{1e3 * seconds:.2f} ({seconds / lower_bound:.2f})")
        rows.append(cells)
    head = ["scan", "C", "pairs / 1000", "GB/s", "copy", "lower bound"]
    head += [name for part in parts for name in (part, "XLA")]
    return [
        "# Depthwise layers on CPUs",
        "",
        f"{values['device']}, vectors: {values['simd']}, JAX {values['jax']}, float32, one 3x3x3 "
        f"submanifold layer, medians of {values['rounds']} rounds in turn, ms; in brackets the "
        "ratio to the lower bound: features, gradients, filters and the kernel map, each once, at "
        "the rate of a copy of 256 MiB in the same run (read and written). Copy: of the layer's "
        "features alone, from wherever they lie. XLA: the best candidate of explicit. Backward: "
        "dgrad and wgrad in one program, which computes them at once (XLA: its two products, one "
        "after the other), against a lower bound in which both read the gradients and the map "
        "once. All: forward and backward.",
        "",
        *report.table(head, rows),
    ]


def main() -> None:
    options, layers = native.measured(__doc__, CHANNELS, layer)
    values = {**report.machine(), "rounds": options.rounds, "layers": layers}
    report.write(options.out, "depthwise", values, lines_of(values))


if __name__ == "__main__":
    main()
