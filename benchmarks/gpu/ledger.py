"""Results as they come: one JSON file, written anew after each row, and a table made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import LIBRARIES, Row


class Ledger:
    """Results of one machine.

    Args:
      path: of the JSON file.
      machine: facts that all rows share; a file of another machine is refused.
    """

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self.path = path
        self.known: dict[str, Any] = {"machine": machine, "stages": {}, "rows": {}}
        if path.exists():
            known = json.loads(path.read_text())
            if known["machine"] != machine:
                raise SystemExit(
                    f"{path} is of {known['machine']}, this is {machine}: move it, or give --out"
                )
            self.known = known

    def has(self, row: Row) -> bool:
        """Return whether a row was measured; rows that failed or were absent are tried again."""
        values = self.known["rows"].get(str(row), {})
        return "seconds" in values or "matrix" in values

    def add(self, row: Row, values: dict[str, Any]) -> None:
        self.known["rows"][str(row)] = values
        self._write()

    def stage(self, name: str, values: dict[str, Any]) -> None:
        self.known["stages"][name] = values
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.known, indent=1) + "\n")
        os.replace(temporary, self.path)  # a run may be stopped at any moment
        self.path.with_suffix(".md").write_text(table(self.known))


def table(known: dict[str, Any]) -> str:
    """The results as Markdown."""
    machine = ", ".join(f"{name} {value}" for name, value in known["machine"].items())
    lines = ["# voxax on a GPU", "", f"Machine: {machine}.", ""]
    if known["machine"].get("rehearsal"):
        lines += ["**A rehearsal on the CPU: it shows that the script works, no time counts.**", ""]
    lines += ["| stage | result |", "|---|---|"]
    lines += [f"| {name} | {values['result']} |" for name, values in known["stages"].items()]
    lines += [
        "",
        "Milliseconds of a call among many, and of one alone in parentheses. Not measured: "
        "FlexGEMM, which has no package.",
        "",
        "| row | voxax | of the lower bound | PyTorch | spconv | spconv-triton | spconv / voxax "
        "| notes |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    by_row: dict[str, dict[str, dict[str, Any]]] = {}
    for name, values in known["rows"].items():
        library, _, row = name.partition(" ")
        by_row.setdefault(row, {})[library] = values
    for row, found in by_row.items():
        voxax, *peers = (found.get(library, {}) for library in LIBRARIES)
        cells = [_ms(voxax), _lower_bound(voxax), *map(_ms, peers), _ratio(peers[1], voxax)]
        notes = "; ".join(
            f"{'' if name == 'voxax' else f'{name}: '}{v['note']}"
            for name, v in found.items()
            if v.get("note")
        ).replace("|", "/")
        lines.append(f"| {row} | {' | '.join(cells)} | {notes} |")
    return "\n".join(lines) + "\n"


def _ms(values: dict[str, Any]) -> str:
    if "seconds" not in values:
        return ""
    return f"{1e3 * values['seconds']:.3f} ({1e3 * values['latency']:.3f})"


def _lower_bound(values: dict[str, Any]) -> str:
    known = values.get("lower_bound") and "seconds" in values
    return f"{values['seconds'] / values['lower_bound']:.2f} x" if known else ""


def _ratio(values: dict[str, Any], others: dict[str, Any]) -> str:
    there = "seconds" in values and "seconds" in others
    return f"{values['seconds'] / others['seconds']:.1f} x" if there else ""
