"""Compare calling voxax from PyTorch with calling it from JAX.

    python benchmarks/torch_bridge.py [--rounds 15] [--channels 64] [--rows 60000]

One 3x3x3 submanifold layer on a closed surface, float32, forward and forward with both gradients,
over a map that is built already. All take turns; medians. JAX runs the three products as programs
of their own, as PyTorch does, so the difference is the bridge; and as one program, which may
compute both gradients at once. PyTorch is needed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each, after two rounds that do not count."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 2):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            begin = time.perf_counter()
            runs[name]()
            if number >= 2:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--rows", type=int, default=60000)
    options = parser.parse_args()

    import jax
    import numpy as np
    import torch
    from benchmarks.workloads import surface

    import voxax as vx
    import voxax.torch as vxt
    from voxax.nn.functional import spatially_sparse_conv

    rows = np.unique(surface(options.rows), axis=0)
    channels = options.channels
    layer = vxt.SubMConv3d(channels, channels, bias=False)
    voxels = vxt.Voxels.from_coords(rows, torch.randn(len(rows), channels))
    voxels = vxt.plan(layer, voxels)
    geometry = voxels.geometry
    grad = torch.randn(voxels.capacity, channels)
    features, weight = voxels.features, layer.weight.detach()
    jax_voxels = vx.plan(lambda v: spatially_sparse_conv(v, vxt.to_jax(weight)), voxels.to_jax())
    x, w, g = (vxt.to_jax(t) for t in (features, weight, grad))

    @jax.jit
    def forward(voxels: vx.Voxels, x: jax.Array, w: jax.Array) -> jax.Array:
        return spatially_sparse_conv(voxels.replace_features(x), w).features

    @jax.jit
    def dgrad(voxels: vx.Voxels, x: jax.Array, w: jax.Array, g: jax.Array) -> jax.Array:
        return jax.vjp(lambda x: forward(voxels, x, w), x)[1](g)[0]

    @jax.jit
    def wgrad(voxels: vx.Voxels, x: jax.Array, w: jax.Array, g: jax.Array) -> jax.Array:
        return jax.vjp(lambda w: forward(voxels, x, w), w)[1](g)[0]

    @jax.jit
    def one_program(voxels: vx.Voxels, x: jax.Array, w: jax.Array, g: jax.Array) -> Any:
        out, back = jax.vjp(lambda x, w: forward(voxels, x, w), x, w)
        return out, back(g)

    def three_programs() -> None:
        out = jax.block_until_ready(forward(jax_voxels, x, w))
        dx = jax.block_until_ready(dgrad(jax_voxels, x, w, g))
        jax.block_until_ready((out, dx, wgrad(jax_voxels, x, w, g)))

    def torch_both() -> None:
        a, b = features.detach().requires_grad_(), weight.detach().requires_grad_()
        out = vxt.spatially_sparse_conv(vxt.Voxels(geometry, a), b).features
        torch.autograd.grad(out, (a, b), grad)

    def torch_forward() -> None:
        with torch.no_grad():
            vxt.spatially_sparse_conv(vxt.Voxels(geometry, features), weight)

    runs = {
        "forward, JAX": lambda: jax.block_until_ready(forward(jax_voxels, x, w)),
        "forward, PyTorch": torch_forward,
        "training, JAX": three_programs,
        "one program": lambda: jax.block_until_ready(one_program(jax_voxels, x, w, g)),
        "training, PyTorch": torch_both,
    }
    times = interleaved(runs, options.rounds)
    kernels = vx.hardware.describe().native_kernels
    print(f"{len(rows)} voxels, {channels} channels, native kernels: {kernels}")
    print("| | JAX, ms | PyTorch, ms | more |\n|---|---|---|---|")
    for what in ("forward", "training"):
        ours, theirs = times[f"{what}, JAX"], times[f"{what}, PyTorch"]
        print(f"| {what} | {1e3 * ours:.1f} | {1e3 * theirs:.1f} | {theirs / ours - 1:+.1%} |")
    print(f"\nJAX, training in one program: {1e3 * times['one program']:.1f} ms")


if __name__ == "__main__":
    main()
