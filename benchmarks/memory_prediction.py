"""Compare predictions of `vx.fits` with the peak memory of a process on a CPU.

    python benchmarks/memory_prediction.py [--sizes 6]

Each size runs in a process of its own: it asks `vx.fits`, then compiles and runs the model the
usual way, then reads the largest resident memory the system saw. A second part asks for the
largest capacity within a budget, runs at that capacity, and asks about twice as much.
Results go to results/memory_prediction.json and .md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from own_process import in_own_process

RESULTS = Path(__file__).parent / "results"

# width of MinkUNet14, voxels, training
SIZES = (
    (0.25, 10_000, True),
    (0.5, 20_000, False),
    (0.5, 40_000, True),
    (1.0, 20_000, True),
    (1.0, 100_000, False),
    (1.5, 40_000, False),
)
BUDGET = 600 << 20


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


def suggestion(width: float, count: int) -> dict[str, Any]:
    """The largest capacity within the budget, the memory its run takes, and a refusal."""
    import jax

    import voxax as vx
    from voxax.hardware import peak_memory, process_memory
    from voxax.models import MinkUNet14
    from voxax.predict import MemoryLimitError

    model = MinkUNet14(1, 8, width=width)
    model.eval()
    report = vx.fits(model, cloud(count), available=BUDGET, margin=0.0)
    capacity = report.suggested_capacity
    assert capacity is not None

    def at(rows: int) -> Any:
        made = cloud(rows // 2)
        coords, features = made.valid_coords()[:rows], made.valid_features()[:rows]
        return vx.Voxels.from_coords(coords, features, batch_size=1, capacity=rows)

    message = ""
    try:
        vx.fits(model, at(2 * capacity), available=BUDGET, margin=0.0).raise_if_not()
    except MemoryLimitError as error:
        message = str(error)
    voxels = at(capacity)
    run = jax.jit(lambda v: model(v).features).lower(voxels).compile()
    before = process_memory() or 0
    jax.block_until_ready(run(voxels))
    return {
        "asked_capacity": report.capacity,
        "suggested_capacity": capacity,
        "budget_bytes": BUDGET,
        "programs": report.programs,
        "peak_bytes": peak_memory()["host"],
        "before_run_bytes": before,
        "after_run_bytes": process_memory(),
        "refusal_of_twice": message,
    }


def to_markdown(result: dict[str, Any]) -> str:
    lines = [
        "# Predicted and measured peak memory",
        "",
        f"MinkUNet14, one process for each line. {result['device']}, JAX {result['jax']}.",
        "The prediction is `vx.fits(...).peak_bytes`; the measurement is the largest resident",
        "memory of the process, read after three runs of a program that was compiled anew.",
        "",
        "| width | voxels | | compiler's figure, MiB | predicted, MiB | measured, MiB | error |",
        "|---:|---:|---|---:|---:|---:|---:|",
    ]
    for run in result["runs"]:
        mib = [run[f"{k}_bytes"] / 2**20 for k in ("program", "predicted", "measured")]
        kind = "training" if run["training"] else "evaluation"
        cells = " | ".join(f"{m:,.0f}" for m in mib)
        lines.append(
            f"| {run['width']} | {run['voxels']:,} | {kind} | {cells} | {run['error']:+.1%} |"
        )
    s = result["suggestion"]
    grown = (s["peak_bytes"] - s["before_run_bytes"]) / 2**20
    lines += [
        "",
        f"Within a budget of {s['budget_bytes'] / 2**20:.0f} MiB, asked about capacity "
        f"{s['asked_capacity']:,}, `vx.fits` suggests capacity {s['suggested_capacity']:,} after "
        f"compiling {s['programs']} programs. A run at that capacity adds {grown:.0f} MiB to the "
        "process. Twice the capacity is refused:",
        "",
        f"> {s['refusal_of_twice']}",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, default=len(SIZES))
    sizes = SIZES[: parser.parse_args().sizes]
    runs = []
    for size in sizes:
        runs.append(in_own_process("memory_prediction", "one", *size))
        print(json.dumps(runs[-1]), flush=True)
    write(runs, in_own_process("memory_prediction", "suggestion", 0.5, 100_000))


def write(runs: list[dict[str, Any]], suggested: dict[str, Any]) -> None:
    import jax

    from voxax.hardware import describe

    info = describe()
    device = f"{info.model}, {info.cpu_cores} cores"
    result = {"device": device, "jax": jax.__version__, "runs": runs, "suggestion": suggested}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "memory_prediction.json").write_text(json.dumps(result, indent=2) + "\n")
    (RESULTS / "memory_prediction.md").write_text(to_markdown(result))


if __name__ == "__main__":
    main()
