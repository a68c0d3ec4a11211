"""Time the first call of a network with the tuner, and the calls after it.

    python benchmarks/first_call.py [--data FOLDER]

MinkUNet18 on a real LiDAR sweep, kernel maps planned ahead, in three processes one after the
other: with an empty tuning cache, with the cache that the first left behind, and with
``VOXAX_AUTOTUNE=off``. JAX's own compilation cache is off. Results go to results/first_call.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).parents[2] / "shared" / "data"
SCAN, VOXEL_SIZE, ROUNDS = "lidar_os0_128.npz", 0.15, 5


def one(folder: str, training: bool) -> dict[str, Any]:
    """In a process of its own: build, call, call again."""
    import jax
    import numpy as np
    from flax import nnx

    import voxax as vx
    from voxax import io
    from voxax.models import MinkUNet18
    from voxax.tuning import measure, record_choices

    positions = np.asarray(io.read(Path(folder) / SCAN).positions, np.float32)
    positions = positions[np.isfinite(positions).all(1)]
    ones = np.ones((len(positions), 4), np.float32)
    model = MinkUNet18(4, 20)
    model.eval()
    voxels = vx.plan(model, vx.voxelize(positions, ones, voxel_size=VOXEL_SIZE))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def forward(params: Any, rest: Any, voxels: Any) -> Any:
        return nnx.merge(graph, params, rest)(voxels).features

    def loss(params: Any, rest: Any, voxels: Any) -> Any:
        return (forward(params, rest, voxels) ** 2).sum()

    run = jax.jit(jax.grad(loss) if training else forward)
    times = []
    with record_choices() as choices:
        for _ in range(ROUNDS + 1):
            begin = time.perf_counter()
            jax.block_until_ready(run(params, rest, voxels))
            times.append(time.perf_counter() - begin)
    sources = [choice.source for choice in choices]
    return {
        "voxels": int(voxels.count),
        "first_call": times[0],
        "tuning": measure.spent(),
        "later_calls": statistics.median(times[1:]),
        "sources": {source: sources.count(source) for source in sorted(set(sources))},
    }


def in_own_process(folder: Path, training: bool, cache: str, mode: str) -> dict[str, Any]:
    script = (
        f"import json, first_call\nprint(json.dumps(first_call.one({str(folder)!r}, {training})))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
        env={
            **{k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"},
            "VOXAX_CACHE_DIR": cache,
            "VOXAX_AUTOTUNE": mode,
        },
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout.strip().splitlines()[-1])


def main() -> None:
    import jax

    from voxax.hardware import describe

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA", DATA))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    info = describe()
    lines = [
        "# The first call with the tuner",
        "",
        f"MinkUNet18 on {SCAN}, voxels of {VOXEL_SIZE} m, float32. {info.model}, {info.cpu_cores} "
        f"cores, JAX {jax.__version__}. Each line is a process of its own; later calls are the "
        f"median of {ROUNDS}.",
        "",
        "| | process | first call, s | of it measuring, s | later calls, ms | choices |",
        "|---|---|---:|---:|---:|---|",
    ]
    for training in (False, True):
        with tempfile.TemporaryDirectory() as cache:
            for name, mode in (("empty cache", "on"), ("cache", "on"), ("no tuning", "off")):
                r = in_own_process(Path(options.data).resolve(), training, cache, mode)
                sources = ", ".join(f"{n} {source}" for source, n in r["sources"].items())
                cells = (
                    "forward and backward" if training else "inference",
                    name,
                    f"{r['first_call']:.1f}",
                    f"{r['tuning']:.1f}",
                    f"{1e3 * r['later_calls']:.0f}",
                    sources,
                )
                lines.append(f"| {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "first_call.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
