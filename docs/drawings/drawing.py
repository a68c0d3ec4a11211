"""A small drawing measured in pixels, counted from the top left corner.

Shapes of one color are merged into one path and text stays text, so an SVG is a few
kilobytes and the same input gives the same bytes. The figure belongs to no pyplot session.
"""

import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxax._atomic_file import write_atomically
from voxax.errors import InputError
from voxax.plot.figure import require

INK, FADED = "#1c2126", "#5f6a73"
PAPER, BORDER = "#fcfcfb", "#dfe3e6"
FONT = "DejaVu Sans"
# Matplotlib's unit is the point, 72 to the inch, and so is an SVG pixel of its files.
DPI = 72
PNG_SCALE = 2

Box = tuple[float, float, float, float]
Place = tuple[float, float]


class Drawing:
    """A sheet of `width` by `height` pixels with rounded corners."""

    def __init__(self, width: float, height: float) -> None:
        figure_class = require("matplotlib.figure").Figure
        self._patches = require("matplotlib.patches")
        self._path_class = require("matplotlib.path").Path
        self._figure = figure_class(figsize=(width / DPI, height / DPI), dpi=DPI)
        self._figure.patch.set_alpha(0)
        self._axes = self._figure.add_axes((0, 0, 1, 1), facecolor="none")
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._axes.set_axis_off()
        # What is drawn later lies above, be it a line, a shape or a text.
        self._layer = 0
        # A light sheet of its own: the colors keep their meaning on a dark page.
        sheet = self._patches.FancyBboxPatch(
            (0.5, 0.5), width - 1, height - 1, boxstyle="round,pad=0,rounding_size=6",
            facecolor=PAPER, edgecolor=BORDER, linewidth=1,
        )  # fmt: skip
        self._add(sheet)

    def boxes(
        self,
        boxes: Iterable[Box],
        fill: str = "none",
        edge: str = "none",
        width: float = 1.0,
        dash: tuple[float, float] | None = None,
    ) -> None:
        """Rectangles (left, top, right, bottom) as one path."""
        vertices, codes = [], []
        path = self._path_class
        for left, top, right, bottom in boxes:
            corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
            vertices += corners
            codes += [path.MOVETO, path.LINETO, path.LINETO, path.LINETO, path.CLOSEPOLY]
        if vertices:
            style = {"linestyle": (0, dash)} if dash else {}
            self._add(
                self._patches.PathPatch(
                    path(vertices, codes), facecolor=fill, edgecolor=edge, linewidth=width,
                    joinstyle="miter", **style,
                )
            )  # fmt: skip

    def grid(self, box: Box, x: Sequence[float], y: Sequence[float], fill: str, edge: str) -> None:
        """A filled box with lines at the given x and y."""
        left, top, right, bottom = box
        self.boxes([box], fill, edge)
        path = self._path_class
        vertices = [place for at in x for place in ((at, top), (at, bottom))]
        vertices += [place for at in y for place in ((left, at), (right, at))]
        if vertices:
            codes = [path.MOVETO, path.LINETO] * (len(x) + len(y))
            self._add(self._patches.PathPatch(path(vertices, codes), fc="none", ec=edge, lw=1))

    def line(self, places: Sequence[Place], color: str, width: float = 1.5) -> None:
        """A line through all `places`."""
        x, y = zip(*places, strict=True)
        self._axes.plot(
            x, y, color=color, lw=width, solid_joinstyle="round", solid_capstyle="round",
            clip_on=False, scalex=False, scaley=False, zorder=self._next_layer(),
        )  # fmt: skip

    def arrow(
        self, start: Place, stop: Place, color: str, width: float = 1.4, rim: str = "none"
    ) -> None:
        """A straight arrow with its tip at `stop`."""
        first, last = np.asarray(start, float), np.asarray(stop, float)
        length = float(np.linalg.norm(last - first))
        if length < 1e-6:
            return
        along = (last - first) / length
        across = np.array([-along[1], along[0]])
        head = min(2.0 + 3.2 * width, 0.7 * length)
        base = last - head * along
        wings = [last, base + 0.5 * head * across, base - 0.5 * head * across]
        # A little into the head, so that no gap shows between the two.
        shaft = [tuple(first), tuple(base + 0.2 * head * along)]
        if rim != "none":
            self.line(shaft, rim, width + 1.6)
        self._add(self._patches.Polygon(wings, facecolor=color, edgecolor=rim, lw=0.8))
        self.line(shaft, color, width)

    def dots(self, places: Sequence[Place], fill: str, radius: float, rim: str = PAPER) -> None:
        """Discs with a rim."""
        for place in places:
            self._add(self._patches.Circle(place, radius, facecolor=fill, edgecolor=rim, lw=1))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        color: str = INK,
        *,
        bold: bool = False,
        anchor: str = "center",
    ) -> None:
        """A line of text whose digits' middle is at `y`; `anchor` is left, center or right."""
        # Digits and capitals are 0.73 of the size high. The baseline is placed, not the box:
        # boxes depend on the letters.
        self._axes.text(
            x, y + 0.365 * size, text, size=size, color=color, ha=anchor, va="baseline",
            family="sans-serif", weight="bold" if bold else "normal", parse_math=False,
            zorder=self._next_layer(),
        )  # fmt: skip

    def _add(self, patch: Any) -> None:
        patch.set_clip_on(False)
        patch.set_snap(False)
        patch.set_zorder(self._next_layer())
        self._axes.add_patch(patch)

    def _next_layer(self) -> int:
        self._layer += 1
        return self._layer

    def write(self, path: str | os.PathLike, title: str) -> Path:
        """Write ``.svg`` or ``.png`` by the suffix of `path`, and return the path.

        Raises:
          InputError: another suffix.
          OSError: the file cannot be written.
        """
        kind = Path(path).suffix.lower()
        if kind not in (".svg", ".png"):
            raise InputError(f"{os.fspath(path)!r}: a picture's name must end in .svg or .png")
        file = io.BytesIO()
        # No date, no random identifiers, and text as text: the bytes depend on the input alone.
        settings = {
            "svg.hashsalt": "voxax",
            "svg.fonttype": "none",
            "font.sans-serif": [FONT],
            "path.simplify": False,
        }
        with require("matplotlib").rc_context(settings):
            if kind == ".svg":
                canvas = require("matplotlib.backends.backend_svg").FigureCanvasSVG(self._figure)
                canvas.print_svg(file, metadata={"Date": None, "Creator": None, "Title": title})
            else:
                self._figure.set_dpi(DPI * PNG_SCALE)
                canvas = require("matplotlib.backends.backend_agg").FigureCanvasAgg(self._figure)
                canvas.print_png(file, metadata={"Software": "voxax", "Title": title})
        content = file.getvalue()
        return write_atomically(path, _compact(content) if kind == ".svg" else content)


def _compact(svg: bytes) -> bytes:
    """One line per shape instead of one per corner, and a size in pixels instead of points."""
    text = svg.decode()
    text = re.sub(r"\s*\n(?=[MLQCz\"])", " ", text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r'(<svg [^>]*width="[\d.]+)pt(" height="[\d.]+)pt"', r'\1\2"', text)
    return text.encode()
