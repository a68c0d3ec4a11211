"""Measure the windows of real scans, and how much of the products with weights is useful.

    python benchmarks/tpu/windows.py --data FOLDER

For each scan at two voxel sizes: the 3x3x3 submanifold map, its tiles of 128 rows and nine columns.
A window is what `implicit_gemm/windows.py` finds, its start rounded down to a multiple of 64 rows.
Operations of the matrix units are those of the kernel's design, at 64 channels: every visit
multiplies 128 rows under each of 27 taps with the taps' weights; useful are the products of voxels
that are neighbors. Results go to results/tpu_windows.md and .json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu.scans import SCANS, cells, neighbors, points

WINDOW, CHANNELS, TAPS = 256, 64, 27


def row(name: str, size: float, positions: np.ndarray) -> dict[str, Any]:
    from voxax.geometry import KernelSpec
    from voxax.kernels.implicit_gemm.windows import WINDOW_TILE, columns_of, find_windows

    table = neighbors(cells(positions, size))
    columns = columns_of(KernelSpec.make(3, 3), TAPS)
    lengths = np.asarray(find_windows(table, columns)[1])
    visits = int(np.sum(np.max(-(-lengths // WINDOW), axis=1)))
    tiles = -(-len(table) // WINDOW_TILE)
    padded = np.pad(table, ((0, tiles * WINDOW_TILE - len(table)), (0, 0)), constant_values=-1)
    reached = (padded.reshape(tiles, WINDOW_TILE, TAPS) >= 0).any(1)
    held = lengths[lengths > 0]
    useful = 2 * int((table >= 0).sum()) * CHANNELS**2
    product = 2 * visits * TAPS * WINDOW_TILE * CHANNELS**2
    return {
        "scan": name,
        "voxel": size,
        "voxels": len(table),
        "neighbors": float((table >= 0).sum() / len(table)),
        "mean": float(held.mean()),
        "p99": float(np.percentile(held, 99)),
        "max": int(held.max()),
        "within": float((lengths.max(1) <= WINDOW).mean()),
        "visits": visits / tiles,
        "pairs": float(reached.mean()),
        "useful": useful,
        "product": product,
    }


def lines_of(rows: list[dict[str, Any]]) -> list[str]:
    cells = [
        [
            f"{r['scan']} {r['voxel']:.3g}",
            f"{r['voxels']:,}",
            f"{r['neighbors']:.1f}",
            f"{r['mean']:.0f}",
            f"{r['p99']:.0f}",
            r["max"],
            f"{100 * r['within']:.1f} %",
            f"{r['visits']:.3f}",
            f"{r['pairs']:.2f}",
            f"{r['useful'] / 1e9:.2f}",
            f"{r['product'] / r['useful']:.1f} x",
        ]
        for r in rows
    ]
    head = ["scan, voxel", "voxels", "neighbors", "mean window", "p99", "max", "tiles within 256"]
    head += ["visits a tile", "(tile, tap) not empty", "useful GFLOP", "weights, of useful"]
    title = ["# Windows of real scans", "", "See benchmarks/tpu/windows.py.", ""]
    return [*title, *report.table(head, cells)]


def main() -> None:
    parser = report.options(__doc__, data=True)
    parser.add_argument("--scans", nargs="*", default=list(SCANS), choices=list(SCANS))
    given = parser.parse_args()
    rows = []
    for name in given.scans:
        positions = points(given.data, name)
        rows += [row(name, size, positions) for size in SCANS[name][1]]
        print(*lines_of(rows)[-2:], sep="\n", flush=True)
    report.write(given.out, "tpu_windows", rows, lines_of(rows))


if __name__ == "__main__":
    main()
