"""A sheet of paper measured in pixels: panels, headings, scale bar, legend.

Everything is placed by pixel, counted from the top left corner, so that panels keep the
pixels they were computed with. The figure belongs to no pyplot session: no backend is
chosen and no global state is touched.
"""

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from ._extra import require

DPI = 100
INK, FADED = "#1c2126", "#667079"
FONT = "DejaVu Sans"  # comes with matplotlib, so pictures are the same everywhere


@dataclass(frozen=True)
class Entry:
    """A legend entry: ``"#rrggbb"``, a name, and a number or another short note."""

    color: str
    name: str
    note: str


class Sheet:
    """A figure `width` pixels wide; its height is set by :meth:`open`."""

    def __init__(self, width: int, margin: int, paper: str) -> None:
        figure_class = require("matplotlib.figure").Figure
        canvas_class = require("matplotlib.backends.backend_agg").FigureCanvasAgg
        self._figure = figure_class(figsize=(width / DPI, width / DPI), dpi=DPI, facecolor=paper)
        self._canvas = canvas_class(self._figure)
        self._width, self._height, self._margin = width, width, margin
        self._lines: list[tuple[float, str, dict]] = []

    def header(self, title: str, lines: list[str]) -> int:
        """Reserve a header; returns the pixel where it ends."""
        y = self._margin
        if title:
            y += 26
            self._lines.append((y, title, {"size": 27, "weight": "bold", "color": INK}))
            y += 8
        for line in lines:
            y += 28
            self._lines.append((y, line, {"size": 15.5, "color": FADED}))
        return y + 14

    def open(self, height: int) -> None:
        """Fix the height in pixels; all drawing comes after this."""
        self._height = height
        self._figure.set_size_inches(self._width / DPI, height / DPI)
        self._axes = self._figure.add_axes((0, 0, 1, 1), facecolor="none")
        self._axes.set_xlim(0, self._width)
        self._axes.set_ylim(height, 0)
        self._axes.set_axis_off()
        for y, text, style in self._lines:
            size = style["size"]
            room = self._width - 2 * self._margin
            while self._text_width(text, **style) > room and style["size"] > 0.6 * size:
                style = {**style, "size": style["size"] - 0.5}
            self._text(self._margin, y, text, **style)

    def panel(self, x: int, y: int, image: np.ndarray) -> None:
        """Put an [H, W, 3] uint8 picture with its upper left corner at (x, y)."""
        bottom = self._height - y - image.shape[0]
        # figimage counts from below, and copies pixels without resampling.
        self._figure.figimage(image, xo=x, yo=bottom, origin="upper", zorder=-1)

    def heading(self, x: float, y: float, name: str, note: str, width: float) -> None:
        """A column's name, and a note right of it where there is room."""
        self._text(x, y, name, size=18, weight="bold", color=INK)
        if note:
            start = self._text_width(name, size=18, weight="bold") + 16
            size = 15.5
            while size > 10 and start + self._text_width(note, size=size) > width:
                size -= 0.5
            self._text(x + start, y, note, size=size, color=FADED)

    def caption(self, x: float, y: float, text: str) -> None:
        """Small text on a panel."""
        self._text(x, y, text, size=13.5, color=FADED, halo=True)

    def message(self, x: float, y: float, text: str) -> None:
        """Text in the middle of an empty panel."""
        self._text(x, y, text, size=20, color=FADED, ha="center", va="center")

    def scale_bar(self, x: float, y: float, scale: float, width: float) -> None:
        """A bar of a round length, about a quarter of `width`; `scale` is pixels per metre."""
        length = nice_length(0.28 * width / scale)
        right = x + length * scale
        for color, wide in ((WHITE_HALO, 8), (INK, 3.5)):
            self._axes.plot([x, right], [y, y], color=color, lw=wide * 72 / DPI, zorder=3,
                            solid_capstyle="butt")  # fmt: skip
            for end in (x, right):
                self._axes.plot([end, end], [y - 7, y + 1.75], color=color, lw=wide * 72 / DPI,
                                zorder=3, solid_capstyle="butt")  # fmt: skip
        self._text((x + right) / 2, y - 11, length_text(length), size=14.5, color=INK,
                   ha="center", halo=True)  # fmt: skip

    def axes_mark(self, x: float, y: float, right: str, away: str) -> None:
        """Two small arrows named after the cloud's axes that point right and up."""
        arrow = {"arrowstyle": "-|>", "color": FADED, "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
        for tip in ((x + 26, y), (x, y - 26)):
            self._axes.annotate("", tip, (x, y), arrowprops=arrow)
        self._text(x + 30, y + 5, right, size=12.5, color=FADED, halo=True)
        self._text(x - 6, y - 20, away, size=12.5, color=FADED, ha="right", halo=True)

    def legend_height(self, entries: list[Entry]) -> int:
        """Pixels that :meth:`legend` takes."""
        return LEGEND_LINE * -(-len(entries) // self._legend_columns(entries)[0])

    def legend(self, y: float, entries: list[Entry]) -> float:
        """Entries in columns of equal width; returns the pixel below them."""
        count, pitch = self._legend_columns(entries)
        for i, entry in enumerate(entries):
            x = self._margin + (i % count) * pitch
            line = y + (i // count) * LEGEND_LINE + 20
            self._axes.scatter([x + 11], [line - 6], s=(20 * 72 / DPI) ** 2, color=entry.color,
                               edgecolors="#00000030", linewidths=0.6)  # fmt: skip
            self._text(x + 30, line, entry.name, size=15.5, color=INK)
            after = x + 30 + self._text_width(entry.name, size=15.5) + 9
            self._text(after, line, entry.note, size=14, color=FADED)
        return y + self.legend_height(entries)

    def _legend_columns(self, entries: list[Entry]) -> tuple[int, float]:
        room = self._width - 2 * self._margin
        widest = max(
            (
                39 + self._text_width(entry.name, size=15.5) + self._text_width(entry.note, size=14)
                for entry in entries
            ),
            default=1.0,
        )
        count = max(1, min(len(entries), int(room // (widest + 36)))) if entries else 1
        return count, min(room / count, widest + 60)

    def height_bar(self, y: float, low: float, high: float) -> None:
        """The colours of heights between `low` and `high` metres."""
        gradient = require("matplotlib").colormaps["viridis"](np.linspace(0, 1, 320))[:, :3]
        image = np.broadcast_to((gradient * 255).astype(np.uint8), (16, 320, 3))
        label = "height"
        start = self._margin + self._text_width(label, size=15.5) + 16
        self._text(self._margin, y + 15, label, size=15.5, color=INK)
        first, last = height_text(low, high)
        self._text(start, y + 15, first, size=14, color=FADED)
        start += self._text_width(first, size=14) + 10
        self.panel(int(start), int(y), np.ascontiguousarray(image))
        self._text(start + 330, y + 15, last, size=14, color=FADED)

    def write(self, file: BinaryIO) -> None:
        """Write the sheet as PNG."""
        self._canvas.print_png(
            file, metadata={"Software": "voxax"}, pil_kwargs={"compress_level": 5}
        )

    def _text(self, x: float, y: float, text: str, *, halo: bool = False, **style) -> None:
        artist = self._axes.text(x, y, text, family=FONT, parse_math=False, **_points(style))
        if halo:
            effects = require("matplotlib.patheffects")
            artist.set_path_effects([effects.withStroke(linewidth=3, foreground=WHITE_HALO)])

    def _text_width(self, text: str, *, size: float, weight: str = "normal", **_) -> float:
        """Pixels that `text` takes at `size` pixels."""
        if not text:
            return 0.0
        properties = require("matplotlib.font_manager").FontProperties(
            family=FONT, size=size * 72 / DPI, weight=weight
        )
        renderer = self._canvas.get_renderer()
        return renderer.get_text_width_height_descent(text, properties, ismath=False)[0]


WHITE_HALO = "#ffffffd8"
LEGEND_LINE = 32


def _points(style: dict) -> dict:
    """Font sizes are given in pixels here, and in points to matplotlib."""
    return {**style, "size": style["size"] * 72 / DPI}


def nice_length(length: float) -> float:
    """The largest 1, 2 or 5 times a power of ten that is at most `length` metres."""
    power = 10.0 ** np.floor(np.log10(length))
    return float(max(step for step in (1, 2, 5) if step * power <= length * (1 + 1e-9)) * power)


def length_text(length: float) -> str:
    """A round length in metres as text, in the unit that needs the fewest digits."""
    for unit, name in ((1000.0, "km"), (1.0, "m"), (0.01, "cm"), (0.001, "mm")):
        if length >= unit * (1 - 1e-9):
            return f"{length / unit:.4g} {name}"
    return f"{length * 1e6:.3g} µm"


def height_text(low: float, high: float) -> tuple[str, str]:
    """Both ends of a range of heights in metres, with just enough digits to differ."""
    span = high - low
    digits = 1 if span <= 0 else int(np.clip(1 - np.floor(np.log10(span)), 0, 6))
    return f"{low:.{digits}f} m", f"{high:.{digits}f} m"
