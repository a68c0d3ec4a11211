"""Dynamic convolution: every strategy on ten maps of sizes, what auto takes, and PyTorch's way.

    python benchmarks/dynamic.py [--side 256] [--channels 64] [--rounds 15] [--peer PYTHON]

One grid, one weight, kernel sizes from 3 to 7 by position. auto is what a first call takes: it
measures 2 s for each product, 40 s in all, into an empty cache; --tune measures everything, as
vx.tune does.
Then all run in turn, many rounds in one process, forward and forward with both gradients, so that a
slow spell of the machine hits all alike; the figure is the median. --peer names a Python that has
PyTorch: what its users do, one convolution for each size then a selection, and unfold with einsum,
is timed in a process of its own with as many threads, while this one waits.
Results go to results/dynamic.json and .md after each map; --only measures some of them again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.turns import medians

LARGEST = 7
STRATEGIES = ("masked", "grouped", "tiled", "selected")

PEER = """
import json, os, sys, time, numpy as np, torch
import torch.nn.functional as F
x, w, size = (np.load(sys.argv[1])[n] for n in ("x", "w", "size"))
torch.set_num_threads(int(sys.argv[2]))
rounds = int(sys.argv[3])
x = torch.tensor(x).permute(0, 3, 1, 2).contiguous()
w = torch.tensor(w).permute(3, 2, 0, 1).contiguous()
size = torch.tensor(size)[:, None]
def select(x, w):
    y = 0
    for s in range(3, 8):
        low, high = (s - 1) // 2, s // 2
        k = w[:, :, 3 - low:3 + high + 1, 3 - low:3 + high + 1]
        y = torch.where(size == s, F.conv2d(F.pad(x, (low, high, low, high)), k), y)
    return y
a = torch.arange(-3, 4)
first = torch.where(a > 0, 2 * a, 1 - 2 * a)
reach = torch.maximum(first[:, None], first[None]).reshape(-1)
def unfold(x, w):
    b, c, h, _ = x.shape
    rows = []
    for begin in range(0, h, 32):  # whole patches of one image would take gigabytes
        part = F.pad(x, (3, 3, 3, 3))[:, :, begin:begin + 38]
        p = F.unfold(part, 7).reshape(b, c, 49, -1)
        m = size[:, 0, begin:begin + 32].reshape(b, 1, 1, -1) >= reach[:, None]
        y = torch.einsum("bckn,ock->bon", p * m, w.reshape(w.shape[0], c, 49))
        rows.append(y.reshape(b, -1, part.shape[2] - 6, x.shape[3]))
    return torch.cat(rows, 2)
result = {}
for name, f in (("select", select), ("unfold", unfold)):
    def forward():
        with torch.no_grad():
            return f(x, w)
    def both():
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        f(a, b).square().sum().backward()
    for what, run in (("forward", forward), ("both", both)):
        run()
        times = []
        for _ in range(rounds):
            begin = time.perf_counter(); run(); times.append(time.perf_counter() - begin)
        result[f"torch {name} {what}"] = sorted(times)[len(times) // 2]
    np.save(sys.argv[4] + name, forward().permute(0, 2, 3, 1).numpy())
print(json.dumps(result))
"""


def size_maps(side: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Ten maps ``int32[1, side, side]`` of sizes 3 to 7."""
    y, x = np.meshgrid(*[np.linspace(0, 1, side)] * 2, indexing="ij")

    def sizes(part: np.ndarray) -> np.ndarray:
        return np.clip(3 + np.floor(part * 5), 3, 7).astype(np.int32)[None]

    def blocks(block: int) -> np.ndarray:
        count = -(-side // block)
        return sizes(np.kron(rng.random((count, count)), np.ones((block, block)))[:side, :side])

    waves = 0.5 + 0.25 * np.sin(9 * x) + 0.25 * np.cos(7 * y)
    return {
        "uniform": sizes(rng.random((side, side))),
        "gradient": sizes(y),
        "smooth": sizes(waves),
        "blocks of 32": blocks(32),
        "blocks of 8": blocks(8),
        "all 3": sizes(0 * x),
        "all 5": sizes(0 * x + 0.5),
        "all 7": sizes(0 * x + 1),
        "few 7 in 3": sizes((rng.random((side, side)) < 0.02) * 1.0),
        "3 and 7": sizes((rng.random((side, side)) < 0.5) * 1.0),
    }


def main() -> None:
    parser = report.options(__doc__, rounds=15)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--tune", action="store_true", help="auto after vx.tune, without a budget")
    parser.add_argument("--only", default="", help="maps whose name has this text")
    parser.add_argument("--peer", help="a Python with PyTorch")
    options = parser.parse_args()
    os.environ["VOXAX_CACHE_DIR"] = tempfile.mkdtemp()
    rng = np.random.default_rng(0)
    maps = {n: m for n, m in size_maps(options.side, rng).items() if options.only in n}
    results = report.known(options.out, "dynamic") if options.only else {}
    for name, size in maps.items():
        results[name] = measure(size, options)
        report.write(options.out, "dynamic", results, lines_of(results, options))


def measure(size: np.ndarray, options: argparse.Namespace) -> dict[str, float]:
    """Median seconds of each way, by name; what auto chose."""
    import jax
    import jax.numpy as jnp

    from voxax import tune
    from voxax.nn.functional import dynamic_conv

    rng = np.random.default_rng(1)
    c = options.channels
    x = rng.standard_normal((1, options.side, options.side, c), np.float32)
    w = rng.standard_normal((LARGEST, LARGEST, c, c), np.float32) / np.float32(7 * math.sqrt(c))
    arrays = jnp.asarray(x), jnp.asarray(w)
    sizes = jnp.asarray(size)
    runs, values = {}, {}
    for algorithm in (*STRATEGIES, "auto"):

        def f(x, w, algorithm=algorithm):
            return dynamic_conv(x, w, size=sizes, algorithm=algorithm)

        def both(x, w, f=f):
            return jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), argnums=(0, 1))(x, w)

        if algorithm == "auto" and options.tune:
            tune(both, *arrays)
        for what, run in (("forward", jax.jit(f)), ("both", jax.jit(both))):
            values[f"{algorithm} {what}"] = jax.block_until_ready(run(*arrays))
            runs[f"{algorithm} {what}"] = run
    for what in ("forward", "both"):
        for algorithm in (*STRATEGIES[1:], "auto"):
            pairs = zip(
                jax.tree.leaves(values[f"{algorithm} {what}"]),
                jax.tree.leaves(values[f"masked {what}"]),
                strict=True,
            )
            for got, want in pairs:
                assert float(jnp.abs(got - want).max() / jnp.abs(want).max()) < 1e-4
    calls = {name: lambda run=run: run(*arrays) for name, run in runs.items()}
    result = medians(calls, options.rounds, warm=0)
    if options.peer:
        result |= peer(x, w, size, np.asarray(values["masked forward"]), options)
    return result


def peer(x, w, size, expected, options: argparse.Namespace) -> dict[str, float]:
    """PyTorch's two ways, in a process of their own; their results are compared first."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/case.npz", x=x, w=w, size=size)
        threads = len(os.sched_getaffinity(0))
        command = [options.peer, "-c", PEER, f"{folder}/case.npz", threads, options.rounds]
        done = subprocess.run(
            [*map(str, command), f"{folder}/"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        for name in ("select", "unfold"):
            got = np.load(f"{folder}/{name}.npy")
            assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max(), name
    return json.loads(done.stdout)


def lines_of(results: dict[str, dict[str, float]], options: argparse.Namespace) -> list[str]:
    """Return the tables."""
    import jax
    import jaxlib

    names = list(next(iter(results.values())))
    lines = [
        "# Dynamic convolution on a CPU",
        "",
        f"{options.side} x {options.side} positions, {options.channels} -> {options.channels} "
        f"channels, float32, sizes 3 to 7, {options.rounds} interleaved rounds, "
        f"{len(os.sched_getaffinity(0))} processors (load {os.getloadavg()[0]:.0f}, niceness "
        f"{os.nice(0)}), jax {jax.__version__}, jaxlib {jaxlib.__version__}. Median milliseconds.",
    ]
    for what in ("forward", "both"):
        own = [name for name in names if name.endswith(what)]
        lines += ["", f"## {'Forward' if what == 'forward' else 'Forward and both gradients'}", ""]
        rows, ratios = [], []
        for case, row in results.items():
            ratios.append(row[f"auto {what}"] / min(row[f"{m} {what}"] for m in STRATEGIES))
            cells = [f"{1e3 * row[name]:.0f}" for name in own]
            share = row[f"grouped {what}"] / row[f"masked {what}"]
            rows.append([case, *cells, f"{share:.2f}", f"{ratios[-1]:.2f}"])
        heads = [name.removesuffix(f" {what}") for name in own]
        lines += report.table(["sizes", *heads, "grouped / masked", "auto / best"], rows)
        mean = math.exp(statistics.mean(map(math.log, ratios)))
        lines += ["", f"auto over the best: geometric mean {mean:.3f}, worst {max(ratios):.2f}."]
    return lines


if __name__ == "__main__":
    main()
