"""Results as they come: one JSON file, written anew after each row, and a table made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import Row


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
        "| row | ms | latency ms | of the lower bound | note |",
        "|---|---:|---:|---:|---|",
    ]
    for name, values in known["rows"].items():
        cells = [_ms(values.get("seconds")), _ms(values.get("latency")), _ratio(values)]
        lines.append(f"| {name} | {' | '.join(cells)} | {values.get('note', '')} |")
    return "\n".join(lines) + "\n"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3f}"


def _ratio(values: dict[str, Any]) -> str:
    lower_bound, seconds = values.get("lower_bound"), values.get("seconds")
    return "" if not lower_bound or seconds is None else f"{seconds / lower_bound:.2f} x"
