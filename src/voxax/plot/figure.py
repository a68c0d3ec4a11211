"""Pictures as PNG files: labeled clouds, boxes, and confusion matrices.

A picture is drawn on a :class:`Sheet`, at positions in pixels from the top left corner. Images are
copied to the sheet without resampling. Drawing does not use pyplot: it selects no backend and
changes no global state.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from voxax._atomic_file import write_atomically
from voxax.detection import Objects
from voxax.errors import InputError, import_extra
from voxax.plot import labels as lab
from voxax.plot.boxed import EDGES, BoxKind, box_kinds
from voxax.plot.camera import Scene, compose, from_above, in_perspective, sample_rows
from voxax.plot.labels import checked_positions
from voxax.plot.palette import IGNORED, class_colors, rgb
from voxax.plot.raster import Raster, rasterize

# More points than this do not change a picture, and only take longer.
MOST_DRAWN = 1_500_000
WIDTH, MARGIN, GAP = 2000, 40, 20
PAPER, PANEL = "#ffffff", "#f7f8f9"
DPI, LEGEND_LINE = 100, 32
INK, FADED, WHITE_HALO = "#1c2126", "#667079", "#ffffffd8"
require = functools.partial(import_extra, "drawing", "plot")
FONT = "DejaVu Sans"  # comes with matplotlib, so pictures are the same everywhere


def segmentation_png(
    path: str | os.PathLike,
    positions: np.ndarray,
    prediction: np.ndarray,
    truth: np.ndarray | None,
    class_names: Sequence[str],
    *,
    title: str = "",
    subtitle: str = "",
    iou: Mapping[str, float | None] | None = None,
    up: str = "z",
    origin_view: str | tuple[float, float] = "auto",
) -> Path:
    """Draw a labeled cloud from above and in perspective, and return the path.

    The columns show truth, prediction and error, or prediction and height if `truth` is None.
    The first row is the view from above, with a scale bar; the second is a perspective view.
    Long tails, such as the few far returns of a LiDAR sweep, are left out. Points of a class
    named "ceiling" are left out too, because they would hide a room. The header of the picture
    states both. The numbers in the legend and in the headings count all points, drawn or not.

    Args:
      path: the PNG file, which is written atomically.
      positions: [N, 3] floats, meters. Rows with a coordinate that is not finite are
          not drawn. With N = 0 the picture contains the words "no points".
      prediction: [N] integers, the predicted class of each point; negative is "no prediction".
      truth: [N] integers, the true class of each point, or None; negative is "ignored".
      class_names: the names of class 0, 1, and so on. The color of a class depends on its name.
      title: heading of the picture.
      subtitle: line below the title.
      iou: intersection over union in [0, 1] by class name or number, for the legend.
          If it is None, the legend shows numbers of points instead.
      up: the axis of the cloud that points up: "z", "y", or "-y" (the frame of a camera, with
          y down and z forward).
      origin_view: "auto", or the direction from the center of the scene to the camera of the
          perspective view: (azimuth, elevation) in degrees. Azimuth 0 is the right side of the
          view from above, -90 its lower edge.

    Raises:
      InputError: shapes, lengths or dtypes do not fit, `up` is unknown, or `origin_view` is not
        two finite angles.
      MissingExtraError: matplotlib is not installed.
      OSError: the file cannot be written.
    """
    require("matplotlib")
    cloud = lab.labeled(positions, prediction, truth, class_names)
    roof = cloud.ceiling()
    scene = thinned(compose(cloud.positions, up, origin_view, without=roof))
    colors = class_colors(cloud.class_names)

    columns = _columns(cloud, scene, colors)
    column_width = (WIDTH - 2 * MARGIN - (len(columns) - 1) * GAP) // len(columns)
    tallest = 0.95 if len(columns) == 3 else 0.66
    views = views_of(scene, column_width, tallest)

    entries = _class_entries(cloud, colors, iou)
    header = [line for line in (subtitle, _facts(cloud, scene, roof)) if line]
    sheet = Sheet(WIDTH, MARGIN, PAPER)
    top = sheet.header(title, header)
    legend_rows = sheet.legend_height(entries)
    footer = 78 if truth is not None else 96
    height = top + 52 + sum(view.height for view in views) + GAP + 24 + legend_rows + footer
    sheet.open(height)

    for i, (name, note, _) in enumerate(columns):
        sheet.heading(MARGIN + i * (column_width + GAP), top + 34, name, note, column_width)
    y = top + 52
    for row, view in enumerate(views):
        for i, (_, _, paint) in enumerate(columns):
            place = MARGIN + i * (column_width + GAP), y
            draw_panel(sheet, place, view, scene, paint, perspective=row == 1)
        y += view.height + GAP
    y = sheet.legend(y + 14, entries)
    if truth is None:
        sheet.height_bar(y + 10, *_height_range(scene))
    else:
        verdicts = cloud.verdict_counts()
        sheet.legend(y + 4, [Entry(color, name, f"{n:,}") for name, color, n in verdicts if n])
    return write_atomically(path, sheet.png())


@dataclass(frozen=True)
class View:
    """A view of the points, rasterized for one panel of a picture.

    Attributes:
      raster: the rasterized points, or None if there are no points.
      scale: pixels per meter.
      height, width: size of the view in pixels.
      center: [2], the point of the image plane at the center of the view, in meters.
    """

    raster: Raster | None
    scale: float
    height: int
    width: int
    center: np.ndarray

    def pixels(self, plane: np.ndarray) -> np.ndarray:
        """Convert image plane coordinates [..., 2] in meters to pixels [..., 2] of this view.

        Pixels are counted right and down from the top left corner of the view.
        """
        away = (plane - self.center) * self.scale
        return np.stack([self.width / 2 + away[..., 0], self.height / 2 - away[..., 1]], axis=-1)


def fit_view(
    plane: np.ndarray, depth: np.ndarray, width: int, tallest: float, perspective: bool
) -> View:
    """Return a rasterized view of projected points, with a center, scale and height that fit them.

    `plane` [M, 2] has the coordinates of the points in the image plane and `depth` [M] their
    distances, both in meters. `width` is the width of the view in pixels, and `tallest` its largest
    ratio of height to width. `perspective` is whether this is a perspective view.
    """
    if len(plane) == 0:
        return View(None, 1.0, int(0.5 * width), width, np.zeros(2))
    low, high = plane.min(axis=0), plane.max(axis=0)
    if perspective and len(plane) > 1000:
        # Stray points may lie outside the perspective view if this enlarges the others clearly.
        core = np.percentile(plane, [0.7, 99.3], axis=0)
        stray = high - low > 1.15 * (core[1] - core[0])
        low, high = np.where(stray, core[0], low), np.where(stray, core[1], high)
    size = np.maximum(high - low, 1e-9)
    # The caption is above the points. The view from above has a scale bar below the points.
    above, below = (40, 20) if perspective else (46, 66)
    inside = width - 48
    height = int(np.clip(size[1] / size[0], 0.3, tallest) * inside) + above + below
    scale = float(min(inside / size[0], (height - above - below) / size[1]))
    if size.max() <= 1e-6:
        scale = width / 2.0  # all points at one place: the view is two meters wide
    center = (low + high) / 2 + np.array([0.0, (above - below) / 2 / scale])
    raster = rasterize(plane, depth, width, height, center, scale, perspective=perspective)
    return View(raster, scale, height, width, center)


def thinned(scene: Scene) -> Scene:
    """Return the scene with a random sample of at most ``MOST_DRAWN`` points."""
    kept = sample_rows(len(scene.points), MOST_DRAWN)
    return replace(scene, points=scene.points[kept], index=scene.index[kept])


def views_of(scene: Scene, width: int, tallest: float) -> tuple[View, View]:
    """Return the view from above and the perspective view of a scene.

    `width` and `tallest` are those of :func:`fit_view`.
    """
    above = fit_view(*from_above(scene), width, tallest, False)
    return above, fit_view(*in_perspective(scene), width, tallest, True)


def draw_panel(
    sheet: Sheet,
    place: tuple[int, int],
    view: View,
    scene: Scene,
    colors: np.ndarray,
    *,
    perspective: bool,
    height: int = 0,
) -> int:
    """Draw a view with point colors uint8 [M, 3]; return the y pixel of the view's upper edge.

    The upper left corner of the panel is at pixel `place`. The panel is at least `height` pixels
    high, and the view is vertically centered in the panel. A view from above (`perspective` is
    False) also gets a scale bar, and arrows with the names of the axes of `scene`.
    """
    (x, y), height = place, max(height, view.height)
    low = (height - view.height) // 2
    whole = np.full((height, view.width, 3), rgb(PANEL))
    if view.raster is not None:
        whole[low : low + view.height] = view.raster.paint(colors, rgb(PANEL))
    sheet.panel(x, y, whole)
    caption = "in perspective" if perspective else "from above"
    sheet.text(x + 14, y + 30, caption, size=13.5, color=FADED, halo=True)
    if view.raster is None:
        sheet.message(x + view.width / 2, y + height / 2, "no points")
    elif not perspective:
        sheet.scale_bar(x + 20, y + height - 22, view.scale, view.width)
        sheet.axes_mark(x + view.width - 62, y + height - 16, scene.right, scene.away)
    return y + low


def _columns(
    cloud: lab.Labeled, scene: Scene, colors: list[str]
) -> list[tuple[str, str, np.ndarray]]:
    """Return ``(heading, note, point colors)`` of each column of the picture.

    The columns show truth, prediction and error; without true classes, prediction and height. The
    point colors are uint8 [M, 3] for the points of `scene`, and `colors` has the color of each
    class, ``"#rrggbb"``.
    """
    # Index -1 selects the last row.
    table = np.stack([rgb(color) for color in [*colors, IGNORED]])
    prediction = table[np.maximum(cloud.prediction[scene.index], -1)]
    if cloud.truth is None:
        low, high = _height_range(scene)
        height = scene.points[:, 2] + scene.size[2] / 2 + scene.base
        viridis = require("matplotlib").colormaps["viridis"]
        shown = (viridis((height - low) / max(high - low, 1e-9))[:, :3] * 255).astype(np.uint8)
        return [("Prediction", "", prediction), ("Height", "", shown)]
    truth = table[np.maximum(cloud.truth[scene.index], -1)]
    verdicts = np.stack([rgb(color) for _, color in lab.VERDICTS])
    error = verdicts[cloud.verdict()[scene.index]]
    return [
        ("Truth", "", truth),
        ("Prediction", "", prediction),
        ("Error", cloud.error_sentence(), error),
    ]


def _height_range(scene: Scene) -> tuple[float, float]:
    """Return the limits of a color scale for heights: the 1st and 99th percentile, in meters."""
    if len(scene.points) == 0:
        return 0.0, 0.0
    low, high = np.percentile(scene.points[:, 2], [1, 99]) + scene.size[2] / 2 + scene.base
    return float(low), float(high)


def _class_entries(
    cloud: lab.Labeled, colors: list[str], iou: Mapping[str, float | None] | None
) -> list[Entry]:
    counts = cloud.counts()
    entries = []
    for label in cloud.present():
        name = cloud.class_names[label]
        if iou is None:
            note = f"{counts[label]:,}" if counts[label] else "predicted only"
        else:
            value = lab.iou_of(iou, label, name)
            note = "no IoU" if value is None else f"IoU {value:.3f}"
        entries.append(Entry(colors[label], name, note))
    labels = cloud.prediction if cloud.truth is None else cloud.truth
    unlabeled = int((labels < 0).sum())
    if unlabeled and cloud.truth is None:
        entries.append(Entry(IGNORED, "no prediction", f"{unlabeled:,}"))
    return entries


def _facts(cloud: lab.Labeled, scene: Scene, roof: np.ndarray) -> str:
    """Return the header line: the number of points, and what the picture does not show.

    `roof` is a mask of the points of a ceiling, which are not drawn.
    """
    points = len(cloud.positions)
    facts = [f"{points:,} point{'' if points == 1 else 's'}"]
    if scene.clipped:
        share = lab.percent(points - scene.clipped, points)
        facts.append(f"extent clipped to where {share} of them are")
    if roof.any():
        facts.append("the ceiling is not drawn")
    shown = len(scene.points)
    if shown == MOST_DRAWN:
        facts.append(f"{shown:,} of them drawn")
    if cloud.dropped:
        facts.append(f"{cloud.dropped:,} without a finite position left out")
    return " · ".join(facts)


Place = tuple[float, float]
Panel = tuple[float, float, float, float]  # left, top, width, height, in pixels


@dataclass(frozen=True)
class Entry:
    """A legend entry: a color ``"#rrggbb"``, a name, and a number or another short note.

    ``line`` is a line style of matplotlib for the symbol; if it is empty, the symbol is a dot.
    """

    color: str
    name: str
    note: str
    line: str = ""


class Sheet:
    """A picture to which text, images and lines are added at positions in pixels.

    Call :meth:`header`, then :meth:`open`, before anything is drawn. Positions are counted right
    and down from the top left corner.

    Args:
      width: width of the picture in pixels.
      margin: pixels that the header and the legend leave free at each side.
      paper: color of the background.
    """

    def __init__(self, width: int, margin: int, paper: str) -> None:
        figure_class = require("matplotlib.figure").Figure
        canvas_class = require("matplotlib.backends.backend_agg").FigureCanvasAgg
        self._figure = figure_class(figsize=(width / DPI, width / DPI), dpi=DPI, facecolor=paper)
        self._canvas = canvas_class(self._figure)
        self._width, self._height, self._margin = width, width, margin
        self._lines: list[tuple[float, str, dict]] = []

    def header(self, title: str, lines: list[str]) -> int:
        """Reserve space for a header of a title and lines; return the y pixel of its lower edge."""
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
        """Set the height of the picture in pixels, and write the header."""
        self._height = height
        self._figure.set_size_inches(self._width / DPI, height / DPI)
        self._axes = self._figure.add_axes((0, 0, 1, 1), facecolor="none")
        self._axes.set_xlim(0, self._width)
        self._axes.set_ylim(height, 0)
        self._axes.set_axis_off()
        for y, text, style in self._lines:
            size = style["size"]
            space = self._width - 2 * self._margin
            while self._text_width(text, **style) > space and style["size"] > 0.6 * size:
                style = {**style, "size": style["size"] - 0.5}
            self.text(self._margin, y, text, **style)

    def panel(self, x: int, y: int, image: np.ndarray) -> None:
        """Copy an image, uint8 [H, W, 3], to the sheet, with its upper left corner at (x, y)."""
        bottom = self._height - y - image.shape[0]
        # figimage counts pixels from below, and copies them without resampling.
        self._figure.figimage(image, xo=x, yo=bottom, origin="upper", zorder=-1)

    def heading(self, x: float, y: float, name: str, note: str, width: float) -> None:
        """Write a name and a note to its right at (x, y); the note's font shrinks to fit `width`.

        `width` is the number of pixels for both texts.
        """
        self.text(x, y, name, size=18, weight="bold")
        if note:
            start = self._text_width(name, size=18, weight="bold") + 16
            size = 15.5
            while size > 10 and start + self._text_width(note, size=size) > width:
                size -= 0.5
            self.text(x + start, y, note, size=size, color=FADED)

    def message(self, x: float, y: float, text: str) -> None:
        """Write text centered at (x, y)."""
        self.text(x, y, text, size=20, color=FADED, ha="center", va="center")

    def scale_bar(self, x: float, y: float, scale: float, width: float) -> None:
        """Draw a scale bar whose left end is at (x, y).

        Its length is a round number of meters, at most 0.28 of `width`. `width` is the width of the
        view in pixels, and `scale` the pixels per meter.
        """
        length = nice_length(0.28 * width / scale)
        right = x + length * scale
        for color, wide in ((WHITE_HALO, 8), (INK, 3.5)):
            self._axes.plot([x, right], [y, y], color=color, lw=wide * 72 / DPI, zorder=3,
                            solid_capstyle="butt")  # fmt: skip
            for end in (x, right):
                self._axes.plot([end, end], [y - 7, y + 1.75], color=color, lw=wide * 72 / DPI,
                                zorder=3, solid_capstyle="butt")  # fmt: skip
        self.text((x + right) / 2, y - 11, length_text(length), size=14.5,
                   ha="center", halo=True)  # fmt: skip

    def axes_mark(self, x: float, y: float, right: str, away: str) -> None:
        """Draw an arrow right and an arrow up from (x, y), with the names `right` and `away`."""
        arrow = {"arrowstyle": "-|>", "color": FADED, "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
        for tip in ((x + 26, y), (x, y - 26)):
            self._axes.annotate("", tip, (x, y), arrowprops=arrow)
        self.text(x + 30, y + 5, right, size=12.5, color=FADED, halo=True)
        self.text(x - 6, y - 20, away, size=12.5, color=FADED, ha="right", halo=True)

    def lines(self, lines: np.ndarray, color: str, style: str, width: float, panel: Panel) -> None:
        """Draw M line segments [M, 2, 2] in pixels, clipped to a panel; `width` is in pixels.

        `style` is a line style of matplotlib.
        """
        collection = require("matplotlib.collections").LineCollection(
            lines, colors=color, linestyles=style, linewidths=width * 72 / DPI, zorder=2
        )
        self._axes.add_collection(collection, autolim=False)
        left, top, wide, high = panel
        visible = require("matplotlib.patches").Rectangle((left, top), wide, high)
        visible.set_transform(self._axes.transData)
        collection.set_clip_path(visible)

    def labels(self, texts: Sequence[tuple[float, Place, str, str]], panel: Panel) -> None:
        """Write texts, given as (rank, place, text, color), on a panel, lowest rank first.

        A text is left out if it would cover an earlier text or leave the panel. The place is the
        pixel at the left end of the text's baseline.
        """
        x, y, width, height = panel
        taken = np.zeros((0, 4))
        for _, (left, line), text, color in sorted(texts):
            wide = self._text_width(text, size=13, weight="bold")
            own = np.array([left - 2, line - 13, left + wide + 2, line + 3])
            free = (own[0] > taken[:, 2]) | (own[2] < taken[:, 0])
            free |= (own[1] > taken[:, 3]) | (own[3] < taken[:, 1])
            inside = x < own[0] and own[2] < x + width and y < own[1] and own[3] < y + height
            if inside and free.all():
                taken = np.concatenate([taken, own[None]])
                self.text(left, line, text, size=13, color=color, weight="bold", halo=True)

    def legend_height(self, entries: list[Entry]) -> int:
        """Return the height of :meth:`legend` in pixels."""
        return LEGEND_LINE * -(-len(entries) // self._legend_columns(entries)[0])

    def legend(self, y: float, entries: list[Entry]) -> float:
        """Draw legend entries in columns, below pixel row `y`; return the row below the legend."""
        count, pitch = self._legend_columns(entries)
        for i, entry in enumerate(entries):
            x = self._margin + (i % count) * pitch
            line = y + (i // count) * LEGEND_LINE + 20
            if entry.line:
                self._axes.plot([x, x + 22], [line - 6] * 2, entry.line, color=entry.color, lw=2.2)
            else:
                self._axes.scatter([x + 11], [line - 6], s=(20 * 72 / DPI) ** 2, color=entry.color,
                                   edgecolors="#00000030", linewidths=0.6)  # fmt: skip
            self.text(x + 30, line, entry.name, size=15.5)
            after = x + 30 + self._text_width(entry.name, size=15.5) + 9
            self.text(after, line, entry.note, size=14, color=FADED)
        return y + self.legend_height(entries)

    def _legend_columns(self, entries: list[Entry]) -> tuple[int, float]:
        space = self._width - 2 * self._margin
        widest = max(
            (
                39 + self._text_width(entry.name, size=15.5) + self._text_width(entry.note, size=14)
                for entry in entries
            ),
            default=1.0,
        )
        count = max(1, min(len(entries), int(space // (widest + 36)))) if entries else 1
        return count, min(space / count, widest + 60)

    def height_bar(self, y: float, low: float, high: float) -> None:
        """Draw the color scale of heights from `low` to `high` meters, below pixel row `y`."""
        gradient = require("matplotlib").colormaps["viridis"](np.linspace(0, 1, 320))[:, :3]
        image = np.broadcast_to((gradient * 255).astype(np.uint8), (16, 320, 3))
        label = "height"
        start = self._margin + self._text_width(label, size=15.5) + 16
        self.text(self._margin, y + 15, label, size=15.5)
        first, last = height_text(low, high)
        self.text(start, y + 15, first, size=14, color=FADED)
        start += self._text_width(first, size=14) + 10
        self.panel(int(start), int(y), np.ascontiguousarray(image))
        self.text(start + 330, y + 15, last, size=14, color=FADED)

    def png(self) -> bytes:
        """Return the sheet as the bytes of a PNG file."""
        file, options = io.BytesIO(), {"compress_level": 5}
        self._canvas.print_png(file, metadata={"Software": "voxax"}, pil_kwargs=options)
        return file.getvalue()

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float,
        color: str = INK,
        halo: bool = False,
        **style: Any,
    ) -> None:
        """Write `text` at pixel (x, y), `size` pixels high; `style` has matplotlib text options."""
        style |= {"color": color, "family": FONT, "size": size * 72 / DPI}
        artist = self._axes.text(x, y, text, parse_math=False, **style)
        if halo:
            effects = require("matplotlib.patheffects")
            artist.set_path_effects([effects.withStroke(linewidth=3, foreground=WHITE_HALO)])

    def _text_width(self, text: str, *, size: float, weight: str = "normal", **_) -> float:
        """Return the width in pixels of `text` in a font of `size` pixels."""
        if not text:
            return 0.0
        properties = require("matplotlib.font_manager").FontProperties(
            family=FONT, size=size * 72 / DPI, weight=weight
        )
        renderer = self._canvas.get_renderer()
        return renderer.get_text_width_height_descent(text, properties, ismath=False)[0]


def nice_length(length: float) -> float:
    """Round `length` down to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(length))
    return float(max(step for step in (1, 2, 5) if step * power <= length * (1 + 1e-9)) * power)


def length_text(length: float) -> str:
    """Return a length in meters as text, in km, m, cm, mm or µm, such as "20 cm"."""
    for unit, name in ((1000.0, "km"), (1.0, "m"), (0.01, "cm"), (0.001, "mm")):
        if length >= unit * (1 - 1e-9):
            return f"{length / unit:.4g} {name}"
    return f"{length * 1e6:.3g} µm"


def height_text(low: float, high: float) -> tuple[str, str]:
    """Return the texts of two heights in meters, with just enough digits to differ."""
    span = high - low
    digits = 1 if span <= 0 else int(np.clip(1 - np.floor(np.log10(span)), 0, 6))
    return f"{low:.{digits}f} m", f"{high:.{digits}f} m"


# Boxes with a lower score are not drawn, because they would hide the others.
MIN_SCORE = 0.3
POINT = "#aab3bb"


def detection_png(
    path: str | os.PathLike,
    positions: np.ndarray,
    found: Objects | None,
    truth: Objects | None,
    class_names: Sequence[str],
    *,
    title: str = "",
    subtitle: str = "",
    ap: Mapping[str, str] | None = None,
    min_score: float = MIN_SCORE,
) -> Path:
    """Draw object boxes in a point cloud, from above and in perspective, and return the path.

    Found boxes have a solid line in the color of their class and show their score. True boxes have
    a dashed black line. If two scores would overlap, the lower score is left out.

    Args:
      path: the PNG file, which is written atomically.
      positions: [N, 3] floats, meters, z up. Rows with a coordinate that is not finite are not
          drawn. N may be 0; then only the boxes are drawn.
      found: detected boxes with class names and scores, or None.
      truth: true boxes with class names, or None if unknown.
      class_names: the names of all classes. The color of a class depends on its name.
      title: heading of the picture.
      subtitle: line below the title.
      ap: text for the legend by class name, such as the average precision; None for no text.
      min_score: found boxes with a lower score are not drawn. The header states this limit.

    Raises:
      InputError: ``positions`` have a wrong shape, or the class of a box is not in ``class_names``.
      MissingExtraError: matplotlib is not installed.
      OSError: the file cannot be written.
    """
    require("matplotlib")
    kinds = box_kinds(found, truth, class_names, min_score)
    cloud = checked_positions(positions)
    cloud = cloud[np.isfinite(cloud).all(axis=1)].astype(np.float64)
    # Without points, the boxes alone decide what the views show.
    alone = [kind.corners.reshape(-1, 3) for kind in kinds if not len(cloud)]
    scene = thinned(compose(np.concatenate([cloud, *alone])))
    width = (WIDTH - 2 * MARGIN - GAP) // 2
    views = views_of(scene, width, 1.0)
    if alone:
        views = tuple(replace(view, raster=None) for view in views)
    height = max(view.height for view in views)

    facts = [f"{len(positions):,} points"]
    if found is not None:
        drawn = sum(len(kind.labels) for kind in kinds if not kind.is_true)
        facts.append(f"{drawn} of {len(found)} found boxes have a score of at least {min_score:g}")
    if truth is not None:
        facts.append(f"{len(truth)} true boxes")
    sheet = Sheet(WIDTH, MARGIN, PAPER)
    top = sheet.header(title, [line for line in (subtitle, " · ".join(facts)) if line])
    entries = [_entry(kind, ap or {}) for kind in kinds]
    sheet.open(top + 20 + height + 24 + sheet.legend_height(entries) + 24)
    y = top + 20
    color = np.broadcast_to(rgb(POINT), (len(scene.points), 3))
    for number, view in enumerate(views):
        x, perspective = MARGIN + number * (width + GAP), number == 1
        top = draw_panel(sheet, (x, y), view, scene, color, perspective=perspective, height=height)
        if len(scene.points):
            panel = (x, top, width, view.height)
            _draw_boxes(sheet, panel, scene, view, kinds, perspective)
    sheet.legend(y + height + 10, entries)
    return write_atomically(path, sheet.png())


def _entry(kind: BoxKind, ap: Mapping[str, str]) -> Entry:
    note = f"{len(kind.labels)}"
    told = None if kind.is_true else ap.get(kind.labels[0])
    name = "true boxes" if kind.is_true else kind.name
    return Entry(kind.color, name, f"{note}, {told}" if told else note, line=_dash(kind))


def _dash(kind: BoxKind) -> str:
    return "--" if kind.is_true else "-"


def box_pixels(scene: Scene, view: View, corners: np.ndarray, perspective: bool) -> np.ndarray:
    """Convert box corners [M, 8, 3], in coordinates of the cloud, to pixels [M, 8, 2] of a view.

    Pixels are counted right and down from the top left corner of the view. `perspective` is whether
    this is the perspective view.
    """
    places = scene.place(corners.reshape(-1, 3)).astype(np.float32)
    moved = replace(scene, points=places)
    plane = (in_perspective if perspective else from_above)(moved)[0]
    return view.pixels(plane).reshape(len(corners), 8, 2)


def _draw_boxes(
    sheet: Sheet,
    panel: tuple[float, float, float, float],
    scene: Scene,
    view: View,
    kinds: Sequence[BoxKind],
    perspective: bool,
) -> None:
    texts: list[tuple[float, tuple[float, float], str, str]] = []
    edges = EDGES if perspective else EDGES[4:8]
    for kind in kinds:
        pixels = box_pixels(scene, view, kind.corners, perspective) + np.asarray(panel[:2])
        lines = pixels[:, edges].reshape(-1, 2, 2)
        sheet.lines(lines, kind.color, _dash(kind), 1.3 if kind.is_true else 2.6, panel)
        for own, score in zip(pixels, kind.scores, strict=True):
            if np.isfinite(score):
                place = (float(own[:, 0].max()) + 3, float(own[:, 1].min()) + 4)
                texts.append((-float(score), place, f"{score:.2f}", kind.color))
    sheet.labels(texts, panel)


CELL, LEFT = 44, 230
# With more classes than MOST_WRITTEN, cells have SMALL_CELL pixels and no percentages. For 200
# classes, large cells with percentages would take minutes and gigabytes.
MOST_WRITTEN, SMALL_CELL = 40, 16
# Pixels above the matrix for the vertical names.
ABOVE = 190


def confusion_png(
    path: str | os.PathLike, matrix: np.ndarray, class_names: Sequence[str], *, title: str = ""
) -> Path:
    """Draw a confusion matrix as a PNG file, and return the path.

    Rows are true classes, columns are predictions, and a cell shows its percentage of the row.
    Classes that are neither true nor predicted anywhere are left out. With more than 40 classes,
    cells have colors, but no percentages.

    Args:
      path: the PNG file, which is written atomically.
      matrix: [C, C] numbers of points, as from :func:`voxax.models.metrics.confusion`.
      class_names: names of the C classes.
      title: heading of the picture.

    Raises:
      InputError: ``matrix`` has a wrong shape, or a count that is negative or not finite.
      MissingExtraError: matplotlib is not installed.
      OSError: the file cannot be written.
    """
    counts = np.asarray(matrix)
    fine = counts.dtype.kind in "biuf" and np.isfinite(counts).all() and counts.min(initial=0) >= 0
    if counts.shape != (len(class_names),) * 2 or not fine:
        raise InputError(
            f"matrix of {counts.dtype} {list(counts.shape)} for {len(class_names)} classes: give "
            "finite counts of at least 0, one row and one column for each class"
        )
    kept = np.flatnonzero(counts.sum(0) + counts.sum(1)).tolist()
    counts, names = counts[np.ix_(kept, kept)], [class_names[k] for k in kept]
    totals = counts.sum(axis=1)
    shares = counts / np.maximum(totals, 1)[:, None]
    is_small = len(names) > MOST_WRITTEN
    cell, size = (SMALL_CELL, 11.0) if is_small else (CELL, 14.5)
    side = cell * len(names)
    sheet = Sheet(max(LEFT + side + MARGIN + 120, 700), MARGIN, PAPER)
    top = sheet.header(title, ["rows: true classes, in percent of each row; columns: predictions"])
    top += ABOVE
    sheet.open(top + side + MARGIN)
    colors = require("matplotlib").colormaps["Blues"](0.9 * shares)[..., :3]
    image = np.repeat(np.repeat((255 * colors).astype(np.uint8), cell, 0), cell, 1)
    if len(names):
        sheet.panel(LEFT, top, image)
    else:
        sheet.message(LEFT, top, "nothing to compare")
    for i, name in enumerate(names):
        middle = cell * i + cell / 2
        sheet.text(LEFT - 12, top + middle, name, size=size, ha="right", va="center")
        note = f"{int(totals[i]):,}"
        sheet.text(LEFT + side + 12, top + middle, note, size=size - 1.5, va="center", color=FADED)
        sheet.text(LEFT + middle, top - 10, name, size=size, ha="center", rotation=90)
        for j in range(0 if is_small else len(names)):
            if not counts[i, j]:
                continue
            place = LEFT + cell * j + cell / 2, top + middle
            percent = 100 * shares[i, j]
            text = f"{percent:.0f}" if percent >= 0.5 else "<1"
            color = "#ffffff" if shares[i, j] > 0.55 else INK
            sheet.text(*place, text, size=13.5, ha="center", va="center", color=color)
    return write_atomically(path, sheet.png())
