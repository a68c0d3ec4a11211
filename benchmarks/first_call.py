"""Time the first call of a network with the tuner, and the calls after it; count the programs that
``vx.voxelize`` compiles.

    python benchmarks/first_call.py [--data FOLDER] [--fresh]

MinkUNet18 on a real LiDAR sweep, kernel maps planned ahead, in four processes one after another:
without a setting, with ``VOXAX_AUTOTUNE=off``, with ``on`` and an empty tuning cache, and with
``on`` and the cache that this left behind. Then 1,000 clouds of as many sizes are voxelized
eagerly. JAX's own compilation cache is off. Results go to results/first_call.md.

Each row is a process of a minute or two, whose result is kept in build/first_call: a run that was
stopped goes on with the next row. ``--fresh`` measures all rows anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMPILED = "/backend_compile_duration"
RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).parents[2] / "shared" / "data"
SCAN, VOXEL_SIZE, ROUNDS = "lidar_os0_128.npz", 0.15, 5
NUMBER, SMALLEST, LARGEST = 1000, 1000, 30_000  # clouds, and their numbers of points


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


KINDS = ("NumPy arrays", "JAX arrays", "`vx.Points`", "`vx.voxelize_on_host`")


def clouds(folder: str, kind: str, number: int = NUMBER) -> dict[str, Any]:
    """In a process of its own: voxelize parts of a sweep, each of another number of points."""
    import jax
    import numpy as np

    import voxax as vx
    from voxax import io

    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **more: compiled.append(event) if event.endswith(COMPILED) else None
    )
    positions = np.asarray(io.read(Path(folder) / SCAN).positions, np.float32)
    positions = positions[np.isfinite(positions).all(1)]
    sizes = np.linspace(SMALLEST, LARGEST, number).astype(int)
    rng = np.random.default_rng(0)
    kinds = {
        "NumPy arrays": lambda p, f: vx.voxelize(p, f, VOXEL_SIZE),
        "JAX arrays": lambda p, f: vx.voxelize(*map(jax.device_put, (p, f)), VOXEL_SIZE),
        "`vx.Points`": lambda p, f: vx.voxelize(vx.Points.make(p, f), voxel_size=VOXEL_SIZE),
        "`vx.voxelize_on_host`": lambda p, f: vx.voxelize_on_host(p, f, VOXEL_SIZE)[0],
    }
    voxelize, times = kinds[kind], []
    for size in rng.permutation(sizes):
        part, ones = positions[:size], np.ones((size, 4), np.float32)
        begin = time.perf_counter()
        jax.block_until_ready(voxelize(part, ones))
        times.append(time.perf_counter() - begin)
    figures = {"programs": len(compiled), "median": statistics.median(times)}
    return {"given": kind, **figures, "slowest": max(times)}


def in_own_process(call: str, cache: str, mode: str = "") -> Any:
    """The result of an expression, with the module's functions, in a process of its own."""
    script = f"import json\nfrom first_call import *\nprint(json.dumps({call}))"
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
        env={
            **{k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"},
            "VOXAX_CACHE_DIR": cache,
            "VOXAX_AUTOTUNE": mode,  # empty is unset
        },
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout.strip().splitlines()[-1])


def kept(path: Path, call: str, cache: Path, mode: str = "") -> Any:
    """The result of an expression, from a file if an earlier run left one."""
    if not path.exists():
        found = in_own_process(call, str(cache.resolve()), mode)
        path.with_suffix(".new").write_text(json.dumps(found))
        path.with_suffix(".new").replace(path)
    return json.loads(path.read_text())


def main() -> None:
    import jax

    from voxax.hardware import describe

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA", DATA))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--parts", type=Path, default=Path("build/first_call"))
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    parts: Path = options.parts
    if options.fresh:
        shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True, exist_ok=True)
    info, folder = describe(), str(Path(options.data).resolve())
    lines = [
        "# The first call with the tuner",
        "",
        f"MinkUNet18 on {SCAN}, voxels of {VOXEL_SIZE} m, float32. {info.model}, {info.cpu_cores} "
        f"cores, JAX {jax.__version__}. Each line is a process of its own; later calls are the "
        f"median of {ROUNDS}. Measuring includes the comparison of unmeasured choices with "
        "`explicit_gemm`.",
        "",
        "| | `VOXAX_AUTOTUNE` | first call, s | of it measuring, s | later calls, ms | choices |",
        "|---|---|---:|---:|---:|---|",
    ]
    for training in (False, True):
        for name, mode in (
            ("unset", ""),
            ("off", "off"),
            ("on, empty cache", "on"),
            ("on, cache", "on"),
        ):
            # What "on" leaves behind, the next row finds.
            cache = parts / f"cache_{training}{'_on' if mode == 'on' else f'_{name}'}"
            path = parts / f"{training}_{name.replace(', ', '_').replace(' ', '_')}.json"
            if name == "on, empty cache" and not path.exists():
                shutil.rmtree(cache, ignore_errors=True)
            r = kept(path, f"one({folder!r}, {training})", cache, mode)
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
    lines += [
        "",
        f"`vx.voxelize` outside `jax.jit`: parts of the same sweep, {NUMBER:,} numbers of points "
        f"from {SMALLEST:,} to {LARGEST:,}, in random order, each once.",
        "",
        "| given | programs compiled | median, ms | slowest, ms |",
        "|---|---:|---:|---:|",
    ]
    for number, kind in enumerate(KINDS):
        call = f"clouds({folder!r}, {kind!r})"
        r = kept(parts / f"clouds_{number}.json", call, parts / "cache_clouds")
        times = f"{1e3 * r['median']:.1f} | {1e3 * r['slowest']:.0f}"
        lines.append(f"| {r['given']} | {r['programs']} | {times} |")
        print(lines[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "first_call.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
