"""Dynamic convolution where all positions have one size, against the plain convolution of XLA.

    python benchmarks/one_size.py [--side 256] [--channels 3 64] [--rounds 25]

A kernel of 7 x 7 and sizes 3, 5 and 7. In turn, in one process: `auto` with the size as a Python
integer, as a traced number, one for each scene, and as an array of equal sizes, concrete and
traced; each strategy pinned; a weight for each size; `jax.lax.conv_general_dilated` with the taps
of that size; and `jax.lax.switch` between such convolutions. `auto` measures into an empty cache.
The figure is the lower quartile, as the tuner takes it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import numpy as np

LARGEST, SIZES = 7, (3, 5, 7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--channels", type=int, nargs=2, default=(3, 64))
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        run(options, cache)


def run(options: argparse.Namespace, cache: str) -> None:
    os.environ["VOXAX_CACHE_DIR"] = cache
    os.environ["VOXAX_AUTOTUNE_BUDGET"] = "600"
    import jax  # after the environment is set
    import jax.numpy as jnp

    from voxax.nn.functional import dynamic_conv

    rng = np.random.default_rng(0)
    shape = (1, options.side, options.side, options.channels[0])
    x = jnp.asarray(rng.standard_normal(shape, np.float32))
    w = jnp.asarray(rng.standard_normal((LARGEST, LARGEST, *options.channels), np.float32))
    boxes = {}
    for size in SIZES:
        low = (LARGEST - size) // 2
        boxes[size] = w[low : low + size, low : low + size]

    def plain(x, w):
        axes = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=axes)

    def switched(x, which, weights):
        return jax.lax.switch(
            which, [lambda x, w, i=i: plain(x, w[i]) for i in range(3)], x, weights
        )

    traced = jax.jit(lambda x, w, size: dynamic_conv(x, w, size=size))
    pinned = {
        method: jax.jit(lambda x, w, size, m=method: dynamic_conv(x, w, size=size, method=m))
        for method in ("masked", "grouped", "tiled", "selected")
    }
    own = jax.jit(lambda x, w, size: dynamic_conv(x, w, size=size))
    switch = jax.jit(switched)
    lax = jax.jit(plain)
    weights = [boxes[size] for size in SIZES]
    static = jax.jit(lambda x, w, size: dynamic_conv(x, w, size=size), static_argnums=2)
    cases = {}
    for size in SIZES:
        every = jnp.full(shape[:3], size, jnp.int32)
        cases[size] = {
            "lax.conv": lambda size=size: lax(x, boxes[size]),
            "lax.switch": lambda size=size: switch(x, SIZES.index(size), weights),
            "auto, static": lambda size=size: static(x, w, size),
            "auto, one": lambda size=size: traced(x, w, jnp.int32(size)),
            "auto, by scene": lambda size=size: traced(x, w, jnp.full(1, size, jnp.int32)),
            "auto, traced": lambda every=every: traced(x, w, every),
            "auto, equal": lambda every=every: dynamic_conv(x, w, size=every),
            "own weights": lambda size=size: own(x, boxes, jnp.full(1, size, jnp.int32)),
            **{name: lambda every=every, run=run: run(x, w, every) for name, run in pinned.items()},
        }
    seconds = {}
    for number in range(options.rounds + 1):
        for size, forms in cases.items():
            for name, call in forms.items():
                begin = time.perf_counter()
                jax.block_until_ready(call())
                if number:
                    spent = time.perf_counter() - begin
                    seconds.setdefault((name, size), []).append(spent)
    print(
        f"{options.side} x {options.side}, {options.channels[0]} -> {options.channels[1]} channels"
    )
    print("ms, and ratio to lax.conv")
    print(f"{'':<16}" + "".join(f"{f'size {size}':>18}" for size in SIZES))
    for name in cases[SIZES[0]]:
        cells = []
        for size in SIZES:
            own_time, base = (
                float(np.quantile(seconds[key, size], 0.25)) for key in (name, "lax.conv")
            )
            cells.append(f"{1e3 * own_time:>10.2f}  {own_time / base:>6.2f}")
        print(f"{name:<16}" + "".join(cells))


if __name__ == "__main__":
    main()
