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

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from own_process import in_own_process, peak_added_by

RESULTS = Path(__file__).parent / "results"
PART = 1_000_000
Arrays = dict[str, np.ndarray]


def parts(points: int) -> Iterator[np.ndarray]:
    """Yield rows of x, y, z and intensity, float32, a million at a time."""
    for number, start in enumerate(range(0, points, PART)):
        rng = np.random.default_rng(number)
        rows = rng.uniform(-100, 100, (min(PART, points - start), 4)).astype(np.float32)
        rows[:, 3] = np.floor(np.abs(rows[:, 3]))
        yield rows


def colored(rows: np.ndarray) -> np.ndarray:
    """Return rows as a table with colors."""
    kinds = [(name, "<f4") for name in ("x", "y", "z", "intensity")]
    table = np.zeros(len(rows), kinds + [(name, "u1") for name in ("red", "green", "blue")])
    for axis, name in enumerate(("x", "y", "z", "intensity")):
        table[name] = rows[:, axis]
    table["red"] = rows[:, 3]
    return table


def write_rows(path: Path, points: int, header: bytes, convert: Callable[..., Any]) -> None:
    with path.open("wb") as stream:
        stream.write(header)
        for rows in parts(points):
            convert(rows).tofile(stream)


def write_bin(path: Path, points: int) -> None:
    write_rows(path, points, b"", lambda rows: rows)


def bare_bin(path: Path) -> Arrays:
    return split(np.fromfile(path, np.float32).reshape(-1, 4))


def split(rows: np.ndarray) -> Arrays:
    return {"positions": rows[:, :3].astype(np.float64), "intensity": rows[:, 3].copy()}


def write_npy(path: Path, points: int) -> None:
    stored = np.lib.format.open_memmap(path, "w+", np.float32, (points, 4))
    for number, rows in enumerate(parts(points)):
        stored[number * PART : number * PART + len(rows)] = rows
    stored.flush()


def bare_npy(path: Path) -> Arrays:
    return split(np.load(path))


def write_npz(path: Path, points: int) -> None:
    rows = np.concatenate(list(parts(points)))
    np.savez(path, xyz=rows[:, :3], intensity=rows[:, 3], label=np.zeros(points, np.int32))


def bare_npz(path: Path) -> Arrays:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return arrays | {"xyz": arrays["xyz"].astype(np.float64)}


def write_ply(path: Path, points: int) -> None:
    kinds = {"f": "float", "u": "uchar"}
    table = colored(np.zeros((0, 4)))
    columns = "".join(
        f"property {kinds[table.dtype[name].kind]} {name}\n" for name in table.dtype.names or ()
    )
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {points}\n{columns}end_header\n"
    write_rows(path, points, header.encode(), colored)


def bare_ply(path: Path) -> Arrays:
    import plyfile

    return stacked(plyfile.PlyData.read(str(path))["vertex"].data)


def stacked(table: np.ndarray) -> Arrays:
    positions = np.stack([table[name] for name in "xyz"], axis=1, dtype=np.float64)
    arrays = {"positions": positions, "intensity": table["intensity"].copy()}
    if "red" in (table.dtype.names or ()):
        arrays["rgb"] = np.stack([table[name] for name in ("red", "green", "blue")], axis=1)
    return arrays


def write_pcd(path: Path, points: int) -> None:
    header = (
        "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z intensity\nSIZE 4 4 4 4\nTYPE F F F F\n"
        f"COUNT 1 1 1 1\nWIDTH {points}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {points}\n"
        "DATA binary\n"
    )
    write_rows(path, points, header.encode(), lambda rows: rows)


def bare_pcd(path: Path) -> Arrays:
    from pypcd4.pypcd4 import PointCloud

    return stacked(PointCloud.from_path(path).pc_data)


def write_las(path: Path, points: int) -> None:
    import laspy

    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales = np.full(3, 0.001)
    with laspy.open(path, "w", header=header) as writer:
        for rows in parts(points):
            record = laspy.ScaleAwarePointRecord.zeros(len(rows), header=header)
            record.x, record.y, record.z = rows[:, :3].T.astype(np.float64)
            record.intensity = record.red = rows[:, 3].astype(np.uint16)
            record.classification = rows[:, 3].astype(np.uint8) % 7
            record.gps_time = np.arange(len(rows)) / 1000
            writer.write_points(record)


def bare_las(path: Path) -> Arrays:
    import laspy

    names = ("intensity", "return_number", "number_of_returns", "gps_time", "classification")
    names += ("user_data", "point_source_id", "scan_angle_rank")
    data = laspy.read(path)
    arrays = {name: np.array(data[name]) for name in names}
    rgb = np.stack([data[name] for name in ("red", "green", "blue")], axis=1)
    return arrays | {"xyz": data.xyz, "rgb": rgb.astype(np.uint8)}


def write_txt(path: Path, points: int) -> None:
    with path.open("w") as stream:
        for rows in parts(points):
            np.savetxt(stream, rows, "%.3f %.3f %.3f %d")


def bare_txt(path: Path) -> Arrays:
    return split(np.loadtxt(path))


# Text is 20 times as slow to read as anything else: a tenth of the points.
FORMATS: dict[str, tuple[Any, Any, int]] = {
    "bin": (write_bin, bare_bin, 1),
    "npy": (write_npy, bare_npy, 1),
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
    write(path, points // fewer)
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


def to_markdown(report: dict[str, Any]) -> str:
    lines = [
        "# Reading large scans",
        "",
        f"{report['device']}, Python {report['python']}, NumPy {report['numpy']}; "
        f"{report['rounds']} rounds. Seconds of the clock, and in brackets of processors, which "
        "other programs disturb less. Memory in MiB: what the process grew by at its peak, and in "
        "brackets what the arrays take that it returned.",
        "",
        "| format | million points | file | bare, s | voxax, s | ratio | bare memory "
        "| voxax memory | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["rows"]:
        cells = [row["format"], f"{row['points'] / 1e6:g}", f"{row['bytes'] / 2**20:.0f}"]
        for side in ("bare", "voxax"):
            cells.append(f"{row[f'{side}_seconds']:.2f} ({row[f'{side}_cpu']:.2f})")
        ratios = [row[f"voxax_{clock}"] / row[f"bare_{clock}"] for clock in ("seconds", "cpu")]
        cells.append(f"{ratios[0]:.2f} ({ratios[1]:.2f})")
        for side in ("bare", "voxax"):
            mib = [row[f"{side}_{what}"] / 2**20 for what in ("peak", "arrays")]
            cells.append(f"{mib[0]:.0f} ({mib[1]:.0f})")
        cells.append(f"{row['voxax_peak'] / row['bare_peak']:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=50_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="for the files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--dry", action="store_true", help="print the table, write nothing")
    told = parser.parse_args()
    rows = []
    for name in told.only:
        rows.append(measure(name, told.points, told.folder, told.rounds))
        print(json.dumps(rows[-1]), flush=True)
    report = describe() | {"rounds": told.rounds, "rows": rows}
    print(to_markdown(report))
    if not told.dry:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "reading.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "reading.md").write_text(to_markdown(report))


def describe() -> dict[str, Any]:
    import platform

    from voxax.hardware import describe as hardware

    info = hardware()
    device = f"{info.model or info.device_kind}, {info.cpu_cores} cores"
    return {"device": device, "python": platform.python_version(), "numpy": np.__version__}


if __name__ == "__main__":
    main()
