"""Calculate how fast SparseCores have to gather to be faster than the window kernels.

    python benchmarks/tpu/sparse_core.py --data FOLDER

A 3x3x3 submanifold layer of 64 channels in bfloat16 on two real scans at 5 cm, forward and wgrad
(dgrad is forward over the reversed taps). How many rows a second SparseCores gather no listing and
no table says. So this takes from what the window kernels' whole program takes what the other
program takes without its gathers: in what is left SparseCores would have to copy all neighbours'
rows and to write all rows, zeros of missing neighbours among them. Both times are predicted from
the TPU compiler's schedules (voxax.predict, as benchmarks/tpu/layers.py); the product waits for
the block's gather, nothing of it is hidden. Of the sizes of blocks the better one is taken.
Nothing runs. Needs libtpu.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks.tpu import program
from benchmarks.tpu.layers import CHANNELS, METHODS, SCANS, VOXEL, predicted
from benchmarks.tpu.program import BY_CHIP, facts, make_problem
from benchmarks.tpu.scans import cells, neighbors, points

from voxax.algorithms.explicit_gemm import sparse_core
from voxax.errors import VoxaxError
from voxax.predict import CompiledProgram, outcomes

CHIPS = ("v5p", "v6e", "7x")
PRODUCTS = ("forward", "wgrad")


def product(chip, product="forward", dtype="bfloat16", block=0, **options):
    """Return the program for ``voxax.predict``, with one of the sizes of blocks for a chip."""
    problem = make_problem(product, dtype, **options)
    return operands(problem, sparse_core.space(problem, facts(BY_CHIP[chip]))[block])


def operands(problem, parameters):
    """``explicit_gemm`` as a function of arrays, and their shapes."""
    return program.operands(problem, parameters, sparse_core.SPARSE_CORE)


def without_gathers(compiled: CompiledProgram) -> float:
    """Seconds of everything that is not on SparseCores, one after the other."""
    kernels = tuple(k for k in compiled.kernels if not k.kind.startswith("call"))
    return dataclasses.replace(compiled, kernels=kernels, copies=()).seconds()


def gathered_bytes(table: np.ndarray) -> tuple[int, int]:
    """Read and written by the gathers of one product."""
    layout = sparse_core.layout_of(CHANNELS, "bfloat16")
    read = int((table >= 0).sum()) * layout.words * 4
    return read, len(table) * layout.groups(table.shape[1]) * 512


def rows_of(scan: str, table: np.ndarray, chip: str) -> list[str]:
    """A line of the table for each product."""
    sizes = {"rows": len(table)}
    problem = make_problem("forward", "bfloat16", **sizes)
    blocks = range(len(sparse_core.space(problem, facts(BY_CHIP[chip]))))
    target = "benchmarks.tpu.sparse_core:product"
    asked: list[Any] = [(chip, METHODS["windows"], {"product": p, **sizes}) for p in PRODUCTS]
    asked += [(chip, target, {"product": p, "block": b, **sizes}) for p in PRODUCTS for b in blocks]
    found = list(outcomes(asked))
    for outcome in found:
        if isinstance(outcome, VoxaxError):
            raise outcome
    lines = []
    for at, name in enumerate(PRODUCTS):
        windows = predicted(found[at], "windows", table)["seconds"]
        first = len(PRODUCTS) + at * len(blocks)
        others = found[first : first + len(blocks)]
        best = min(others, key=without_gathers)
        rest = without_gathers(best)
        read, written = gathered_bytes(table)
        bandwidth = best.chip.device_bandwidth
        least = (read + written) / bandwidth
        start = f"| {scan} | {chip} | {name} | {1e3 * windows:.2f} | {1e3 * rest:.2f} "
        start += f"| {read / 1e6:,.0f} + {written / 1e6:,.0f} | {1e3 * least:.2f} "
        left = windows - rest
        if left <= 0:
            lines.append(f"{start}| none | at no rate | |")
            continue
        rate, moved = int((table >= 0).sum()) / left, (read + written) / left
        lines.append(f"{start}| {1e3 * left:.2f} | {rate / 1e9:.2f} | {moved / bandwidth:.0%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the scans")
    parser.add_argument("--chips", nargs="*", default=list(CHIPS), choices=list(CHIPS))
    parser.add_argument("--scans", nargs="*", default=list(SCANS), choices=list(SCANS))
    arguments = parser.parse_args()
    names = "scan", "chip", "product", "window kernels, ms", "without gathers, ms"
    names += "gathers: MB read + written", "at the bandwidth, ms", "left for gathers, ms"
    names += "break-even, 10^9 rows a second", "of the bandwidth"
    print(f"| {' | '.join(names)} |\n|---|---|---|{'---:|' * 7}")
    for scan in arguments.scans:
        table = neighbors(cells(points(arguments.data, scan), VOXEL))
        for chip in arguments.chips:
            print("\n".join(rows_of(scan, table, chip)), flush=True)


if __name__ == "__main__":
    main()
