"""One PNG that shows a segmentation from above and in perspective."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from . import labels as lab
from ._extra import require
from ._write import write_atomically
from .camera import Scene, compose, from_above, in_perspective
from .palette import CORRECT, IGNORED, WRONG, class_colors, rgb
from .raster import rasterize
from .sheet import Entry, Sheet

# Beyond this many points a picture looks no different, and only takes longer.
MOST_DRAWN = 1_500_000
WIDTH, MARGIN, GAP = 2000, 40, 20
PAPER, PANEL = "#ffffff", "#f7f8f9"


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
    """Draw a labelled cloud from above and in perspective, and return the path.

    With `truth`: columns truth, prediction and error. Without: prediction and height.
    The first row is seen from above (to scale, with a bar), the second by a camera
    raised behind the scene. Long tails, such as the few far returns of a LiDAR sweep,
    are left out, and so are points of a class named "ceiling", which would hide a room;
    the picture says so. All numbers in the legend and headings count every point.

    Args:
        path: the PNG to write; it appears at once or not at all.
        positions: [N, 3] floats, metres. Rows with a coordinate that is not finite are
            not drawn. N may be 0: the picture then says "no points".
        prediction: [N] integers, class of each point; negative is "no prediction".
        truth: [N] integers or None; negative (-1) is "ignored".
        class_names: the name of class 0, 1, ...; colours follow the names.
        iou: intersection over union in [0, 1] by class name or number, for the legend;
            without it the legend gives numbers of points.
        up: the cloud's axis that points up: "z", "y", or "-y" (a camera's own frame, with
            y down and z forward).
        origin_view: "auto", or where the camera of the perspective stands as seen from
            the scene's centre: (azimuth, elevation) in degrees; azimuth 0 is right of
            the view from above, -90 is its lower edge.

    Raises:
        InputError: shapes, lengths or dtypes do not fit, or `up` is unknown.
        MissingExtraError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    require("matplotlib")
    cloud = lab.labelled(positions, prediction, truth, class_names)
    roof = cloud.ceiling()
    scene = _thinned(compose(cloud.positions, up, origin_view, without=roof))
    colors = class_colors(cloud.class_names)

    columns = _columns(cloud, scene, colors)
    column_width = (WIDTH - 2 * MARGIN - (len(columns) - 1) * GAP) // len(columns)
    tallest = 0.95 if len(columns) == 3 else 0.66
    views = [_fit(*from_above(scene), column_width, tallest, False)]
    views.append(_fit(*in_perspective(scene), column_width, tallest, True))

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
            x = MARGIN + i * (column_width + GAP)
            if view.raster is None:
                sheet.panel(x, y, np.full((view.height, column_width, 3), rgb(PANEL)))
                sheet.message(x + column_width / 2, y + view.height / 2, "no points")
                continue
            sheet.panel(x, y, view.raster.paint(paint, rgb(PANEL)))
            sheet.caption(x + 14, y + 30, ("from above", "in perspective")[row])
            if row == 0:
                sheet.scale_bar(x + 20, y + view.height - 22, view.scale, column_width)
                sheet.axes_mark(
                    x + column_width - 62, y + view.height - 16, scene.right, scene.away
                )
        y += view.height + GAP
    y = sheet.legend(y + 14, entries)
    if truth is None:
        sheet.height_bar(y + 10, *_height_range(scene))
    else:
        sheet.legend(y + 4, _error_entries(cloud))
    return write_atomically(path, _png(sheet))


class _View:
    """A rastered view: its pixels per metre and its size on the sheet."""

    def __init__(self, raster, scale: float, height: int) -> None:
        self.raster, self.scale, self.height = raster, scale, height


def _fit(
    plane: np.ndarray, depth: np.ndarray, width: int, tallest: float, perspective: bool
) -> _View:
    if len(plane) == 0:
        return _View(None, 1.0, int(0.5 * width))
    low, high = plane.min(axis=0), plane.max(axis=0)
    if perspective and len(plane) > 1000:
        # Strays may leave the perspective picture if that brings the others clearly nearer.
        core = np.percentile(plane, [0.7, 99.3], axis=0)
        stray = high - low > 1.15 * (core[1] - core[0])
        low, high = np.where(stray, core[0], low), np.where(stray, core[1], high)
    size = np.maximum(high - low, 1e-9)
    # The caption goes above the points; below those seen from above, the scale bar.
    above, below = (40, 20) if perspective else (46, 66)
    room = width - 48
    height = int(np.clip(size[1] / size[0], 0.3, tallest) * room) + above + below
    scale = float(min(room / size[0], (height - above - below) / size[1]))
    if size.max() <= 1e-6:
        scale = width / 2.0  # a single place: two metres across
    center = (low + high) / 2 + np.array([0.0, (above - below) / 2 / scale])
    raster = rasterize(plane, depth, width, height, center, scale, perspective=perspective)
    return _View(raster, scale, height)


def _columns(
    cloud: lab.Labelled, scene: Scene, colors: list[str]
) -> list[tuple[str, str, np.ndarray]]:
    """Heading, note and [M, 3] uint8 point colours of each column."""
    # The last row is what -1 points at.
    table = np.stack([rgb(color) for color in [*colors, IGNORED]])
    prediction = table[np.maximum(cloud.prediction[scene.index], -1)]
    if cloud.truth is None:
        low, high = _height_range(scene)
        height = scene.points[:, 2] + scene.size[2] / 2 + scene.floor
        viridis = require("matplotlib").colormaps["viridis"]
        shown = (viridis((height - low) / max(high - low, 1e-9))[:, :3] * 255).astype(np.uint8)
        return [("Prediction", "", prediction), ("Height", "", shown)]
    truth = table[np.maximum(cloud.truth[scene.index], -1)]
    verdicts = np.stack([rgb(color) for color in (CORRECT, WRONG, IGNORED)])
    error = verdicts[cloud.verdict()[scene.index]]
    return [
        ("Truth", "", truth),
        ("Prediction", "", prediction),
        ("Error", cloud.error_sentence(), error),
    ]


def _height_range(scene: Scene) -> tuple[float, float]:
    """Heights in metres between which colours change."""
    if len(scene.points) == 0:
        return 0.0, 0.0
    low, high = np.percentile(scene.points[:, 2], [1, 99]) + scene.size[2] / 2 + scene.floor
    return float(low), float(high)


def _class_entries(
    cloud: lab.Labelled, colors: list[str], iou: Mapping[str, float | None] | None
) -> list[Entry]:
    counts = cloud.counts()
    entries = []
    for label in cloud.present():
        name = cloud.class_names[label]
        if iou is None:
            note = f"{counts[label]:,}"
        else:
            value = lab.iou_of(iou, label, name)
            note = "no IoU" if value is None else f"IoU {value:.3f}"
        entries.append(Entry(colors[label], name, note))
    labels = cloud.prediction if cloud.truth is None else cloud.truth
    unlabelled = int((labels < 0).sum())
    if unlabelled and cloud.truth is None:
        entries.append(Entry(IGNORED, "no prediction", f"{unlabelled:,}"))
    return entries


def _error_entries(cloud: lab.Labelled) -> list[Entry]:
    verdict = cloud.verdict()
    kinds = (
        (CORRECT, "correct", lab.RIGHT),
        (WRONG, "wrong", lab.WRONG),
        (IGNORED, "ignored", lab.SKIPPED),
    )
    return [Entry(color, name, f"{int((verdict == kind).sum()):,}") for color, name, kind in kinds]


def _facts(cloud: lab.Labelled, scene: Scene, roof: np.ndarray) -> str:
    """What the reader must know about the drawing itself."""
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


def _thinned(scene: Scene) -> Scene:
    if len(scene.points) <= MOST_DRAWN:
        return scene
    keep = np.sort(np.random.default_rng(0).choice(len(scene.points), MOST_DRAWN, replace=False))
    return replace(scene, points=scene.points[keep], index=scene.index[keep])


def _png(sheet: Sheet) -> bytes:
    buffer = io.BytesIO()
    sheet.write(buffer)
    return buffer.getvalue()
