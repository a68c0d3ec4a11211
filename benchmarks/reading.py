"""Measure how long reading large scans takes, and how much memory, beside the bare libraries.

    python benchmarks/reading.py --points 50000000 --folder FOLDER

Writes one file of each format into the folder, and removes it when it was measured. Each read is a
process of its own, the two sides in turn: `voxax.io.read`, and the usual library to the same
arrays, positions as float64 [N, 3] and one array for each attribute. The file is in the page cache.
Time is the median of the rounds, of the clock and of all processors. Memory is what the process
grew by at its peak, pages of a mapped file included, and beside it what the arrays take. Linux.
Results go to results/reading.md and .json.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.own_process import in_own_process, peak_added_by

Arrays = dict[str, np.ndarray]


def made(points: int) -> np.ndarray:
    """Return rows of x, y, z and intensity, float32."""
    rows = np.random.default_rng(0).uniform(-100, 100, (points, 4)).astype(np.float32)
    rows[:, 3] = np.floor(np.abs(rows[:, 3]))
    return rows


def bare_bin(path: Path) -> Arrays:
    return split(np.fromfile(path, np.float32).reshape(-1, 4))


def split(rows: np.ndarray) -> Arrays:
    return {"positions": rows[:, :3].astype(np.float64), "intensity": rows[:, 3].copy()}


def bare_npy(path: Path) -> Arrays:
    return split(np.load(path))


def write_npz(path: Path, rows: np.ndarray) -> None:
    np.savez(path, xyz=rows[:, :3], intensity=rows[:, 3], label=np.zeros(len(rows), np.int32))


def bare_npz(path: Path) -> Arrays:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return arrays | {"xyz": arrays["xyz"].astype(np.float64)}


def write_ply(path: Path, rows: np.ndarray) -> None:
    import plyfile

    kinds = [(name, "<f4") for name in ("x", "y", "z", "intensity")]
    table = np.zeros(len(rows), kinds + [(name, "u1") for name in ("red", "green", "blue")])
    for axis, (name, _) in enumerate(kinds):
        table[name] = rows[:, axis]
    table["red"] = rows[:, 3]
    plyfile.PlyData([plyfile.PlyElement.describe(table, "vertex")]).write(str(path))


def bare_ply(path: Path) -> Arrays:
    import plyfile

    return stacked(plyfile.PlyData.read(str(path))["vertex"].data)


def stacked(table: np.ndarray) -> Arrays:
    positions = np.stack([table[name] for name in "xyz"], axis=1, dtype=np.float64)
    arrays = {"positions": positions, "intensity": table["intensity"].copy()}
    if "red" in (table.dtype.names or ()):
        arrays["rgb"] = np.stack([table[name] for name in ("red", "green", "blue")], axis=1)
    return arrays


def write_pcd(path: Path, rows: np.ndarray) -> None:
    header = (
        "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z intensity\nSIZE 4 4 4 4\nTYPE F F F F\n"
        f"COUNT 1 1 1 1\nWIDTH {len(rows)}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\n"
        f"POINTS {len(rows)}\nDATA binary\n"
    )
    path.write_bytes(header.encode() + rows.tobytes())


def bare_pcd(path: Path) -> Arrays:
    from pypcd4.pypcd4 import PointCloud

    return stacked(PointCloud.from_path(path).pc_data)


def write_las(path: Path, rows: np.ndarray) -> None:
    import laspy

    data = laspy.create(point_format=3, file_version="1.2")
    data.header.scales = np.full(3, 0.001)
    data.x, data.y, data.z = rows[:, :3].T.astype(np.float64)
    data.intensity = data.red = rows[:, 3].astype(np.uint16)
    data.classification = rows[:, 3].astype(np.uint8) % 7
    data.gps_time = np.arange(len(rows)) / 1000
    data.write(str(path))


def bare_las(path: Path) -> Arrays:
    import laspy

    names = ("intensity", "return_number", "number_of_returns", "gps_time", "classification")
    names += ("user_data", "point_source_id", "scan_angle_rank")
    data = laspy.read(path)
    arrays = {name: np.array(data[name]) for name in names}
    rgb = np.stack([data[name] for name in ("red", "green", "blue")], axis=1)
    return arrays | {"xyz": data.xyz, "rgb": rgb.astype(np.uint8)}


def write_txt(path: Path, rows: np.ndarray) -> None:
    np.savetxt(path, rows, "%.3f %.3f %.3f %d")


def bare_txt(path: Path) -> Arrays:
    return split(np.loadtxt(path))


# Text is 20 times as slow to read as anything else: a tenth of the points.
FORMATS: dict[str, tuple[Any, Any, int]] = {
    "bin": (lambda path, rows: rows.tofile(path), bare_bin, 1),
    "npy": (np.save, bare_npy, 1),
    "npz": (write_npz, bare_npz, 1),
    "pcd": (write_pcd, bare_pcd, 1),
    "ply": (write_ply, bare_ply, 1),
    "las": (write_las, bare_las, 1),
    "laz": (write_las, bare_las, 1),
    "txt": (write_txt, bare_txt, 10),
}


def one(path: str, side: str) -> dict[str, Any]:
    """One read of a file, in a process of its own."""
    from voxax.io import read

    bare = FORMATS[Path(path).suffix[1:]][1]
    # The four columns of a .bin are given: the test of its columns is no part of reading.
    options: dict[str, Any] = {"columns": 4} if path.endswith(".bin") else {}
    call = {"voxax": lambda: read(path, **options), "bare": lambda: bare(Path(path))}[side]
    seconds, sizes = [], []

    def timed() -> int:
        start = time.perf_counter(), time.process_time()
        result = call()
        seconds.extend([time.perf_counter() - start[0], time.process_time() - start[1]])
        arrays = vars(result) if side == "voxax" else result
        arrays = {**arrays, **arrays.get("attributes", {})}
        sizes.append(sum(a.nbytes for a in arrays.values() if isinstance(a, np.ndarray)))
        return 0

    peak = peak_added_by(timed)
    return {"seconds": seconds[0], "cpu": seconds[1], "peak": peak, "arrays": sizes[0]}


def measure(name: str, points: int, folder: Path, rounds: int) -> dict[str, Any]:
    write, _, fewer = FORMATS[name]
    path = folder / f"scan.{name}"
    write(path, made(points // fewer))
    found: dict[str, list[dict[str, Any]]] = {"bare": [], "voxax": []}
    try:
        for number in range(rounds):
            for side in ("bare", "voxax") if number % 2 == 0 else ("voxax", "bare"):
                found[side].append(in_own_process("reading", "one", str(path), side))
        size = path.stat().st_size
    finally:
        path.unlink()
    row: dict[str, Any] = {"format": name, "points": points // fewer, "bytes": size}
    for side, runs in found.items():
        for clock in ("seconds", "cpu"):
            row[f"{side}_{clock}"] = statistics.median(run[clock] for run in runs)
        row[f"{side}_peak"] = max(run["peak"] for run in runs)
        row[f"{side}_arrays"] = runs[0]["arrays"]
    return row


def lines_of(values: dict[str, Any]) -> list[str]:
    rows = []
    for row in values["rows"]:
        cells = [row["format"], f"{row['points'] / 1e6:g}", f"{row['bytes'] / 2**20:.0f}"]
        for side in ("bare", "voxax"):
            cells.append(f"{row[f'{side}_seconds']:.2f} ({row[f'{side}_cpu']:.2f})")
        ratios = [row[f"voxax_{clock}"] / row[f"bare_{clock}"] for clock in ("seconds", "cpu")]
        cells.append(f"{ratios[0]:.2f} ({ratios[1]:.2f})")
        for side in ("bare", "voxax"):
            mib = [row[f"{side}_{what}"] / 2**20 for what in ("peak", "arrays")]
            cells.append(f"{mib[0]:.0f} ({mib[1]:.0f})")
        rows.append([*cells, f"{row['voxax_peak'] / row['bare_peak']:.2f}"])
    head = ["format", "million points", "file", "bare, s", "voxax, s", "ratio", "bare memory"]
    return [
        "# Reading large scans",
        "",
        f"{values['device']}, Python {values['python']}, NumPy {values['numpy']}; "
        f"{values['rounds']} rounds. Seconds of the clock, and in brackets of processors, which "
        "other programs disturb less. Memory in MiB: what the process grew by at its peak, and in "
        "brackets what the arrays take that it returned.",
        "",
        *report.table([*head, "voxax memory", "ratio"], rows),
    ]


def main() -> None:
    parser = report.options(__doc__, rounds=3, only=tuple(FORMATS))
    parser.add_argument("--points", type=int, default=50_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="for the files")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        rows.append(measure(name, options.points, options.folder, options.rounds))
        print(json.dumps(rows[-1]), flush=True)
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    values = {"device": report.device(), **versions, "rounds": options.rounds, "rows": rows}
    report.write(options.out, "reading", values, lines_of(values))


if __name__ == "__main__":
    main()
