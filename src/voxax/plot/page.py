"""Self-contained HTML pages that show a segmentation or boxes in 3-D in a browser.

``PAGE`` is the template: HTML, style and script without data. Names in double braces are replaced.
"""

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

from voxax._atomic_file import write_atomically
from voxax.detection import Objects
from voxax.errors import import_extra
from voxax.plot import labels as lab
from voxax.plot.boxed import EDGES, BoxKind, box_kinds
from voxax.plot.camera import OVER_WALLS, Scene, compose, direction, sample_rows
from voxax.plot.palette import IGNORED, class_colors

MOST_POINTS = 60_000
# Larger coordinates lose millimeters in the float32 arithmetic of a graphics card.
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
    """Write an HTML page that shows a labeled point cloud in 3-D, and return its path.

    The reader can choose colors by prediction, truth, error or height, and hide classes. The page
    contains plotly.js (about 5 MB) and needs no network. It shows at most 60,000 points, chosen at
    random with a fixed seed, and states this. Numbers in the legend count all points.

    Args:
      path, positions, prediction, truth, class_names, title, iou, up: as in
          :func:`voxax.plot.segmentation_png`, with the same errors. Shown coordinates are
          rounded to 1/65534 of the longest side of the drawn box.
      summary: values by name for the table beside the picture, such as
          ``{"mean IoU": 0.61, "points": 123389}``.

    Raises:
      MissingExtraError: plotly is not installed.
    """
    cloud = lab.labeled(positions, prediction, truth, class_names)
    return _write(path, cloud, title or "Segmentation", summary, iou, up, ())


def _write(
    path: str | os.PathLike,
    cloud: lab.Labeled,
    title: str,
    summary: Mapping[str, object] | None,
    iou: Mapping[str, float | None] | None,
    up: str,
    kinds: Sequence[BoxKind],
) -> Path:
    plotly = import_extra("drawing", "plot", "plotly.offline")
    scene = compose(cloud.positions, up)
    if cloud.ceiling().any() and up != "-y":
        scene = replace(scene, elevation=OVER_WALLS)
    shown = scene.index[sample_rows(len(scene.index), MOST_POINTS)]

    data = _data(cloud, scene, shown, iou, kinds)
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    parts = {
        "title": html.escape(title),
        "facts": html.escape(_facts(cloud, scene, len(shown))),
        "summary": _table(summary or {}),
        # "<" could end the script element, and JSON allows its escape everywhere.
        "data": text.replace("<", "\\u003c"),
        "plotly": plotly.get_plotlyjs(),
    }
    # One pass, so that braces in a title or in plotly.js are never replaced.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], PAGE)
    return write_atomically(path, page.encode())


def detection_html(
    path: str | os.PathLike,
    positions: np.ndarray,
    found: Objects | None,
    truth: Objects | None,
    class_names: Sequence[str],
    *,
    title: str = "",
    summary: Mapping[str, object] | None = None,
    up: str = "z",
) -> Path:
    """Write an HTML page that shows object boxes in a point cloud in 3-D, and return its path.

    Found boxes have a solid line in the color of their class, and show their score. True boxes have
    a dashed black line. The reader can hide the boxes of a class, and found boxes with low scores.

    Args:
      path, positions, found, truth, class_names: as in :func:`voxax.plot.detection_png`, with the
          same errors.
      title, summary, up: as in :func:`segmentation_html`.
    """
    nothing = np.full(len(lab.checked_positions(positions)), -1)
    kinds = box_kinds(found, truth, class_names)
    cloud = lab.labeled(positions, nothing, None, ())
    return _write(path, cloud, title or "Detection", summary, None, up, kinds)


def _data(
    cloud: lab.Labeled,
    scene: Scene,
    shown: np.ndarray,
    iou: Mapping[str, float | None] | None,
    kinds: Sequence[BoxKind],
) -> dict:
    """Return the data for the page's script, as a dict that JSON can encode.

    Arrays are little-endian int16 in base64. `shown` has the rows in `cloud` of the points to show.
    `iou` has the IoU of each class, by name or number. `kinds` are the groups of boxes.
    """
    size = np.abs(scene.to_cloud.T @ scene.size)
    longest = max(float(size.max()), 1e-3)
    # A flat cloud still needs a box of positive volume.
    size = np.maximum(size, 0.02 * longest)
    points = cloud.positions[shown]
    center = (points.min(axis=0) + points.max(axis=0)) / 2 if len(points) else np.zeros(3)
    origin = np.where(np.abs(center) + longest > FAR, np.round(center, -2), 0.0)
    step = longest / 65_534
    cells = np.clip(np.rint((points - center) / step), -32_767, 32_767)

    # The unit of plotly for cameras is the geometric mean of the sides of the box.
    sides = size / np.cbrt(size.prod())
    eye = scene.to_cloud.T @ direction(scene) * np.linalg.norm(sides) * 0.95
    colors, counts = class_colors(cloud.class_names), cloud.counts()
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
            {"name": name, "color": color, "points": points}
            for name, color, points in cloud.verdict_counts()
        ],
        "ignored": IGNORED,
        "hidden": [i for i, name in enumerate(cloud.class_names) if lab.is_ceiling(name)],
        "errorSentence": cloud.error_sentence(),
        "boxes": [_boxes(kind, origin) for kind in kinds],
        "edges": EDGES.tolist(),
    }


def _boxes(kind: BoxKind, origin: np.ndarray) -> dict:
    scores = [round(s, 4) if np.isfinite(s) else None for s in kind.scores.tolist()]
    return {
        "name": kind.name,
        "color": kind.color,
        "dash": "dash" if kind.is_true else "solid",
        "corners": (kind.corners - origin).round(3).tolist(),
        "scores": scores,
        "labels": list(kind.labels),
    }


def _facts(cloud: lab.Labeled, scene: Scene, shown: int) -> str:
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
    return " · ".join([*facts, "axes in meters"])


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "<i2").tobytes()).decode()


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


PAGE = r"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<style>
:root { --ink: #1c2126; --faded: #667079; --line: #e2e6ea; --paper: #fff; --desk: #f4f6f8;
  --accent: #2b6cb8; }
* { box-sizing: border-box; }
html, body { height: 100%; margin: 0; }
body { display: grid; grid-template: auto 1fr / 300px 1fr; color: var(--ink);
  background: var(--desk); font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
header { grid-column: 1 / -1; padding: 14px 20px 12px; background: var(--paper);
  border-bottom: 1px solid var(--line); }
h1 { margin: 0; font-size: 20px; line-height: 1.25; overflow-wrap: anywhere; }
header p { margin: 3px 0 0; color: var(--faded); }
aside { overflow-y: auto; padding: 16px 20px; background: var(--paper);
  border-right: 1px solid var(--line); }
main { position: relative; min-width: 0; min-height: 320px; }
#view { position: absolute; inset: 0; }
#message { position: absolute; inset: 0; display: grid; place-items: center; padding: 24px;
  font-size: 18px; color: var(--faded); text-align: center; }
[hidden] { display: none !important; }
h2 { margin: 18px 0 6px; font-size: 12px; letter-spacing: .04em; text-transform: uppercase;
  color: var(--faded); }
aside > h2:first-child { margin-top: 0; }
.modes { display: grid; grid-template-columns: 1fr 1fr; gap: 6px; }
button { font: inherit; color: inherit; padding: 6px 8px; cursor: pointer;
  background: var(--paper); border: 1px solid var(--line); border-radius: 6px; }
button:hover { border-color: var(--faded); }
button[aria-pressed="true"] { color: #fff; background: var(--accent);
  border-color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.key { display: grid; grid-template-columns: auto auto 1fr auto; gap: 8px; align-items: center;
  padding: 2px 0; cursor: pointer; }
.key input { margin: 0; }
.key i { width: 13px; height: 13px; border-radius: 50%; border: 1px solid #0003; }
.key span { overflow-wrap: anywhere; }
.key i.line { width: 18px; height: 0; border: 0; border-top: 3px solid; border-radius: 0; }
.key i.dash { border-top-style: dashed; }
.key small, #note { color: var(--faded); font-variant-numeric: tabular-nums; }
.both { display: flex; gap: 6px; margin-top: 6px; }
.both button { padding: 2px 10px; font-size: 12px; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: 4px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
th { font-weight: normal; text-align: left; color: var(--faded); padding-right: 12px; }
td { text-align: right; font-variant-numeric: tabular-nums; }
input[type="range"] { width: 100%; accent-color: var(--accent); }
@media (max-width: 760px) {
  body { grid-template: auto 60vh auto / 1fr; }
  main { grid-row: 2; } aside { border: 0; }
}
</style>
</head>
<body>
<header><h1>{{title}}</h1><p>{{facts}}</p></header>
<aside>
<h2>Color</h2>
<div class="modes" id="modes"></div>
<h2 id="legend-title">Classes</h2>
<div id="legend"></div>
<div class="both" id="both"><button id="all">all</button><button id="none">none</button></div>
<p id="note"></p>
<section id="boxes" hidden><h2>Boxes</h2><div id="kinds"></div>
<h2>Lowest score: <output id="lowest"></output></h2>
<input id="score" type="range" min="0" max="1" step="0.05" value="0.3" aria-label="Lowest score">
</section>
<h2>Size of points</h2>
<input id="size" type="range" min="1" max="8" step="0.5" aria-label="Size of points">
<section id="metrics"><h2>Summary</h2>{{summary}}</section>
</aside>
<main><div id="view"></div><div id="message" hidden></div></main>
<script>{{plotly}}</script>
<script type="application/json" id="data">{{data}}</script>
<script>
"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const shorts = text => new Int16Array(
  Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer);
const plain = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

const cells = shorts(D.cells);
const place = [0, 1, 2].map(axis => Float32Array.from({length: D.count},
  (_, i) => D.offset[axis] + cells[3 * i + axis] * D.step));
const prediction = shorts(D.prediction);
const truth = D.truth === null ? null : shorts(D.truth);
const verdict = truth === null ? null
  : truth.map((label, i) => label < 0 ? 2 : +(label !== prediction[i]));
const height = Float32Array.from({length: D.count}, (_, i) => [0, 1, 2].reduce(
  (sum, axis) => sum + D.up[axis] * (place[axis][i] + D.origin[axis]), 0));

const classKeys = D.present.map(label => ({...D.classes[label], label}));
const unlabeled = name => ({name, color: D.ignored, label: -1, points: null});
const verdictKeys = D.verdicts.map((kind, label) => ({...kind, label}));
const nameOf = label => label < 0 ? "none" : D.classes[label].name;
const modes = {
  prediction: {name: "Prediction", labels: prediction, hidden: "class",
    keys: [...classKeys, unlabeled("no prediction")]},
  truth: truth && {name: "Truth", labels: truth, hidden: "class",
    keys: [...classKeys, unlabeled("ignored")]},
  error: truth && {name: "Error", labels: verdict, hidden: "verdict", keys: verdictKeys},
  height: {name: "Height", labels: prediction, hidden: "class",
    keys: [...classKeys, unlabeled("no prediction")]},
};
for (const name of Object.keys(modes)) {
  const mode = modes[name];
  if (!mode) { delete modes[name]; continue; }
  const rows = new Map(mode.keys.map(key => [key.label, []]));
  mode.labels.forEach((label, i) => rows.get(label).push(i));
  mode.keys = mode.keys.filter(key => key.points || rows.get(key.label).length);
  mode.rows = rows;
}
if (!D.classes.length) delete modes.prediction;  // boxes in a scan without classes
const hidden = {class: new Set(D.hidden), verdict: new Set()};
let current = "prediction";
at("size").value = D.count > 20000 ? 2 : D.count > 2000 ? 3 : 6;

function traces() {
  const mode = modes[current];
  return mode.keys.filter(key => mode.rows.get(key.label).length).map(key => {
    const rows = mode.rows.get(key.label);
    const pick = values => Float32Array.from(rows, i => values[i]);
    const marker = {size: +at("size").value, opacity: 1, color: key.color, line: {width: 0}};
    if (current === "height") Object.assign(marker, {color: pick(height),
      colorscale: "Viridis", cmin: D.heights[0], cmax: D.heights[1], showscale: false});
    return {type: "scatter3d", mode: "markers", name: plain(key.name), marker,
      x: pick(place[0]), y: pick(place[1]), z: pick(place[2]),
      visible: !hidden[mode.hidden].has(key.label),
      text: rows.map(i => plain("predicted " + nameOf(prediction[i])
        + (truth ? ", truth " + nameOf(truth[i]) : ""))),
      hovertemplate: "%{text}<br>%{x:.5~g}, %{y:.5~g}, %{z:.5~g} m<extra></extra>"};
  });
}
const hiddenKinds = new Set();
function boxTraces() {
  const lowest = +at("score").value;
  return D.boxes.flatMap((kind, number) => {
    const rows = kind.scores.flatMap((score, i) => score === null || score >= lowest ? [i] : []);
    const visible = !hiddenKinds.has(number), line = [[], [], []], text = [];
    for (const i of rows) for (const [a, b] of D.edges) for (const axis of [0, 1, 2]) {
      const from = kind.corners[i][a][axis], to = kind.corners[i][b][axis];
      line[axis].push(from, to, null);
    }
    for (const i of rows) text.push(kind.scores[i] === null ? "" : kind.scores[i].toFixed(2));
    const top = axis => rows.map(i => kind.corners[i].slice(4).reduce(
      (sum, corner) => sum + corner[axis] / 4, 0) + (axis === 2 ? 0.3 : 0));
    const told = rows.map(i => plain(kind.name + (kind.scores[i] === null
      ? " " + kind.labels[i] : ", score " + kind.scores[i].toFixed(2))));
    const own = {type: "scatter3d", name: plain(kind.name), visible};
    return [
      {...own, mode: "lines", x: line[0], y: line[1], z: line[2], hoverinfo: "skip",
        line: {color: kind.color, width: kind.dash === "dash" ? 3 : 5, dash: kind.dash}},
      {...own, mode: "markers+text", x: top(0), y: top(1), z: top(2), text,
        textfont: {color: kind.color, size: 12}, textposition: "top center",
        marker: {size: 2, color: kind.color}, customdata: told,
        hovertemplate: "%{customdata}<br>%{x:.5~g}, %{y:.5~g} m<extra></extra>"},
    ];
  });
}
function keyRow(off, key, mark, words, told) {
  const row = document.createElement("label");
  row.className = "key";
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = !off.has(key);
  box.addEventListener("change", () => {
    off[box.checked ? "delete" : "add"](key);
    draw();
  });
  const name = document.createElement("span"), note = document.createElement("small");
  name.textContent = words;
  note.textContent = told;
  row.append(box, mark, name, note);
  return row;
}
function boxLegend() {
  at("boxes").hidden = !D.boxes.length;
  at("lowest").textContent = (+at("score").value).toFixed(2);
  const lowest = +at("score").value;
  at("kinds").replaceChildren(...D.boxes.map((kind, number) => {
    const line = document.createElement("i");
    line.className = "line " + kind.dash;
    line.style.borderTopColor = kind.color;
    const count = kind.scores.filter(s => s === null || s >= lowest).length;
    return keyRow(hiddenKinds, number, line, kind.name, count);
  }));
}
function axis(name, i) {
  const from = D.origin[i] ? " from " + D.origin[i].toLocaleString("en") : "";
  return {title: {text: name + from + " (m)"}, range: D.range[i], showspikes: false,
    backgroundcolor: "#f4f6f8", gridcolor: "#dde2e7", zerolinecolor: "#dde2e7",
    showbackground: true, color: "#667079", nticks: 7};
}
const [ux, uy, uz] = D.up, [ex, ey, ez] = D.eye;
const layout = {showlegend: false, margin: {l: 0, r: 0, t: 0, b: 0}, uirevision: "keep",
  paper_bgcolor: "#f4f6f8", font: {family: "system-ui, DejaVu Sans, sans-serif", size: 11},
  hoverlabel: {align: "left"},
  scene: {aspectmode: "data", xaxis: axis("x", 0), yaxis: axis("y", 1), zaxis: axis("z", 2),
    dragmode: "orbit", camera: {eye: {x: ex, y: ey, z: ez}, up: {x: ux, y: uy, z: uz},
    center: {x: 0, y: 0, z: 0}}}};
// Plotly's default tool bar has a button that uploads the data; this page sends nothing.
const config = {responsive: true, displaylogo: false, showSendToCloud: false,
  modeBarButtonsToRemove: ["tableRotation"], scrollZoom: true};

function draw() {
  if (D.count) Plotly.react(at("view"), traces().concat(boxTraces()), layout, config);
}
function noteOf(key) {
  if (current !== "error" && typeof key.iou === "number") return "IoU " + key.iou.toFixed(3);
  if (key.points === null) return "";
  return key.points ? key.points.toLocaleString("en") : "predicted only";
}
function legend() {
  const mode = modes[current];
  at("legend").replaceChildren(...mode.keys.map(key => {
    const dot = document.createElement("i");
    dot.style.background = key.color;
    return keyRow(hidden[mode.hidden], key.label, dot, key.name, noteOf(key));
  }));
  at("legend-title").textContent = current === "error" ? "Points" : "Classes";
  const meters = value => Number(value.toPrecision(3)).toLocaleString("en") + " m";
  at("note").textContent = current === "error" ? D.errorSentence
    : current === "height" ? "dark " + meters(D.heights[0]) + " to bright "
      + meters(D.heights[1]) + "; boxes hide predicted classes"
    : "";
  for (const button of at("modes").children)
    button.setAttribute("aria-pressed", String(button.dataset.mode === current));
}
function show(mode) { current = mode; legend(); boxLegend(); draw(); }

for (const [name, mode] of Object.entries(modes)) {
  const button = document.createElement("button");
  button.textContent = mode.name;
  button.dataset.mode = name;
  button.addEventListener("click", () => { location.hash = name; show(name); });
  at("modes").append(button);
}
for (const [id, change] of [["all", "delete"], ["none", "add"]])
  at(id).addEventListener("click", () => {
    for (const key of modes[current].keys) hidden[modes[current].hidden][change](key.label);
    show(current);
  });
at("size").addEventListener("input", draw);
at("score").addEventListener("input", () => { boxLegend(); draw(); });
at("metrics").hidden = !at("metrics").querySelector("table");
if (!D.count) { at("message").hidden = false; at("message").textContent = "no points"; }
// A link may name the coloring: page.html#error
show(Object.hasOwn(modes, location.hash.slice(1)) ? location.hash.slice(1)
  : D.classes.length ? "prediction" : "height");
</script>
</body>
</html>
"""
