"""Bars of one submanifold layer: every library's time over the lower bound."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from report import Report, best

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))

from drawings.drawing import FADED, INK, Drawing

_COLORS = {
    "voxax": "#0f766e",
    "voxax on XLA alone": "#86c5bd",
    "spconv": "#c2410c",
    "Open3D": "#7c3aed",
    "PyTorch": "#64748b",
}
_WIDTH, _LEFT, _BAR, _STEP, _GAP = 860, 84, 9, 11, 14
_PANEL = 310


def draw(report: Report, path: Path) -> Path | None:
    """Draw forward, and forward with backward, on the first workload that was measured.

    Returns:
      ``path``, or None where there is no submanifold layer yet.
    """
    rows = [r for r in report.results.values() if r["case"][1] == "conv3"]
    if not rows:
        return None
    workload = rows[0]["case"][0]
    modes = ("forward", "forward+backward")
    panels = [
        sorted(
            (r for r in rows if r["case"][0] == workload and r["case"][3] == mode),
            key=lambda r: r["case"][2],
        )
        for mode in modes
    ]
    ratios = [
        found[1] / row["lower_bound"]
        for row in itertools.chain(*panels)
        for found in (best(row, column) for column in _COLORS)
        if found is not None
    ]
    longest = max(ratios, default=1.0)
    group = len(_COLORS) * _STEP + _GAP
    height = 108 + group * max(map(len, panels))
    drawing = Drawing(_WIDTH, height)
    drawing.text(
        20, 26, "3x3x3 submanifold layer: time over the lower bound", 15, bold=True, anchor="left"
    )
    where = f"{workload}, {rows[0]['voxels']} voxels. {report.head['device']}. Shorter is faster."
    drawing.text(20, 48, where, 11, FADED, anchor="left")
    _legend(drawing, 70)
    for number, (mode, panel) in enumerate(zip(modes, panels, strict=True)):
        left = _LEFT + number * (_PANEL + 110)
        drawing.text(left, 92, mode, 12, bold=True, anchor="left")
        for place, row in enumerate(panel):
            top = 106 + place * group
            middle = top + len(_COLORS) * _STEP / 2
            drawing.text(left - 10, middle, f"C {row['case'][2]}", 11, INK, anchor="right")
            for line, column in enumerate(_COLORS):
                found = best(row, column)
                if found is not None:
                    y = top + line * _STEP
                    ratio = found[1] / row["lower_bound"]
                    end = left + _PANEL * ratio / longest
                    drawing.boxes([(left, y, end, y + _BAR)], _COLORS[column])
                    drawing.text(end + 5, y + _BAR / 2, f"{ratio:.1f}", 9, FADED, anchor="left")
        # The lower bound itself.
        x = left + _PANEL / longest
        if panel:
            drawing.line([(x, 104), (x, 104 + group * len(panel) - _GAP)], INK, 1)
    return drawing.write(path, "voxax and its peers on a CPU")


def _legend(drawing: Drawing, y: float) -> None:
    x = 20.0
    for name, color in _COLORS.items():
        drawing.boxes([(x, y - 5, x + 10, y + 5)], color)
        drawing.text(x + 16, y, name, 11, anchor="left")
        x += 34 + 7 * len(name)
    drawing.line([(x, y - 6), (x, y + 6)], INK, 1)
    drawing.text(x + 8, y, "lower bound", 11, anchor="left")
