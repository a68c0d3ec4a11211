"""Do PTv3-base's forward pass and training step compile for TPUs, and fit into their memory?

    python benchmarks/tpu/ptv3_step.py

One program of 65,536 rows, the bucket of a scan of 60,000 voxels: space-filling curves, patches,
kernel maps, splash attention and everything else; for training also the loss, gradients and AdamW.
bfloat16 with float32 parameters, sparse convolutions pinned to ``implicit_gemm``. Levels have the
capacities that the recorded room fits. Memory is the compiler's account, with nothing donated; the
least time is that of its schedules, loops of unknown length once.
A process for each program, minutes each. Nothing runs. Needs libtpu. Results go to
results/tpu_ptv3_step.md and .json after each program; a run goes on where another was stopped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu.counted import Kept, Row, options
from benchmarks.tpu.minkunet_step import chip_of, compiled, given, memory_of, planned, training_step
from benchmarks.tpu.program import digest

ROWS, CHANNELS, CLASSES = 65_536, 6, 20
MODES = {"forward": ("v4", "v5e", "v5p", "v6e", "7x"), "training": ("v5e", "v6e")}
"""Programs by mode, and the generations that they are compiled for."""


def step(
    training: bool = False,
    attention: str | None = "splash",
    algorithm: str | None = "implicit_gemm",
    rows: int = ROWS,
    **options: Any,
) -> tuple[Any, ...]:
    """Return the program to compile, and the shapes of its arguments.

    ``options`` are those of the network.
    """
    import jax
    import jax.numpy as jnp
    from flax import nnx

    import voxax as vx
    from voxax import models

    def make() -> Any:
        made: dict[str, Any] = {"algorithm": attention, "dtype": jnp.bfloat16, **options}
        model = models.create("ptv3-base", in_channels=CHANNELS, num_classes=CLASSES, **made)
        if not training:
            model.eval()
        return model

    voxels = given(planned(rows, "indoor"), CHANNELS)
    if training:
        return training_step(make, voxels, algorithm)
    graph, state = nnx.split(nnx.eval_shape(make))

    def forward(state: Any, voxels: Any) -> Any:
        with vx.algorithms(forward=algorithm):
            out = nnx.merge(graph, state)(voxels)
        return out.features, out.num_dropped

    return forward, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state), voxels


def lines_of(rows: list[Row]) -> list[str]:
    lines = []
    for r in rows:
        cells = ["does not compile", "", "", ""]
        if "error" not in r:
            cells = [*memory_of(r), f"{1e3 * r['seconds']:.0f}"]
        lines.append([r["mode"], chip_of(r), *cells])
    head = ["program", "chip", "temporary, MB", "arguments and results, MB", "of the memory"]
    table = report.table([*head, "ms at least"], lines, 2)
    return ["# PTv3-base on TPUs, predicted", "", *table]


def main() -> None:
    parser = options(__doc__, MODES["forward"])
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    chosen = parser.parse_args()
    # Choices of this program, not of what somebody has measured elsewhere.
    os.environ["VOXAX_AUTOTUNE"] = "off"
    order = {"mode": None, "chip": MODES["forward"]}
    kept = Kept(chosen.out, "tpu_ptv3_step", tuple(order), order, lines_of)
    done = set() if chosen.anew else kept.done(tuple(order), lambda row: digest("step"))
    for mode in chosen.modes:
        for chip in MODES[mode]:
            if chip in chosen.chips and (mode, chip) not in done:
                target, training = "benchmarks.tpu.ptv3_step:step", mode == "training"
                new = {"chip": chip, "mode": mode, "code": digest("step")}
                new |= compiled(chip, target, training=training)
                kept.add([new])
                print(new.get("error", lines_of([new])[-1]), flush=True)
    kept.show()


if __name__ == "__main__":
    main()
