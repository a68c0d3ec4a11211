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
from benchmarks.gpu.lowered import PRODUCTS, module_of, problem_of  # noqa: E402
from benchmarks.gpu.resources import tile_of  # noqa: E402
from benchmarks.tpu.scans import neighbors as neighbors_of  # noqa: E402

from voxax import KernelSpec  # noqa: E402
from voxax.hardware import gpu_sheet  # noqa: E402
from voxax.kernels.implicit_gemm import tap_order  # noqa: E402

TARGET = "sm_90"
# (weights, dtype, channels). bfloat16 has the sizes and rates of float16; "tf32" is rounded
# float32.
CASES = (
    *(("dense", "float16", channels) for channels in (32, 64, 128, 256)),
    ("dense", "tf32", 64),
    ("dense", "float32", 64),
    ("grouped", "float16", 64),
    ("depthwise", "float16", 64),
)


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
    rows, (ins, outs) = values["fwd_block_size"], _sides(problem, values)
    groups, item = problem.layer.groups, np.dtype(problem.dtype).itemsize
    channels, places = problem.in_channels, table.shape[1]
    counts = np.asarray(tap_order.tiles_of(table, rows).counts)
    columns, parts = groups * -(-(channels // groups) // outs), values.get("split_k_factor", 1)
    in_blocks = 1 if problem.layer.kind == "depthwise" else -(-(channels // groups) // ins)
    steps = int(counts.sum()) * in_blocks * columns
    pairs = int((table[:-1] >= 0).sum())
    written = places * channels * (item if parts == 1 else 4) * parts
    # Of the table, the taps that a tile's list has, and where its rows go.
    listed = 4 * (int(counts.sum()) * rows + places)
    return Work(
        operations=2.0 * steps * rows * ins * outs,
        memory=places * channels * item + listed + math.prod(problem.weight_shape) * item + written,
        cache=(
            columns // groups * pairs * channels * item
            + steps * ins * outs * item
            + steps * rows * 4
            + columns * places * 4
            + written
        ),
        programs=len(counts) * columns * parts,
    )


def pairs_work(problem: Any, values: dict[str, Any], table: np.ndarray) -> Work:
    """Of wgrad, with the sum of its parts."""
    step, (ins, outs) = values["gemm_block_size"], _sides(problem, values)
    groups, item = problem.layer.groups, np.dtype(problem.dtype).itemsize
    channels, taps, parts = problem.in_channels, len(table) - 1, values["split_k_factor"]
    pairs = (table[:-1] >= 0).sum(1)
    total, own = int(pairs.sum()), channels // groups
    of_ins, of_outs = (1, -(-own // outs)) if ins == 1 else (-(-own // ins), -(-own // outs))
    blocks = groups * of_ins * of_outs
    sums = math.prod(problem.weight_shape) * 4 * parts
    return Work(
        operations=2.0 * int((-(-pairs // step)).sum()) * blocks * step * ins * outs,
        memory=2 * table.shape[1] * channels * item + total * 8 + sums,
        # Each operand is read once for each block of the other one's channels.
        cache=total * channels * item * (2 if ins == 1 else of_outs + of_ins)
        + total * 8 * blocks
        + 2 * sums,  # written, and read to be added
        programs=taps * blocks * parts,
    )


def _sides(problem: Any, values: dict[str, Any]) -> tuple[int, int]:
    """Channels of a step and of a program; depthwise each channel has its own."""
    if problem.layer.kind == "depthwise":
        return 1, values["channel_block"]
    return values["in_block"], values["out_block"]


def row_of(cloud: str, neighbors: np.ndarray, product: Any, case: Any) -> dict[str, Any]:
    """One row of the table, with the first candidate of a map of this size."""
    sheet, (kind, dtype, channels) = gpu_sheet(TARGET), case
    stored, precision = ("float32", "high") if dtype == "tf32" else (dtype, "highest")
    problem = problem_of(product, kind, stored, (channels, channels), precision).with_layer(
        in_capacity=len(neighbors), out_capacity=len(neighbors), symmetric=True
    )
    parameters = module_of(problem).space(problem, sheet.info)[0]
    values = dict(parameters)
    table = np.asarray(tap_order.sort_by_taps(neighbors, KernelSpec.make(3, 3)))
    work = (pairs_work if product == "wgrad" else tables_work)(problem, values, table)
    found = resources(kernel_of(problem, parameters, TARGET), TARGET)
    bandwidth, l2 = sheet.info.memory_bandwidth, sheet.l2_bandwidth
    half, single = (sheet.info.peak_rate(name) for name in ("float16", "float32"))
    assert bandwidth
    assert l2
    assert half
    assert single
    # Tensor cores take TF32 at half the rate of float16; depthwise products do not use them.
    peak = {"float16": half, "tf32": half / 2, "float32": single}[dtype]
    peak = single if kind == "depthwise" else peak
    times = {
        "operations": work.operations / peak,
        "memory": work.memory / bandwidth,
        "cache": work.cache / l2,
    }
    waves = work.programs / (found.programs_per_core * (sheet.info.cores or 1))
    limit = max(times, key=lambda name: times[name])
    pairs = int((table[:-1] >= 0).sum())
    useful = 2.0 * pairs * math.prod(problem.weight_shape[1:])
    least = max(useful / peak, times["memory"])
    return {
        "layer": f"{cloud} {kind} {dtype} C{channels}",
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
            neighbors = neighbors_of(file["coords"][:, 1:])
        for case in CASES:
            for product in PRODUCTS:
                rows.append(row_of(path.stem, neighbors, product, case))
                print(rows[-1], flush=True)
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [f"| {' | '.join(str(row[name]) for name in names)} |" for row in rows]
    head = (
        "# Estimate for an H100\n\n"
        "`benchmarks/gpu/estimate.py`: from the data sheet's rates, nothing was measured. 3x3x3\n"
        "submanifold layers, the first candidate, without the launch; grouped: two groups. The\n"
        "estimate is the largest of three times, lengthened by the last wave of programs that is\n"
        "not full. wgrad: with the sum of its parts.\n\n"
        "**It is 1.5 to 2.1 times too fast** where an H100 measured, forward on the LiDAR cloud\n"
        "with earlier kernels: 24 us with 64 channels (13 estimated), 59 us with 128 (29), 161 us\n"
        "with 256 (109).\n\n"
    )
    (options.out / "gpu_estimate.md").write_text(head + "\n".join(lines) + "\n")
    (options.out / "gpu_estimate.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
