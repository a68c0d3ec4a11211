"""One HTML page with everything in it, to walk around a segmentation in a browser."""

import base64
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path

import numpy as np

from . import labels as lab
from ._extra import require
from ._write import write_atomically
from .camera import OVER_WALLS, Scene, compose, direction
from .page_template import PAGE
from .palette import CORRECT, IGNORED, WRONG, class_colors

MOST_POINTS = 60_000
# Coordinates beyond this lose millimetres in the float32 of a graphics card.
FAR = 10_000.0


def segmentation_html(
    path: str | os.PathLike,
    positions: np.ndarray,
    prediction: np.ndarray,
    truth: np.ndarray | None,
    class_names: Sequence[str],
    *,
    title: str = "",
    summary: Mapping[str, object] | None = None,
    iou: Mapping[str, float | None] | None = None,
    up: str = "z",
) -> Path:
    """Write a page that shows the cloud in 3-D, and return its path.

    Colours can be switched between prediction, truth, error and height, and classes can
    be hidden. The page needs no network: plotly.js (about 5 MB) is inside. At most
    60,000 points are shown, drawn at random with a fixed seed; the page says so. Numbers
    of points in the legend count every point.

    Args:
        path: the page to write; it appears at once or not at all.
        positions: [N, 3] floats, metres; rows with a coordinate that is not finite are
            not shown. N may be 0: the page then says "no points". Shown coordinates are
            rounded to 1/65534 of the longest side.
        prediction: [N] integers, class of each point; negative is "no prediction".
        truth: [N] integers or None; negative (-1) is "ignored".
        class_names: the name of class 0, 1, ...
        title: of the page.
        summary: values by name for the table beside the picture, such as
            ``{"mean IoU": 0.61, "points": 123389}``.
        iou: intersection over union in [0, 1] by class name or number, for the legend.
        up: the cloud's axis that points up: "z", "y" or "-y".

    Raises:
        InputError: shapes, lengths or dtypes do not fit, or `up` is unknown.
        MissingExtraError: plotly is not installed.
        OSError: the file cannot be written.
    """
    plotly = require("plotly.offline")
    cloud = lab.labelled(positions, prediction, truth, class_names)
    scene = compose(cloud.positions, up)
    if cloud.ceiling().any() and up != "-y":
        scene = replace(scene, elevation=OVER_WALLS)
    shown = scene.index
    if len(shown) > MOST_POINTS:
        shown = np.sort(np.random.default_rng(0).choice(shown, MOST_POINTS, replace=False))

    parts = {
        "title": html.escape(title or "Segmentation"),
        "facts": html.escape(_facts(cloud, scene, len(shown))),
        "summary": _table(summary or {}),
        "data": _script_json(_data(cloud, scene, shown, iou)),
        "plotly": plotly.get_plotlyjs(),
    }
    # One pass, so that braces in a title or in plotly.js are never taken for a part.
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], PAGE)
    return write_atomically(path, text.encode())


def _data(
    cloud: lab.Labelled, scene: Scene, shown: np.ndarray, iou: Mapping[str, float | None] | None
) -> dict:
    """What the page's script reads; arrays are base64 of little-endian int16."""
    size = np.abs(scene.to_cloud.T @ scene.size)
    longest = max(float(size.max()), 1e-3)
    # A flat cloud still needs a box with an inside.
    size = np.maximum(size, 0.02 * longest)
    points = cloud.positions[shown]
    center = (points.min(axis=0) + points.max(axis=0)) / 2 if len(points) else np.zeros(3)
    origin = np.where(np.abs(center) + longest > FAR, np.round(center, -2), 0.0)
    step = longest / 65_534
    cells = np.clip(np.rint((points - center) / step), -32_767, 32_767)

    # Plotly's cameras count in units of the box's geometric mean side.
    sides = size / np.cbrt(size.prod())
    eye = scene.to_cloud.T @ direction(scene) * np.linalg.norm(sides) * 0.95
    colors, counts = class_colors(cloud.class_names), cloud.counts()
    verdict = cloud.verdict()
    heights = points @ scene.to_cloud[2] if len(points) else np.zeros(1)
    return {
        "count": len(points),
        "total": len(cloud.positions),
        "cells": _packed(cells),
        "step": step,
        "offset": (center - origin).tolist(),
        "origin": origin.tolist(),
        "range": np.stack([center - origin - size / 2, center - origin + size / 2], 1).tolist(),
        "up": scene.to_cloud[2].tolist(),
        "eye": eye.tolist(),
        "heights": np.percentile(heights, [1, 99]).tolist(),
        "prediction": _packed(np.maximum(cloud.prediction[shown], -1)),
        "truth": None if cloud.truth is None else _packed(np.maximum(cloud.truth[shown], -1)),
        "present": cloud.present(),
        "classes": [
            {
                "name": name,
                "color": colors[label],
                "points": int(counts[label]),
                "iou": lab.iou_of(iou, label, name),
            }
            for label, name in enumerate(cloud.class_names)
        ],
        "verdicts": [
            {"name": name, "color": color, "points": int((verdict == kind).sum())}
            for name, color, kind in (
                ("correct", CORRECT, lab.RIGHT),
                ("wrong", WRONG, lab.WRONG),
                ("ignored", IGNORED, lab.SKIPPED),
            )
        ],
        "ignored": IGNORED,
        "hidden": [i for i, name in enumerate(cloud.class_names) if lab.is_ceiling(name)],
        "errorSentence": cloud.error_sentence(),
    }


def _facts(cloud: lab.Labelled, scene: Scene, shown: int) -> str:
    total = len(cloud.positions)
    if total == 0:
        return "no points"
    facts = [f"{total:,} point{'' if total == 1 else 's'}"]
    if scene.clipped:
        share = lab.percent(len(scene.index), total)
        facts.append(f"extent clipped to where {share} of them are")
    if shown < len(scene.index):
        facts.append(f"{shown:,} of them shown, chosen at random")
    if cloud.dropped:
        facts.append(f"{cloud.dropped:,} without a finite position left out")
    if cloud.ceiling().any():
        facts.append("the ceiling is switched off at first")
    return " · ".join([*facts, "axes in metres"])


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "<i2").tobytes()).decode()


def _script_json(data: dict) -> str:
    # "<" could end the script element; JSON may spell it as an escape everywhere.
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _table(summary: Mapping[str, object]) -> str:
    rows = [
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(_value(value))}</td></tr>"
        for name, value in summary.items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _value(value: object) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return f"{float(value):.4g}"
    return str(value)
