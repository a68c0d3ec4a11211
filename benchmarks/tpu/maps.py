"""Predict kernel maps on TPUs, by comparing tiles and by binary search.

    python benchmarks/tpu/maps.py --data FOLDER

The table of neighbors of two real scans at 5 cm: 3x3x3 submanifold taps, and 2x2x2 taps of stride
2 from the coarse voxels, between rows that are in canonical order already. By tiles, as TPUs find
them (voxax.coords.tile_lookup), with the further windows that the scan's tiles need; and by binary
search, row by row and column by column. Milliseconds by the TPU compiler's schedules
(voxax.predict), on one core. Loops of XLA's kernels whose length is known at run time only count
once: by tiles such times are marked with ≥, and every search takes more than it says. On the larger
scan most of its loops are such, and it is left out. Nothing runs. Needs libtpu. Results go to
results/tpu_maps.md and .json; a run goes on where another was stopped, and takes again what was
made of other searches.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu.counted import CHIPS, Kept, Row, options
from benchmarks.tpu.program import digest
from benchmarks.tpu.scans import cells, points

from voxax.coords.tile_lookup import TILE, VISITS, WIDEST_TILE, WINDOW
from voxax.errors import VoxaxError
from voxax.predict import outcomes

SCANS, VOXEL = ("semantickitti", "lone_star"), 0.05
# Ways to find neighbors, and whether their centers are said to be in order.
WAYS = {"semantickitti": {"tiles": True, "search": False}, "lone_star": {"tiles": True}}
# Kernel size, stride, and its offsets along each axis.
RELATIONS = {"3x3x3 submanifold": (3, 1, (-1, 0, 1)), "2x2x2, stride 2": (2, 2, (0, 1))}


def search(kernel_size: int, stride: int, rows: int, centers: int, ordered: bool) -> Any:
    """Return the program to compile: the table of neighbors, ``int32[centers, K]``."""
    import jax
    import jax.numpy as jnp

    from voxax.coords import find_neighbors, is_valid
    from voxax.geometry import KernelSpec

    spec = KernelSpec.make(3, kernel_size, stride)
    scale = jnp.asarray([1, *spec.stride], jnp.int32)[None]

    def table(source: jax.Array, centers: jax.Array) -> jax.Array:
        valid = is_valid(centers)
        return find_neighbors(source, centers * scale, valid, spec.dilated_offsets, ordered)

    return table, *(jax.ShapeDtypeStruct((number, 4), "int32") for number in (rows, centers))


def further(rows: np.ndarray, centers: np.ndarray, offsets: tuple[int, ...]) -> np.ndarray:
    """``int[columns, tiles]``: windows that a tile is compared with one by one: those behind the
    first, and the first too of a tile whose keys do not tell its rows apart.
    """

    def keys(cells: np.ndarray) -> np.ndarray:
        x, y, z = (cells - low + 1).T
        return (x * sides[1] + y) * sides[2] + z

    low, sides = rows.min(0), np.ptp(rows, axis=0) + 3
    heads = keys(rows)[::TILE]
    first = centers[::TILE]
    last = centers[np.minimum(np.arange(len(first)) * TILE + TILE - 1, len(centers) - 1)]
    apart = np.abs(last - first) + np.asarray([0, 0, len(offsets) - 1])
    spans = apart @ [sides[1] * sides[2], sides[2], 1]
    wide, found = spans >= WIDEST_TILE, []
    for line in itertools.product(offsets, repeat=2):
        least, most = (np.asarray([*line, offsets[side]]) for side in (0, -1))
        begin = np.searchsorted(heads, keys(first + least), "right") - 1
        end = np.searchsorted(heads, keys(last + most), "right")
        blocks = np.maximum(end - np.maximum(begin, 0), 0)
        found.append(np.maximum(-(-blocks * TILE // WINDOW) - 1, 0) + wide * (blocks > 0))
    return np.stack(found)


def measure(name: str, chip: str, scan: np.ndarray) -> list[dict[str, Any]]:
    asked, rows = [], []
    for relation, (size, stride, offsets) in RELATIONS.items():
        coarse = scan if stride == 1 else np.unique(scan // stride, axis=0)
        more = further(scan, coarse * stride, offsets)
        # Of the loop over further windows, of all columns.
        passes = float(-(-more.sum() // VISITS))
        row = {"scan": name, "voxels": len(scan), "map": relation, "chip": chip}
        row["code"] = digest("maps")
        rows.append(row | {"windows": 1 + float(more.mean()), "passes": passes})
        sizes = {"kernel_size": size, "stride": stride, "rows": len(scan), "centers": len(coarse)}
        asked += [
            (chip, "benchmarks.tpu.maps:search", {**sizes, "ordered": ordered})
            for ordered in WAYS[name].values()
        ]
    programs = iter(outcomes(asked))
    for row in rows:
        for way in WAYS[name]:
            program, number = next(programs), row["passes"] if way == "tiles" else 1
            if isinstance(program, VoxaxError):
                row[f"{way}_error"] = str(program)[:600]
                continue
            row |= {way: program.seconds(number, at_least=True)}
            row |= {f"{way}_open": len(program.open(number))}
            row |= {f"{way}_temporary": program.temporary}
    return rows


def lines_of(rows: list[Row]) -> list[str]:
    lines = []
    for r in rows:
        older = "" if r.get("code") == digest("maps") else ", of an older search"
        cells = [f"{r['scan']}, {r['voxels']:,}", r["map"], f"{r['windows']:.2f}"]
        cells.append(f"{r['chip']}{older}")
        for way in ("tiles", "search"):
            least = "≥ " if r.get(f"{way}_open") else ""
            cells.append(f"{least}{1e3 * r[way]:.2f}" if way in r else "-")
        both = {"tiles", "search"} <= set(r) and not r["tiles_open"]
        cells.append(f"{r['search'] / r['tiles']:.0f}" if both else "-")
        for key in ("tiles_temporary", "search_temporary"):
            cells.append(f"{r[key] / 1e6:.0f}" if key in r else "-")
        lines.append(cells)
    head = ["scan, voxels", "map", "windows a tile", "chip", "by tiles, ms"]
    head += ["by search, ms at least", "search / tiles, at least", "temporary, MB", "of the search"]
    return ["# Kernel maps on TPUs, predicted", "", *report.table(head, lines, (0, 1, 3))]


def main() -> None:
    given = options(__doc__, data=True).parse_args()
    order = {"scan": SCANS, "map": list(RELATIONS), "chip": CHIPS}
    kept = Kept(given.out, "tpu_maps", tuple(order), order, lines_of)
    for name in SCANS:
        scan = cells(points(given.data, name), VOXEL)
        for chip in given.chips:
            done = kept.done(("scan", "chip"), lambda row: digest("maps"))
            if given.anew or (name, chip) not in done:
                kept.add(measure(name, chip, scan))
    kept.show()


if __name__ == "__main__":
    main()
