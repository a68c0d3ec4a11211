"""Compare predictions of `vx.fits` with the peak memory of a process on a CPU.

    python benchmarks/memory_prediction.py

Each size runs in a process of its own: it asks `vx.fits`, then compiles and runs the model the
usual way, then reads the largest resident memory the system saw.
Results go to results/memory_prediction.json and .md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.own_process import in_own_process

# width of MinkUNet14, voxels, training
SIZES = (
    (0.25, 10_000, True),
    (0.5, 20_000, False),
    (0.5, 40_000, True),
    (1.0, 20_000, True),
    (1.0, 100_000, False),
    (1.5, 40_000, False),
)


def cloud(count: int) -> Any:
    """A wavy surface of about ``count`` voxels."""
    import numpy as np

    import voxax as vx

    rng = np.random.default_rng(0)
    side = 0.25 * count**0.5
    points = rng.uniform(0, side, (4 * count, 3)).astype(np.float32)
    points[:, 2] = np.sin(points[:, 0])
    return vx.voxelize(points, voxel_size=0.25)


def one(width: float, count: int, training: bool) -> dict[str, Any]:
    import jax
    import numpy as np
    import optax

    import voxax as vx
    from voxax.hardware import peak_memory
    from voxax.models import MinkUNet14
    from voxax.models.training import Trainer

    voxels = cloud(count)
    model = MinkUNet14(voxels.num_channels, 8, width=width)
    optimizer = optax.adamw(1e-3)
    options = {"training": True, "optimizer": optimizer} if training else {}
    report = vx.fits(model, voxels, **options)
    # Parameters are arguments of the trainer's programs. A jitted closure over the model would
    # keep copies of them inside the program, which no figure of the compiler shows.
    trainer = Trainer(model, optimizer if training else optax.identity())
    if training:
        labels = np.zeros(voxels.capacity, np.int32)
        for _ in range(3):
            loss, prediction, _ = trainer.step(voxels, labels)
            jax.block_until_ready((loss, prediction))
    else:
        for _ in range(3):
            trainer.logits(voxels)
    measured = peak_memory()["host"]
    return {
        "width": width,
        "voxels": int(voxels.count),
        "capacity": voxels.capacity,
        "training": training,
        "program_bytes": report.program_bytes,
        "baseline_bytes": report.baseline_bytes,
        "predicted_bytes": report.peak_bytes,
        "measured_bytes": measured,
        "error": report.peak_bytes / measured - 1,
    }


def lines_of(values: dict[str, Any]) -> list[str]:
    rows = []
    for run in values["runs"]:
        mib = [f"{run[f'{k}_bytes'] / 2**20:,.0f}" for k in ("program", "predicted", "measured")]
        kind = "training" if run["training"] else "evaluation"
        rows.append([run["width"], f"{run['voxels']:,}", kind, *mib, f"{run['error']:+.1%}"])
    head = ["width", "voxels", "", "compiler's figure, MiB", "predicted, MiB", "measured, MiB"]
    return [
        "# Predicted and measured peak memory",
        "",
        f"MinkUNet14, one process for each line. {values['device']}, JAX {values['jax']}.",
        "The prediction is `vx.fits(...).peak_bytes`; the measurement is the largest resident",
        "memory of the process, read after three runs of a program that was compiled anew.",
        "",
        *report.table([*head, "error"], rows),
    ]


def main() -> None:
    options = report.options(__doc__).parse_args()
    runs = []
    for size in SIZES:
        runs.append(in_own_process("memory_prediction", "one", *size))
        print(json.dumps(runs[-1]), flush=True)
    values = {**report.machine(), "runs": runs}
    report.write(options.out, "memory_prediction", values, lines_of(values))


if __name__ == "__main__":
    main()
