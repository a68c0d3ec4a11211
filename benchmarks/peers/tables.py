"""peers.json and peers.md."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.cases import OPERATIONS, Case
from benchmarks.peers.match import FEW_ROUNDS, LONG, SLOW
from benchmarks.peers.problems import WORKLOADS
from benchmarks.report import code, device, known, table, write

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


class Results:
    """All cases measured on one machine with one set of versions and one code of voxax."""

    def __init__(self, head: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
        self.head, self.results = head, results

    @classmethod
    def open(cls, options: Any, versions: dict[str, str], absent: dict[str, str]) -> Results:
        """Load the results in the folder to add to; empty if it has none, or anew.

        Raises:
          OtherResults: it is of another machine, other threads, versions or code, or of other
            peers, which may have failed to install this once.
        """
        head = {
            "device": device(),
            "threads": options.threads,
            "python": platform.python_version(),
            "versions": versions,
            "code": code(),
            "absent": absent,
        }
        found = known(options.out, "peers")
        if not found or options.anew:
            return cls(head, {})
        results = {str(Case(*r["case"])): r for r in found.pop("results")}
        before = cls(found, results)
        changed = [key for key, value in head.items() if before.head.get(key) != value]
        if changed:
            changes = "; ".join(f"{k}: {before.head.get(k)} there, {head[k]} now" for k in changed)
            raise OtherResults(
                f"{options.out / 'peers.json'} cannot be added to ({changes}): replace it with "
                "--anew, or write elsewhere with --out FOLDER"
            )
        return before

    def write(self, folder: Path) -> None:
        """Both files."""
        ordered = sorted(self.results.values(), key=_order)
        values = {**self.head, "results": ordered}
        write(folder, "peers", values, self.to_markdown(), show=False)

    def to_markdown(self) -> list[str]:
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
            "maps of layers are built before. PyTorch is the better one of a loop over taps and "
            "im2col. "
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
                    lines += _rows(rows, what.layered)
        return lines


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
    bound = f" lower bound {1e3 * result['lower_bound']:.2f}" if "lower_bound" in result else ""
    times = ", ".join(f"{name} {1e3 * s:.2f}" for name, s in result["seconds"].items())
    gone = "".join(f"; {name}: {reason}" for name, reason in result["absent"].items())
    return f"{case} ({result['wall']:.0f} s):{bound} ms: {times}{gone}"


def _order(result: dict[str, Any]) -> tuple[Any, ...]:
    workload, operation, channels, mode = result["case"]
    place = WORKLOADS.index(workload) if workload in WORKLOADS else len(WORKLOADS)
    return list(OPERATIONS).index(operation), mode, place, workload, channels


def _rows(rows: list[dict[str, Any]], layered: bool) -> list[str]:
    """The table of an operation and mode."""
    titles = ["C", "pairs / 1000", "GFLOP/s", "lower bound"] if layered else []
    lines = []
    for r in rows:
        cells = [r["case"][0], r["voxels"]]
        if layered:
            cells += [r["case"][2], f"{r['pairs'] / 1e3:.0f}", f"{r['rate'] / 1e9:.0f}"]
            cells.append(f"{1e3 * r['lower_bound']:.2f}")
        for column, names in COLUMNS.items():
            found = best(r, column)
            if found is None:
                cells.append("-")
                continue
            name, seconds = found
            ratio = f" ({seconds / r['lower_bound']:.2f})" if layered else ""
            form = f", {name.split()[-1]}" if len(names) > 1 and layered else ""
            cells.append(f"{1e3 * seconds:.2f}{ratio}{form}")
        own, peer = best(r, "voxax"), fastest_peer(r)
        lines.append([*cells, f"{peer[1] / own[1]:.2f} ({peer[0]})" if own and peer else "-"])
    return table(["workload", "voxels", *titles, *COLUMNS, "fastest peer / voxax"], lines)


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
        if numbers := [n for r in results.values() if (n := r["unmeasured"].get(library, 0))]:
            where = f"{sum(numbers)} products in {len(numbers)} of {len(results)} cases"
            why = "ran as predicted, since no time was left to measure them."
            lines.append(f"\n{title}: {where} {why}")
    return lines
