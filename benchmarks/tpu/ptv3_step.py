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

import argparse
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks.tpu.minkunet_step import (
    RESULTS,
    compiled,
    given,
    keep,
    known,
    planned,
    training_step,
)
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


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| program | chip | temporary, MB | arguments and results, MB | of the memory "
        "| ms at least |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for r in rows:
        older = "" if r.get("code") == digest("step") else ", of older kernels"
        head = f"| {r['mode']} | {r['chip']}{older} "
        if "error" in r:
            lines.append(f"{head}| does not compile | | | |")
            continue
        memory = r["arguments"] + r["results"]
        share = (r["temporary"] + memory) / r["memory"]
        sizes = f"{r['temporary'] / 1e6:,.0f} | {memory / 1e6:,.0f} | {share:.1%}"
        lines.append(f"{head}| {sizes} | {1e3 * r['seconds']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--chips", nargs="*", default=list(MODES["forward"]))
    parser.add_argument("--anew", action="store_true", help="compile again what is known")
    arguments = parser.parse_args()
    # Choices of this program, not of what somebody has measured elsewhere.
    os.environ["VOXAX_AUTOTUNE"] = "off"
    kept = RESULTS / "tpu_ptv3_step.json"
    before = [] if arguments.anew else known(kept)
    done = {(r["chip"], r["mode"]) for r in before if r.get("code") == digest("step")}
    for mode in arguments.modes:
        for chip in MODES[mode]:
            if chip in arguments.chips and (chip, mode) not in done:
                new = {"chip": chip, "mode": mode, "code": digest("step")}
                target = "benchmarks.tpu.ptv3_step:step"
                new |= compiled(chip, target, training=mode == "training")
                keep(kept, new, ("mode",), "PTv3-base on TPUs", table_of)
    print(table_of(known(kept)))


if __name__ == "__main__":
    main()
