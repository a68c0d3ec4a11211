"""Results as they come: one JSON file, written anew after each row, and a table made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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
    lines += ["", "| peer | |", "|---|---|"]
    for library, facts in known["peers"].items():
        reason = facts.get("absent")
        shown = f"**absent**: {_cell(reason)}" if reason else _list(facts)
        lines.append(f"| {NAMES[library]} | {shown} |")
    lines += ["", "| stage | run | result |", "|---|---:|---|"]
    lines += [
        f"| {name} | {values['run']} | {_cell(values['result'])} |"
        for name, values in known["stages"].items()
    ]
    lines += [
        "",
        "Milliseconds of a call among many, and of one alone in parentheses. Error: of a layer "
        "against explicit_gemm in float32, over its largest entry; of a map, its wrong entries.",
        "",
        f"| row | voxax | error | of the lower bound | {' | '.join(NAMES.values())} "
        "| fastest peer / voxax | notes |",
        f"|---|{'---:|' * (len(NAMES) + 4)}---|",
    ]
    by_row: dict[str, dict[str, dict[str, Any]]] = {}
    for name, values in known["rows"].items():
        library, _, row = name.partition(" ")
        by_row.setdefault(row, {})[library] = values
    for row, found in by_row.items():
        voxax, *peers = (found.get(library, {}) for library in LIBRARIES)
        error = f"{voxax['error']:.1e}" if "error" in voxax else ""
        cells = [_ms(voxax), error, _lower_bound(voxax), *map(_ms, peers), _ratio(voxax, peers)]
        notes = "; ".join(
            f"{'' if name == 'voxax' else f'{NAMES[name]}: '}{v['note']}"
            for name, v in found.items()
            if v.get("note")
        )
        lines.append(f"| {row} | {' | '.join(cells)} | {_cell(notes)} |")
    lines += ["", "| cloud | voxels | made from |", "|---|---:|---|"]
    lines += [f"| {n} | {c['voxels']:,} | {c['source']} |" for n, c in known["clouds"].items()]
    lines += ["", "| workload of others | in place of the original |", "|---|---|"]
    lines += [f"| {name} | {DIFFERS[name]} |" for name in SEVEN]
    lines += [f"| {STACK} | {DIFFERS[STACK]} |"]
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
