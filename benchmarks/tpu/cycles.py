"""Cycles of the window kernels for each output row: every product, dtype and generation.

    python benchmarks/tpu/cycles.py

3x3x3 submanifold layers of 64 channels, 100,352 rows, one visit of each tile, on one core: of a
device with two each takes half of the visits. Cycles by the compiler's schedule, those in which
anything is issued, and the unit that is at work in most of them. Nothing runs. Needs libtpu.
Results go to results/tpu_cycles.md and .json; what is there is counted again with --anew only.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks.tpu.program import digest

from voxax.cli.bench import passes_of
from voxax.errors import VoxaxError
from voxax.predict import TOPOLOGIES, outcomes

RESULTS = Path(__file__).parents[1] / "results"
PRODUCTS, DTYPES, ROWS = ("forward", "dgrad", "wgrad"), ("bfloat16", "float32", "int8"), 100_352
CASES = [(product, dtype) for dtype in DTYPES for product in PRODUCTS]


def measure(chip: str, cases: list[tuple[str, str]]) -> list[dict[str, Any]]:
    asked = [
        (chip, "benchmarks.tpu.program:product", {"product": p, "dtype": d, "rows": ROWS})
        for p, d in cases
    ]
    found = []
    for (product, dtype), outcome in zip(cases, outcomes(asked), strict=True):
        row: dict[str, Any] = {"product": product, "dtype": dtype, "chip": chip, "code": digest()}
        if isinstance(outcome, VoxaxError):
            found.append(row | {"error": str(outcome)[:600]})
            continue
        kernels = [kernel for kernel in outcome.kernels if kernel.is_pallas]
        # All work of a core, as if it were the only one.
        costs = [k.cost(outcome.chip, outcome.chip.cores * (passes_of(k) or 1)) for k in kernels]
        cycles = sum(cost.cycles for cost in costs)
        busy = {unit: sum(c.busy.get(unit, 0) for c in costs) / cycles for unit in costs[0].busy}
        row |= {"cycles": cycles / ROWS, "issued": sum(c.bundles for c in costs) / ROWS}
        found.append(row | {"kernels": len(costs), "busy": busy})
    return found


def table_of(rows: list[dict[str, Any]]) -> str:
    known = {(row["product"], row["dtype"], row["chip"]): row for row in rows}
    lines = [
        "| kernel | " + " | ".join(TOPOLOGIES) + " |",
        "|---|" + "---:|" * len(TOPOLOGIES),
    ]
    for product, dtype in CASES:
        cells = [_cell(known.get((product, dtype, chip))) for chip in TOPOLOGIES]
        lines.append(f"| {product}, {dtype} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if "error" in row:
        return "does not compile"
    unit, share = max(row["busy"].items(), key=lambda item: item[1])
    return f"{row['cycles']:.1f} ({row['issued']:.1f}), {unit} {share:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chips", nargs="*", default=list(TOPOLOGIES), choices=list(TOPOLOGIES))
    parser.add_argument("--anew", action="store_true", help="count again what is known")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / "tpu_cycles.json"
    rows = json.loads(kept.read_text()) if kept.exists() and not arguments.anew else []
    rows = [row for row in rows if row["code"] == digest()]
    for chip in arguments.chips:
        known = {(row["product"], row["dtype"]) for row in rows if row["chip"] == chip}
        rows += measure(chip, [case for case in CASES if case not in known])
        kept.write_text(json.dumps(rows, indent=1) + "\n")
        (RESULTS / "tpu_cycles.md").write_text(
            "# Cycles of the window kernels for a row, of them issued, and the busiest unit\n\n"
            f"See benchmarks/tpu/cycles.py.\n\n{table_of(rows)}\n"
        )
    print(table_of(rows))


if __name__ == "__main__":
    main()
