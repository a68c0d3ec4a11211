"""Results as they come: one JSON file, written anew after each row, and a table made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.gpu.published import DIFFERS, SEVEN
from benchmarks.gpu.rows import LIBRARIES, STACK, Row

NAMES = {
    "flexgemm": "FlexGEMM",
    "warpconvnet": "WarpConvNet",
    "spconv": "spconv",
    "spconv_triton": "spconv-triton",
    "fvdb": "fVDB",
    "torch": "PyTorch",
}


class Ledger:
    """Results of one machine, of one run or of several that went on.

    Args:
      path: of the JSON file.
      machine: what all rows share; a file of another machine is refused.
      run: facts of this run, which may differ between runs: the driver, the code.
    """

    def __init__(
        self, path: Path, machine: dict[str, Any], run: dict[str, Any] | None = None
    ) -> None:
        self.path = path
        self.known: dict[str, Any] = {"machine": machine, "runs": []}
        if path.exists():
            known = json.loads(path.read_text())
            if known["machine"] != machine:
                raise SystemExit(
                    f"{path} is of {known['machine']}, this is {machine}: move it, or give --out"
                )
            self.known = known
        for part in ("peers", "stages", "clouds", "rows"):
            self.known.setdefault(part, {})
        self.known.setdefault("runs", []).append(run or {})

    def has(self, row: Row) -> bool:
        """Return whether a row was measured; rows that failed are tried again."""
        values = self.known["rows"].get(str(row), {})
        return "seconds" in values or "matrix" in values

    def tried(self, row: Row) -> bool:
        """Return whether a row was measured or failed."""
        return str(row) in self.known["rows"]

    def add(self, row: Row, values: dict[str, Any]) -> None:
        self.known["rows"][str(row)] = {**values, "run": len(self.known["runs"])}
        self.write()

    def stage(self, name: str, values: dict[str, Any]) -> None:
        self.known["stages"][name] = {**values, "run": len(self.known["runs"])}
        self.write()

    def write(self) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.known, indent=1) + "\n")
        os.replace(temporary, self.path)  # a run may be stopped at any moment
        self.path.with_suffix(".md").write_text(table(self.known))


def table(known: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["# voxax on a GPU", "", f"Machine: {_list(known['machine'])}.", ""]
    if known["machine"].get("rehearsal"):
        lines += ["**A rehearsal on the CPU: it shows that the script works, no time counts.**", ""]
    lines += [f"Run {n}: {_list(run)}.  " for n, run in enumerate(known["runs"], 1)]
    peers = [
        (NAMES[library], f"**absent**: {_cell(f['absent'])}" if "absent" in f else _list(f))
        for library, f in known["peers"].items()
    ]
    lines += ["", *report.table(["peer", ""], peers, 2), ""]
    stages = [(n, v["run"], _cell(v["result"])) for n, v in known["stages"].items()]
    lines += report.table(["stage", "run", "result"], stages, 3)
    lines += [
        "",
        "Milliseconds of a call among many, and of one alone in parentheses. Error: of a layer "
        "against explicit_gemm in float32, over its largest entry; of a map, its wrong entries.",
        "",
    ]
    by_row: dict[str, dict[str, dict[str, Any]]] = {}
    for name, values in known["rows"].items():
        library, _, row = name.partition(" ")
        by_row.setdefault(row, {})[library] = values
    rows = []
    for row, found in by_row.items():
        voxax, *others = (found.get(library, {}) for library in LIBRARIES)
        error = f"{voxax['error']:.1e}" if "error" in voxax else ""
        cells = [_ms(voxax), error, _lower_bound(voxax), *map(_ms, others), _ratio(voxax, others)]
        notes = "; ".join(
            f"{'' if name == 'voxax' else f'{NAMES[name]}: '}{v['note']}"
            for name, v in found.items()
            if v.get("note")
        )
        rows.append([row, *cells, _cell(notes)])
    head = ["row", "voxax", "error", "of the lower bound", *NAMES.values()]
    lines += report.table([*head, "fastest peer / voxax", "notes"], rows)
    clouds = [(n, f"{c['voxels']:,}", c["source"]) for n, c in known["clouds"].items()]
    lines += ["", *report.table(["cloud", "voxels", "made from"], clouds), ""]
    others = [(name, DIFFERS[name]) for name in (*SEVEN, STACK)]
    lines += report.table(["workload of others", "in place of the original"], others, 2)
    return "\n".join(lines) + "\n"


def _list(facts: dict[str, Any]) -> str:
    return _cell(", ".join(f"{name} {value}" for name, value in facts.items()))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def _ms(values: dict[str, Any]) -> str:
    if "seconds" not in values:
        return ""
    return f"{1e3 * values['seconds']:.3f} ({1e3 * values['latency']:.3f})"


def _lower_bound(values: dict[str, Any]) -> str:
    known = values.get("lower_bound") and "seconds" in values
    return f"{values['seconds'] / values['lower_bound']:.2f} x" if known else ""


def _ratio(values: dict[str, Any], peers: list[dict[str, Any]]) -> str:
    others = [peer["seconds"] for peer in peers if "seconds" in peer]
    return f"{min(others) / values['seconds']:.1f} x" if others and "seconds" in values else ""
