"""Strategies of dynamic convolution on three shapes: do banks cost less than the exact result?

    python benchmarks/dynamic_banks.py [--rounds 9] [--only 256]

One grid, one weight, a size drawn for each position. Exact strategies, a bank of 3 sizes, and a
hierarchical one that computes the largest size on cells, run in turn, many rounds in one process,
so that a slow spell of the machine hits all alike. Parameters are those taken unmeasured. Figures
are medians of wall time; ratios are medians of processor time over that of grouped in the same
round, which other work on the machine hardly changes. Before,
every exact strategy is compared with masked, and the bank with masked on rounded sizes. A strategy
that refuses the problem stands there as refused.
Results go to results/dynamic_banks.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import AlgorithmError
from voxax.nn.functional import dynamic_conv

RESULTS = Path(__file__).parent / "results"
EXACT = ("masked", "grouped", "tiled", "selected", "specialized")
# Spatial axes, channels, the sizes of positions, the bank; its largest size runs on cells.
SHAPES = {
    "128 x 128, 64 channels, sizes 3 to 7": ((128, 128), 64, range(3, 8), (3, 5, 7)),
    "256 x 256, 32 channels, sizes 3 to 7": ((256, 256), 32, range(3, 8), (3, 5, 7)),
    "32 x 32 x 32, 32 channels, sizes 2 to 5": ((32, 32, 32), 32, range(2, 6), (2, 3, 5)),
}


def ways_of(bank: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Arguments of each way."""
    fixed = {"method": "bank", "bank": bank}
    return {
        **{name: {"method": name} for name in EXACT},
        "bank": fixed,
        "bank of 3, chosen": {"method": "bank", "bank": 3},
        "hierarchical": {**fixed, "coarse_from": bank[-1]},
        "hierarchical, of 3, chosen": {"method": "bank", "bank": 3, "coarse_from": bank[-1]},
    }


def measure(shape: str, rounds: int) -> dict[str, Any]:
    """Return milliseconds of each way and their ratio, by name, or why it does not run."""
    spatial, channels, drawn, bank = SHAPES[shape]
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((1, *spatial, channels), np.float32))
    taps = (drawn[-1],) * len(spatial)
    w = jnp.asarray(rng.standard_normal((*taps, channels, channels), np.float32) / channels)
    size = rng.choice(list(drawn), (1, *spatial)).astype(np.int32)
    counts = np.asarray(bank) ** len(spatial)
    near = np.abs(size[..., None] ** len(spatial) - counts).argmin(-1)
    sizes = jnp.asarray(size)
    runs: dict[str, Callable[[], Any]] = {}
    right: dict[str, Any] = {}
    result: dict[str, Any] = {}
    for name, options in ways_of(bank).items():

        def forward(x: jax.Array, w: jax.Array, sizes: jax.Array, options: Any = options) -> Any:
            return dynamic_conv(x, w, size=sizes, **options)

        def both(x: jax.Array, w: jax.Array, sizes: jax.Array, f: Any = forward) -> Any:
            return jax.grad(lambda x, w: jnp.sum(f(x, w, sizes) ** 2), argnums=(0, 1))(x, w)

        for what, f in (("forward", forward), ("both", both)):
            if name == "masked":
                right[what] = jax.jit(f)
            run = jax.jit(f)
            try:
                value = jax.block_until_ready(run(x, w, sizes))
            except AlgorithmError as error:
                result[f"{name} {what}"] = str(error)
                continue
            runs[f"{name} {what}"] = lambda run=run: jax.block_until_ready(run(x, w, sizes))
            if "hierarchical" in name or "chosen" in name:
                continue
            own = sizes if name in EXACT else jnp.asarray(np.asarray(bank)[near])
            wanted = jax.tree.leaves(right[what](x, w, own))
            for got, want in zip(jax.tree.leaves(value), wanted, strict=True):
                worst = float(jnp.abs(got - want).max() / jnp.abs(want).max())
                assert worst < 1e-4, (name, what, worst)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in list(runs) if number % 2 else reversed(runs):
            begin, before = time.perf_counter(), time.process_time()
            runs[name]()
            took = time.perf_counter() - begin, time.process_time() - before
            times[name].append(took)
    for name, own in times.items():
        base = times[f"grouped {name.rsplit(' ', 1)[1]}"]
        ratios = [a / b for (_, a), (_, b) in zip(own, base, strict=True)]
        result[name] = [1e3 * statistics.median(t for t, _ in own), statistics.median(ratios)]
    return result


def cell(row: dict[str, Any], name: str, what: str) -> str:
    """Milliseconds and the ratio to grouped."""
    own = row[f"{name} {what}"]
    if isinstance(own, str):
        return "refused"
    return f"{own[0]:.1f} ({own[1]:.2f})"


def processor() -> str:
    """Return the processor's name, and what it has of AVX."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    return f"{names[0]}, {'AVX-512' if ' avx512f' in flags else 'AVX2'}"


def report(results: dict[str, dict[str, Any]], rounds: int) -> str:
    """Return the tables."""
    lines = [
        "# Banks of sizes on a CPU",
        "",
        f"{len(os.sched_getaffinity(0))} cores of an {processor()}, shared with other work (load "
        f"{os.getloadavg()[0]:.0f}); jax {jax.__version__}. float32, "
        f"medians of {rounds} interleaved rounds, ms; in brackets processor time over that of "
        "`grouped`.",
    ]
    for what, title in (("forward", "Forward"), ("both", "Forward and both gradients")):
        lines += ["", f"## {title}", "", "| strategy | " + " | ".join(results) + " |"]
        lines.append("|---" + "|---:" * len(results) + "|")
        for name in ways_of((1,)):
            cells = [cell(row, name, what) for row in results.values()]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    reasons = {r for row in results.values() for r in row.values() if isinstance(r, str)}
    return "\n".join([*lines, "", *(f"Refused: {reason}" for reason in sorted(reasons)[:1]), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="shapes whose name has this text")
    options = parser.parse_args()
    os.environ["VOXAX_AUTOTUNE"] = "off"
    kept = RESULTS / "dynamic_banks.json"
    results = json.loads(kept.read_text()) if options.only and kept.exists() else {}
    for shape in SHAPES:
        if options.only in shape:
            results[shape] = measure(shape, options.rounds)
            print(report(results, options.rounds), flush=True)
    kept.write_text(json.dumps(results, indent=1) + "\n")
    kept.with_suffix(".md").write_text(report(results, options.rounds))


if __name__ == "__main__":
    main()
