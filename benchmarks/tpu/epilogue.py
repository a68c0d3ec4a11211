"""Predict the cost of a layer's epilogue behind the window kernel, left to XLA.

    python benchmarks/tpu/epilogue.py

A 3x3x3 submanifold layer of 64 channels in bfloat16, forward, over 94,444 rows, each tile visited
once: the product alone; with a bias of each channel; and with a folded batch norm, a residual that
is added, and a ReLU. Times are predicted from the TPU compiler's schedules (voxax.predict), whole
programs. What a kernel that did it itself could save is the difference at most. Nothing runs.
Needs libtpu.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu import program
from benchmarks.tpu.counted import options

from voxax.cli.bench import passes_of
from voxax.predict import count_all

ROWS, CHANNELS = 94_444, 64
EPILOGUES = ("none", "bias", "batch norm, residual, ReLU")


def layer(chip: str, epilogue: str) -> tuple[Any, ...]:
    """Return the program to compile."""
    run, x, w, views = program.product(chip, rows=ROWS, channels=CHANNELS)

    def whole(x: Any, w: Any, views: Any, scale: Any, shift: Any, residual: Any) -> Any:
        y = run(x, w, views)
        if epilogue == "none":
            return y
        wide = y.astype(jnp.float32)
        if epilogue == "bias":
            return (wide + shift[None, :]).astype(y.dtype)
        wide = wide * scale[None, :] + shift[None, :] + residual.astype(jnp.float32)
        return jnp.maximum(wide, 0).astype(y.dtype)

    channels = jax.ShapeDtypeStruct((CHANNELS,), "float32")
    return whole, x, w, views, channels, channels, x


def main() -> None:
    chips = options(__doc__, anew=False).parse_args().chips
    target = "benchmarks.tpu.epilogue:layer"
    asked = [(chip, target, {"epilogue": name}) for chip in chips for name in EPILOGUES]
    programs, lines = iter(count_all(asked)), []
    for chip in chips:
        times, least = [], ""
        for _ in EPILOGUES:
            found = next(programs)
            passes = {kernel.name: passes_of(kernel) for kernel in found.kernels}
            times.append(1e6 * found.seconds(passes, at_least=True))
            least = least or ("at least " if found.open(passes) else "")
        more = "" if least else f"{times[-1] / times[0] - 1:+.1%}"
        lines.append([chip, *(f"{least}{time:,.0f}" for time in times), more])
    head = ["chip", *(f"{name}, us" for name in EPILOGUES), "more"]
    print("\n".join(report.table(head, lines)))


if __name__ == "__main__":
    main()
