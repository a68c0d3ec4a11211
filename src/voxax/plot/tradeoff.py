"""What is gained over what it costs: a few labelled series in one plane, as SVG or PNG."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from voxax.errors import InputError
from voxax.plot.drawing import FADED, Drawing

Point = tuple[float, float, float, str]
"""x, y, half the height of the error bar, label."""

_COLORS = ("#64748b", "#0f766e", "#c2410c", "#7c3aed")
_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 690, 118, 350


def tradeoff_svg(
    path: str | os.PathLike,
    series: Mapping[str, Sequence[Point]],
    *,
    title: str = "",
    subtitle: str = "",
    x: str = "",
    y: str = "",
) -> Path:
    """Draw each series as labelled points with error bars, joined in the order of x.

    Args:
        path: the picture to write, ``.svg`` or ``.png``.
        series: points by name; x above 0, on a logarithmic axis.
        title, subtitle: above the plane.
        x, y: what the axes are.

    Raises:
        InputError: no points, or an x that is not above 0.
        MissingExtraError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    points = [point for line in series.values() for point in line]
    if not points or min(point[0] for point in points) <= 0:
        got = min((point[0] for point in points), default="no points")
        raise InputError(f"a logarithmic axis needs points with x above 0, got {got}")
    low_x, high_x = _spread([np.log10(p[0]) for p in points])
    low_y, high_y = _spread([p[1] + s * p[2] for p in points for s in (-1, 1)])

    def place(point: Point, lift: float = 0.0) -> tuple[float, float]:
        across = (np.log10(point[0]) - low_x) / (high_x - low_x)
        up = (point[1] + lift - low_y) / (high_y - low_y)
        return _LEFT + across * (_RIGHT - _LEFT), _BOTTOM - up * (_BOTTOM - _TOP)

    drawing = Drawing(_WIDTH, _HEIGHT)
    drawing.text(20, 26, title, 15, bold=True, anchor="left")
    drawing.text(20, 48, subtitle, 11, FADED, anchor="left")
    ticks = _ticks(low_y, high_y)
    for tick in ticks:
        _, height = place((10**low_x, tick, 0, ""))
        drawing.line([(_LEFT, height), (_RIGHT, height)], "#e5e8eb", 1)
        drawing.text(_LEFT - 8, height, f"{tick:.2f}", 11, FADED, anchor="right")
    for tick in _powers(low_x, high_x):
        across, _ = place((tick, low_y, 0, ""))
        drawing.line([(across, _BOTTOM), (across, _BOTTOM + 5)], FADED, 1)
        drawing.text(across, _BOTTOM + 16, f"{tick:g}", 11, FADED)
    drawing.text((_LEFT + _RIGHT) / 2, _HEIGHT - 24, x, 12)
    drawing.text(20, _TOP - 16, y, 12, anchor="left")
    for number, (name, line) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        ordered = sorted(line)
        places = [place(p) for p in ordered]
        drawing.line(places, color)
        for point in ordered:
            drawing.line([place(point, point[2]), place(point, -point[2])], color, 1)
        drawing.boxes([(a - 3.5, b - 3.5, a + 3.5, b + 3.5) for a, b in places], fill=color)
        # Labels of two series that meet do not: one's stand below, the other's above.
        lift = 12 if number % 2 == 0 else -12
        for (across, height), point in zip(places, ordered, strict=True):
            drawing.text(across + 8, height + lift, point[3], 11, color, anchor="left")
        left = _LEFT + 230 * number
        drawing.boxes([(left, 70, left + 8, 78)], fill=color)
        drawing.text(left + 14, 74, name, 11, anchor="left")
    return drawing.write(path, title)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """A range a little wider than the values', never empty."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers inside a range."""
    rough = (high - low) / 5
    base = 10 ** np.floor(np.log10(rough))
    step = next(m * base for m in (1, 2, 5, 10) if m * base >= rough)
    first = np.ceil(low / step)
    return [float(n * step) for n in np.arange(first, np.floor(high / step) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two logarithms."""
    tens = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    return [m * 10.0**e for e in tens for m in (1, 2, 5) if low <= np.log10(m * 10.0**e) <= high]
