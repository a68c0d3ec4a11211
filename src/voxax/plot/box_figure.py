"""One PNG that shows found and true boxes in a scan, from above and in perspective."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from voxax._atomic_file import write_atomically
from voxax.detection import Objects
from voxax.plot.boxed import EDGES, BoxKind, box_kinds
from voxax.plot.camera import Scene, compose, from_above, in_perspective, sample_rows
from voxax.plot.figure import (
    GAP,
    MARGIN,
    MOST_DRAWN,
    PANEL,
    PAPER,
    WIDTH,
    Entry,
    Sheet,
    View,
    fit_view,
    require,
)
from voxax.plot.labels import checked_positions
from voxax.plot.palette import rgb

# Boxes with a lower score would hide the others.
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
    """Draw boxes in a scan from above and in perspective, and return the path.

    Found boxes have a full line in the color of their class and their score, true ones a dashed
    black line. Scores that would cover others are left out, the lower ones first.

    Args:
        path: the PNG to write; it appears at once or not at all.
        positions: [N, 3] floats, meters, z up. Rows with a coordinate that is not finite are not
            drawn. N may be 0.
        found: boxes with names of classes and scores; None for none.
        truth: boxes with names of classes; None where it is not known.
        class_names: names of all classes; colors follow the names.
        title: above the picture.
        subtitle: below the title.
        ap: a remark for each class, such as its average precision, for the legend.
        min_score: found boxes with a lower score are not drawn; the picture says so.

    Raises:
        InputError: positions of another shape, or boxes of a class without a name.
        MissingExtraError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    require("matplotlib")
    kinds = box_kinds(found, truth, class_names, min_score)
    cloud = checked_positions(positions)
    cloud = cloud[np.isfinite(cloud).all(axis=1)].astype(np.float64)
    scene = compose(cloud)
    kept = sample_rows(len(scene.points), MOST_DRAWN)
    scene = replace(scene, points=scene.points[kept], index=scene.index[kept])
    width = (WIDTH - 2 * MARGIN - GAP) // 2
    views = [
        fit_view(*from_above(scene), width, 1.0, False),
        fit_view(*in_perspective(scene), width, 1.0, True),
    ]
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
        x = MARGIN + number * (width + GAP)
        whole = np.full((height, width, 3), rgb(PANEL))
        if view.raster is not None:
            drawn = view.raster.paint(color, rgb(PANEL))
            low = (height - view.height) // 2
            whole[low : low + view.height] = drawn
            sheet.panel(x, y, whole)
            _draw_boxes(sheet, (x, y + low, width, view.height), scene, view, kinds, number == 1)
        else:
            sheet.panel(x, y, whole)
            sheet.message(x + width / 2, y + height / 2, "no points")
        sheet.caption(x + 14, y + 30, ("from above", "in perspective")[number])
        if number == 0 and view.raster is not None:
            sheet.scale_bar(x + 20, y + height - 22, view.scale, width)
            sheet.axes_mark(x + width - 62, y + height - 16, scene.right, scene.away)
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
    """[M, 8, 2] pixels from a panel's upper left corner, of [M, 8, 3] places in the cloud."""
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
