"""Layout of a picture's panels, and how each is drawn."""

from collections.abc import Sequence

import numpy as np

from voxax.errors import InputError
from voxax.plot.palette import ACCENT, GROUPS, Scale, rgb

from .drawing import FADED, INK, PAPER, Box, Drawing
from .panel import Extent, Panel
from .site_content import Content

# Pixels.
CELL = 28
MARGIN, GAP, SIGN, SCENE_GAP = 14, 26, 34, 14
TITLE, NOTE, SCENE_TITLE, TICKS = 24, 15, 16, 14
# Width of a page of the documentation.
WIDEST = 800

EMPTY, EMPTY_EDGE, ACTIVE_EDGE = "#f1f3f4", "#e2e5e8", "#73818d"
FLAT, TAP, DOT = "#8fbce6", "#dfe4e8", INK


def frames_of(panels: Sequence[Panel], contents: Sequence[Content], cell: float) -> list["Frame"]:
    """One frame per panel; panels without a kernel share one lattice box.

    Raises:
      InputError: nothing in any panel says which part of the lattice to show.
    """
    lattices = [c for c in contents if c.center is None]
    extents = [extent for c in lattices if (extent := c.extent()) is not None]
    # Whole cells of the coarsest panel.
    step = np.max([c.step for c in contents], axis=0)
    shared: Extent | None = None
    if extents:
        low = np.min([[x[0], y[0]] for x, y in extents], axis=0) // step * step
        high = -(-np.max([[x[1], y[1]] for x, y in extents], axis=0) // step) * step
        shared = (int(low[0]), int(high[0])), (int(low[1]), int(high[1]))
    frames = []
    for panel, content in zip(panels, contents, strict=True):
        own = content.extent() if content.center is not None else shared
        extent = panel.extent or own
        if extent is None:
            raise InputError(f"panel {panel.title!r} is empty: give it sites, points or an extent")
        frames.append(Frame(panel, content, extent, cell))
    return frames


def rows_of(frames: Sequence["Frame"], columns: int | None) -> list[list["Frame"]]:
    """The frames in rows of `columns`, or in as few rows as fit a page, of nearly equal length."""
    if columns is None:
        rows, used = 1, 0.0
        for frame in frames:
            if used and used + frame.advance - frame.lead > WIDEST:
                rows, used = rows + 1, 0.0
            used += frame.advance if used else frame.advance - frame.lead
        columns = -(-len(frames) // rows)
    return [list(frames[i : i + columns]) for i in range(0, len(frames), columns)]


class Frame:
    """A panel with its place on the lattice and its size in pixels."""

    def __init__(self, panel: Panel, content: Content, extent: Extent, cell: float) -> None:
        self.panel, self.content, self.extent, self.cell = panel, content, extent, cell
        (x0, x1), (y0, y1) = extent
        self.scene_width = self.cell * (x1 - x0)
        self.lattice_height = self.cell * (y1 - y0)
        several = content.num_scenes > 1
        ticks = TICKS if panel.axes else 0
        self.width = content.num_scenes * (self.scene_width + SCENE_GAP) - SCENE_GAP + ticks
        self.lead = SIGN + GAP / 2 if panel.sign else GAP
        self.notes = panel.note.split("\n") if panel.note else []
        texts = [0.66 * 13 * len(panel.title), *(0.6 * 11 * len(note) for note in self.notes)]
        self.advance = self.lead + max(self.width, ticks + max(texts))
        self.above = TITLE + (SCENE_TITLE if several else 0)
        self.below = ticks + (NOTE * len(self.notes) + 6 if self.notes else 0)
        self.height = self.above + self.lattice_height + self.below
        self.indent = ticks

    def draw(self, drawing: Drawing, left: float, top: float, drop: float, scale: Scale) -> None:
        """Draw with the upper left corner at (left, top), the lattice `drop` pixels lower."""
        panel, content = self.panel, self.content
        self._left, self._top = left + self.indent, top + self.above + drop
        drawing.text(self._left, top + 7, panel.title, 13, bold=True, anchor="left")
        if panel.sign:
            middle = self._top + self.lattice_height / 2
            drawing.text(left - self.lead / 2, middle, panel.sign, 20, FADED)
        for scene in range(content.num_scenes):
            self._lattice(drawing, scene)
        self._sites(drawing, scale)
        drawing.boxes(
            (self._cell_box(*row, inset=1.5) for row in content.highlight), edge=ACCENT, width=2.6
        )
        if content.center is not None:
            box = self._box(0, 0, 0, content.center, inset=-1.5)
            drawing.boxes([box], edge=INK, width=1.5, dash=(3, 2))
        self._curve(drawing)
        for start, stop in content.arrows:
            # The rim shows it on dark sites too.
            drawing.arrow(self._place(0, *start), self._place(0, *stop), INK, 1.2, rim=PAPER)
        self._points(drawing, scale)
        bottom = self._top + self.lattice_height + (TICKS if panel.axes else 0)
        for i, line in enumerate(self.notes):
            drawing.text(self._left, bottom + 12 + i * NOTE, line, 11, FADED, anchor="left")

    def _lattice(self, drawing: Drawing, scene: int) -> None:
        (x0, x1), (y0, y1) = self.extent
        sx, sy = self.content.step
        corner, far = self._place(scene, x0, y0), self._place(scene, x1, y1)
        x = [self._place(scene, i * sx, y0)[0] for i in range(x0 // sx + 1, -(-x1 // sx))]
        y = [self._place(scene, x0, j * sy)[1] for j in range(y0 // sy + 1, -(-y1 // sy))]
        drawing.grid((corner[0], far[1], far[0], corner[1]), x, y, EMPTY, EMPTY_EDGE)
        if self.content.num_scenes > 1:
            drawing.text(corner[0], self._top - 10, f"scene {scene}", 11, FADED, anchor="left")
        if self.panel.axes:
            for i in range(x0 // sx, -(-x1 // sx)):
                place = self._place(scene, (i + 0.5) * sx, y0)
                drawing.text(place[0], place[1] + 9, _tick(i), 9, FADED)
            for j in range(y0 // sy, -(-y1 // sy)) if scene == 0 else ():
                place = self._place(scene, x0, (j + 0.5) * sy)
                drawing.text(place[0] - 5, place[1], _tick(j), 9, FADED, anchor="right")

    def _sites(self, drawing: Drawing, scale: Scale) -> None:
        content = self.content
        fills = self._fills(scale)
        by_fill: dict[str, list[Box]] = {}
        for scene, (x, y), fill in zip(content.scenes, content.cells, fills, strict=True):
            by_fill.setdefault(fill, []).append(self._cell_box(scene, x, y, inset=1))
        for fill, boxes in by_fill.items():
            drawing.boxes(boxes, fill, ACTIVE_EDGE, 0.8)
        step = np.asarray(content.step)
        sites = zip(content.scenes, content.cells, content.labels or (), fills, strict=False)
        for scene, cell, label, fill in sites:
            if content.curve is not None or len(content.points) or len(content.arrows):
                # The middle is taken.
                left, top, _, _ = self._cell_box(scene, *cell, inset=3)
                size = min(0.29 * self.cell, 12)
                drawing.text(left, top + 0.4 * size, label, size, ink_on(fill), anchor="left")
                continue
            x, y = self._place(scene, *((cell + 0.5) * step))
            drawing.text(x, y, label, _label_size(label, self.cell * step[0]), ink_on(fill))

    def _fills(self, scale: Scale) -> list[str]:
        content = self.content
        if content.groups is not None:
            return [group_color(int(group)) for group in content.groups]
        if content.values is not None:
            return [scale.color(float(value)) for value in content.values]
        if content.center is not None:
            return [TAP] * len(content.cells)
        if content.num_scenes > 1:
            return [group_color(int(scene)) for scene in content.scenes]
        return [FLAT] * len(content.cells)

    def _curve(self, drawing: Drawing) -> None:
        if self.content.curve is None:
            return
        curve, step = self.content.curve, np.asarray(self.content.step)
        for scene in range(self.content.num_scenes):
            visited = curve[curve[:, 0] == scene, 1:]
            places = [self._place(scene, *((cell + 0.5) * step)) for cell in visited]
            if len(places) > 1:
                drawing.line(places[:-1] if len(places) > 2 else places[:1] * 2, INK, 1.4)
                drawing.arrow(places[-2], places[-1], INK, 1.4)
            if places:
                drawing.dots(places[:1], ACCENT, 4)

    def _points(self, drawing: Drawing, scale: Scale) -> None:
        content = self.content
        values, labels = content.point_values, content.point_labels
        # Where there is space the labels stand in the points.
        inside = values is not None and labels is not None and self.cell >= 40
        radius = 10 if inside else 4 if values is None else 5
        for i, point in enumerate(content.points):
            x, y = self._place(0, *point)
            fill = DOT if values is None else scale.color(values[i])
            drawing.dots([(x, y)], fill, radius, rim=PAPER if values is None else INK)
            if labels is not None and inside:
                drawing.text(x, y, labels[i], _label_size(labels[i], 22), ink_on(fill))
            elif labels is not None:
                drawing.text(x + 6, y - 5, labels[i], 10, anchor="left")

    def _place(self, scene: int, x: float, y: float) -> tuple[float, float]:
        (x0, _), (_, y1) = self.extent
        shift = scene * (self.scene_width + SCENE_GAP)
        return float(self._left + shift + self.cell * (x - x0)), float(
            self._top + self.cell * (y1 - y)
        )

    def _box(self, scene: int, x: int, y: int, size: tuple[int, int], inset: float) -> Box:
        left, bottom = self._place(scene, x, y)
        right, top = self._place(scene, x + size[0], y + size[1])
        return left + inset, top + inset, right - inset, bottom - inset

    def _cell_box(self, scene: int, x: int, y: int, inset: float) -> Box:
        sx, sy = self.content.step
        return self._box(scene, x * sx, y * sy, (sx, sy), inset)


def _tick(number: int) -> str:
    return str(number).replace("-", "−")


def _label_size(label: str, width: float) -> float:
    """A font size at which `label` fits a cell `width` pixels wide."""
    return min(12.0, (width - 4) / (0.66 * max(len(label), 1)))


def group_color(group: int) -> str:
    """``"#rrggbb"`` of group (or scene) number `group`; eight differ."""
    return GROUPS[group % len(GROUPS)]


def ink_on(color: str) -> str:
    """Black or white, whichever reads better on `color`."""
    red, green, blue = (c / 255 for c in rgb(color).tolist())
    return "#ffffff" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.52 else INK
