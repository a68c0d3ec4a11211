"""What a layer should take on an H100, from its data sheet: bytes, operations, programs and waves.

    pip install "voxax[triton]"
    JAX_PLATFORMS=cpu python benchmarks/gpu/estimate.py lidar.npz indoor.npz

The clouds are files of ``--clouds`` of ``run.py``. Kernels are compiled, for registers and shared
memory, and not run. Writes ``benchmarks/results/gpu_estimate.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from benchmarks.gpu.compiled import kernel_of, resources  # noqa: E402
from benchmarks.gpu.lowered import PRODUCTS, problem_of  # noqa: E402
from benchmarks.gpu.resources import tile_of  # noqa: E402

from voxax.algorithms.implicit_gemm import gpu, tap_order  # noqa: E402
from voxax.hardware import gpu_sheet  # noqa: E402

TARGET = "sm_90"
CHANNELS = (32, 64, 128, 256)
ITEM = 2  # float16


@dataclasses.dataclass(frozen=True)
class Work:
    """What a kernel moves and multiplies.

    Attributes:
      operations: that are carried out, those with masked rows among them.
      memory: bytes between the device and its memory, if the cache holds what is read again.
      cache: bytes between the second-level cache and the cores.
      programs: their number.
    """

    operations: float
    memory: float
    cache: float
    programs: int


def tables_work(problem: Any, values: dict[str, Any], table: np.ndarray) -> Work:
    """Of forward and dgrad, whose sides have as many channels."""
    rows, ins, outs = values["fwd_block_size"], values["in_block"], values["out_block"]
    channels, places = problem.in_channels, table.shape[1]
    counts = np.asarray(tap_order.tiles_of(table, rows).counts)
    columns, parts = -(-channels // outs), values.get("split_k_factor", 1)
    steps = int(counts.sum()) * -(-channels // ins) * columns
    pairs = int((table[:-1] >= 0).sum())
    features, written = places * channels * ITEM, places * channels * (ITEM if parts == 1 else 4)
    weights = math.prod(problem.weight_shape) * ITEM
    return Work(
        operations=2.0 * steps * rows * ins * outs,
        memory=features + table.size * 4 + weights + written * parts,
        cache=(
            columns * pairs * channels * ITEM
            + steps * ins * outs * ITEM
            + steps * rows * 4
            + written * parts
        ),
        programs=len(counts) * columns * parts,
    )


def pairs_work(problem: Any, values: dict[str, Any], table: np.ndarray) -> Work:
    """Of wgrad."""
    step, ins, outs = values["gemm_block_size"], values["in_block"], values["out_block"]
    channels, taps, parts = problem.in_channels, len(table) - 1, values["split_k_factor"]
    pairs = (table[:-1] >= 0).sum(1)
    blocks = -(-channels // ins), -(-channels // outs)
    steps = int((-(-pairs // step)).sum()) * blocks[0] * blocks[1]
    sums = math.prod(problem.weight_shape) * 4 * parts
    read = int(pairs.sum()) * channels * ITEM * (blocks[1] + blocks[0])
    return Work(
        operations=2.0 * steps * step * ins * outs,
        memory=2 * table.shape[1] * channels * ITEM + int(pairs.sum()) * 8 + sums,
        cache=read + int(pairs.sum()) * 8 * blocks[0] * blocks[1] + sums,
        programs=taps * blocks[0] * blocks[1] * parts,
    )


def row_of(cloud: str, neighbors: np.ndarray, product: Any, channels: int) -> dict[str, Any]:
    """One row of the table, with the first candidate of a map of this size."""
    sheet = gpu_sheet(TARGET)
    problem = problem_of(product, "dense", "float16", (channels, channels)).with_layer(
        in_capacity=len(neighbors), out_capacity=len(neighbors), symmetric=True
    )
    parameters = gpu.space(problem, sheet.info)[0]
    values = dict(parameters)
    table = np.asarray(tap_order.sort_by_taps(neighbors))
    work = (pairs_work if product == "wgrad" else tables_work)(problem, values, table)
    found = resources(kernel_of(problem, parameters, TARGET), TARGET)
    peak, bandwidth = sheet.info.peak_rate("float16"), sheet.info.memory_bandwidth
    assert peak
    assert bandwidth
    assert sheet.l2_bandwidth
    times = {
        "operations": work.operations / peak,
        "memory": work.memory / bandwidth,
        "cache": work.cache / sheet.l2_bandwidth,
    }
    waves = work.programs / (found.programs_per_core * (sheet.info.cores or 1))
    limit = max(times, key=lambda name: times[name])
    useful = 2.0 * int((table[:-1] >= 0).sum()) * channels**2
    least = max(useful / peak, times["memory"])
    return {
        "layer": f"{cloud} C{channels}",
        "product": product,
        "tile": tile_of(values) + f", {values.get('split_k_factor', 1)} parts",
        "GFLOP, useful": round(useful / 1e9, 2),
        "GFLOP, done": round(work.operations / 1e9, 2),
        "memory, MB": round(work.memory / 1e6, 1),
        "cache, MB": round(work.cache / 1e6, 1),
        "programs": work.programs,
        "programs a core": found.programs_per_core,
        "waves": round(waves, 2),
        "operations, us": round(1e6 * times["operations"], 1),
        "memory, us": round(1e6 * times["memory"], 1),
        "cache, us": round(1e6 * times["cache"], 1),
        "estimate, us": round(1e6 * times[limit] * math.ceil(waves) / waves, 1),
        "limit": limit,
        "over the lower bound": round(times[limit] * math.ceil(waves) / waves / least, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clouds", type=Path, nargs="+", help="files of --clouds of run.py")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    rows = []
    for path in options.clouds:
        with np.load(path) as file:
            neighbors = file["neighbors"]
        for channels in CHANNELS:
            for product in PRODUCTS:
                rows.append(row_of(path.stem, neighbors, product, channels))
                print(rows[-1], flush=True)
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [f"| {' | '.join(str(row[name]) for name in names)} |" for row in rows]
    head = (
        "# Estimate for an H100\n\n"
        "`benchmarks/gpu/estimate.py`: from the data sheet's rates, nothing was measured. 3x3x3\n"
        "submanifold layers, float16, the first candidate, without the launch. The estimate is\n"
        "the largest of three times, lengthened by the last wave of programs that is not full.\n\n"
    )
    (options.out / "gpu_estimate.md").write_text(head + "\n".join(lines) + "\n")
    (options.out / "gpu_estimate.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
