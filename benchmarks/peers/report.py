"""peers.json and peers.md."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
from cases import OPERATIONS, Case
from match import FEW_ROUNDS, LONG, SLOW

# Columns, and the contestants of which the fastest stands there.
COLUMNS = {
    "voxax": ("voxax",),
    "voxax on XLA alone": ("voxax-xla",),
    "spconv": ("spconv",),
    "spconv, 1 thread": ("spconv single",),
    "Open3D": ("open3d op", "open3d layer", "open3d search"),
    "PyTorch": ("torch loop", "torch im2col", "torch dense", "torch searchsorted"),
}
PEERS = ("spconv", "spconv, 1 thread", "Open3D", "PyTorch")


class OtherResults(Exception):
    """The file that is there cannot be added to."""


class Report:
    """All cases measured on one machine with one set of versions and one code of voxax."""

    def __init__(self, head: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
        self.head, self.results = head, results

    @classmethod
    def open(
        cls,
        folder: Path,
        threads: int,
        versions: dict[str, str],
        absent: dict[str, str],
        anew: bool = False,
    ) -> Report:
        """Load the results in ``folder`` to add to; empty if it has none, or with ``anew``.

        Raises:
          OtherResults: it is of another machine, other threads, versions or code, or of other
            peers, which may have failed to install this once.
        """
        head = {
            "device": device(),
            "threads": threads,
            "python": platform.python_version(),
            "versions": versions,
            "code": code(),
            "absent": absent,
        }
        before = cls.read(folder / "peers.json")
        if before is None or anew:
            return cls(head, {})
        changed = [key for key, value in head.items() if before.head.get(key) != value]
        if changed:
            changes = "; ".join(f"{k}: {before.head.get(k)} there, {head[k]} now" for k in changed)
            raise OtherResults(
                f"{folder / 'peers.json'} cannot be added to ({changes}): replace it with --anew, "
                "or write elsewhere with --out FOLDER"
            )
        return before

    @classmethod
    def read(cls, path: Path) -> Report | None:
        """The file, or None where there is none."""
        if not path.exists():
            return None
        values = json.loads(path.read_text())
        results = {str(Case(*r["case"])): r for r in values.pop("results")}
        return cls(values, results)

    def add(self, case: Case, result: dict[str, Any]) -> None:
        self.results[str(case)] = result

    def write(self, folder: Path) -> None:
        """Both files."""
        folder.mkdir(parents=True, exist_ok=True)
        ordered = sorted(self.results.values(), key=_order)
        text = json.dumps({**self.head, "results": ordered}, indent=1)
        (folder / "peers.json").write_text(text + "\n")
        (folder / "peers.md").write_text(self.to_markdown())

    def to_markdown(self) -> str:
        head = self.head
        versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
        lines = [
            "# voxax and its peers on a CPU",
            "",
            f"{head['device']}, {head['threads']} threads, Python {head['python']}, {versions}; "
            f"voxax's code {head['code']}.",
            "",
            "float32. Medians of rounds in which all libraries take turns, each in its own "
            "process, ms; a turn of calls below 0.1 s is 0.03 s of calls that do not count and the "
            "median of those of 0.06 s. In brackets the ratio to the lower bound: the arithmetic "
            "of the pairs over the rate of the best dense product (XLA, NumPy, PyTorch) of the "
            "same rounds, three times that with the backward pass. The last column is the time of "
            "the fastest peer over that of voxax: more than 1 means that voxax is faster. Kernel "
            "maps of layers are built before. PyTorch is the best of a loop over taps, im2col and "
            "a dense grid; Open3D of its op and its layer. A form that is far slower than the "
            "others is left out of the cases with more channels. "
            f"A library that takes {SLOW} times the fastest or more runs {FEW_ROUNDS} rounds, or 1 "
            f"if a call takes more than {LONG:g} s. "
            "All results, spconv's on one thread, agree with voxax's to 1e-4 of the largest entry. "
            "spconv's backward pass asks for a CUDA stream and fails on a CPU as released: the "
            "benchmark replaces that call (`by_spconv.py`). "
            "Of maps, shuffled means that the coordinates come in no order: voxax and PyTorch then "
            "sort them first.",
        ]
        lines += [f"\n{peer} was left out: {reason}." for peer, reason in head["absent"].items()]
        lines += _races(self.results)
        lines += _unmeasured(self.results)
        for operation, what in OPERATIONS.items():
            for mode in what.modes:
                rows = [
                    r
                    for r in sorted(self.results.values(), key=_order)
                    if r["case"][1] == operation and r["case"][3] == mode
                ]
                if rows:
                    title = what.title[0].upper() + what.title[1:]
                    lines += ["", f"## {title}: {mode}", ""]
                    lines += _layers(rows) if what.layered else _others(rows)
        return "\n".join([*lines, ""])


def best(result: dict[str, Any], column: str) -> tuple[str, float] | None:
    """The fastest contestant of a column, and its seconds."""
    own = {name: s for name, s in result["seconds"].items() if name in COLUMNS[column]}
    return min(own.items(), key=lambda item: item[1]) if own else None


def fastest_peer(result: dict[str, Any]) -> tuple[str, float] | None:
    """Its column, and its seconds."""
    found = {peer: best(result, peer) for peer in PEERS}
    there = {peer: own[1] for peer, own in found.items() if own is not None}
    return min(there.items(), key=lambda item: item[1]) if there else None


def line(case: Case, result: dict[str, Any]) -> str:
    """Return the line that the driver prints for a result."""
    lower_bound = (
        f" lower bound {1e3 * result['lower_bound']:.2f}" if "lower_bound" in result else ""
    )
    times = ", ".join(f"{name} {1e3 * s:.2f}" for name, s in result["seconds"].items())
    gone = "".join(f"; {name}: {reason}" for name, reason in result["absent"].items())
    return f"{case} ({result['wall']:.0f} s):{lower_bound} ms: {times}{gone}"


def device() -> str:
    """Return the device's name as in other benchmarks, with the generation if the name hides it."""
    from voxax.hardware import describe

    info = describe()
    name = info.model or info.device_kind
    generation = f" ({info.generation})" if info.generation else ""
    return f"{name}{generation}, {info.cpu_cores} cores"


def code() -> str:
    """A digest of the files of voxax: sources, shipped choices, native library."""
    import voxax
    import voxax._native

    # An editable install keeps the native library in a folder of its own.
    files = {
        path.relative_to(folder).as_posix(): path
        for folder in map(Path, (*voxax.__path__, *voxax._native.__path__))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _order(result: dict[str, Any]) -> tuple[Any, ...]:
    from problems import WORKLOADS

    workload, operation, channels, mode = result["case"]
    place = WORKLOADS.index(workload) if workload in WORKLOADS else len(WORKLOADS)
    return list(OPERATIONS).index(operation), mode, place, workload, channels


def _layers(rows: list[dict[str, Any]]) -> list[str]:
    titles = ["workload", "voxels", "C", "pairs / 1000", "GFLOP/s", "lower bound", *COLUMNS]
    lines = [f"| {' | '.join(titles)} | fastest peer / voxax |", f"|---|{'---:|' * len(titles)}"]
    for r in rows:
        cells = [r["case"][0], r["voxels"], r["case"][2], f"{r['pairs'] / 1e3:.0f}"]
        cells += [f"{r['rate'] / 1e9:.0f}", f"{1e3 * r['lower_bound']:.2f}"]
        lines.append(_row(cells, r, r["lower_bound"]))
    return lines


def _others(rows: list[dict[str, Any]]) -> list[str]:
    titles = ["workload", "voxels", *COLUMNS]
    lines = [f"| {' | '.join(titles)} | fastest peer / voxax |", f"|---|{'---:|' * len(titles)}"]
    return lines + [_row([r["case"][0], r["voxels"]], r, None) for r in rows]


def _row(cells: list[Any], result: dict[str, Any], lower_bound: float | None) -> str:
    own, peer = best(result, "voxax"), fastest_peer(result)
    for column, names in COLUMNS.items():
        found = best(result, column)
        if found is None:
            cells.append("-")
            continue
        name, seconds = found
        ratio = "" if lower_bound is None else f" ({seconds / lower_bound:.2f})"
        form = f", {name.split()[-1]}" if len(names) > 1 and lower_bound is not None else ""
        cells.append(f"{1e3 * seconds:.2f}{ratio}{form}")
    cells.append(f"{peer[1] / own[1]:.2f} ({peer[0]})" if own and peer else "-")
    return f"| {' | '.join(map(str, cells))} |"


def _races(results: dict[str, dict[str, Any]]) -> list[str]:
    """A note on those whose results are exact on one thread only."""
    off = [
        (name, check["error"], check.get("wrong_rows", 0))
        for r in results.values()
        for name, check in r["checks"].items()
        if check["exact_error"] is not None
    ]
    lines = []
    for peer in sorted({name for name, *_ in off}):
        own = [(error, rows) for name, error, rows in off if name == peer]
        lines += [
            "",
            f"{peer} agreed on one thread only. As it was timed, with all threads, its results "
            f"differed in {len(own)} of {len(results)} cases, in up to {max(r for _, r in own)} "
            f"rows and by up to {np.max([e for e, _ in own]):.2g} of the largest entry: its times "
            "with all threads are those of wrong results.",
        ]
    return lines


def _unmeasured(results: dict[str, dict[str, Any]]) -> list[str]:
    """A note on products of voxax that ran with a choice that was not measured."""
    lines = []
    for library, title in (("voxax", "voxax"), ("voxax-xla", "voxax on XLA alone")):
        numbers = [n for r in results.values() if (n := r["unmeasured"].get(library, 0))]
        if numbers:
            lines += [
                "",
                f"{title}: {sum(numbers)} products in {len(numbers)} of {len(results)} cases ran "
                "as predicted, since no time was left to measure them.",
            ]
    return lines
