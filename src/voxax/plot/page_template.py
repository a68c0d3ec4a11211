"""The HTML, style and script of the interactive page, without any data.

Parts in double braces are filled in by :mod:`voxax.plot.page`.
"""

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
<h2>Colour</h2>
<div class="modes" id="modes"></div>
<h2 id="legend-title">Classes</h2>
<div id="legend"></div>
<div class="both"><button id="all">all</button><button id="none">none</button></div>
<p id="note"></p>
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
const unlabelled = name => ({name, color: D.ignored, label: -1, points: null});
const verdictKeys = D.verdicts.map((kind, label) => ({...kind, label}));
const nameOf = label => label < 0 ? "none" : D.classes[label].name;
const modes = {
  prediction: {name: "Prediction", labels: prediction, hidden: "class",
    keys: [...classKeys, unlabelled("no prediction")]},
  truth: truth && {name: "Truth", labels: truth, hidden: "class",
    keys: [...classKeys, unlabelled("ignored")]},
  error: truth && {name: "Error", labels: verdict, hidden: "verdict", keys: verdictKeys},
  height: {name: "Height", labels: prediction, hidden: "class",
    keys: [...classKeys, unlabelled("no prediction")]},
};
for (const name of Object.keys(modes)) {
  const mode = modes[name];
  if (!mode) { delete modes[name]; continue; }
  const rows = new Map(mode.keys.map(key => [key.label, []]));
  mode.labels.forEach((label, i) => rows.get(label).push(i));
  mode.keys = mode.keys.filter(key => key.label >= 0 || rows.get(key.label).length);
  mode.rows = rows;
}
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
  if (D.count) Plotly.react(at("view"), traces(), layout, config);
}
function noteOf(key) {
  if (current !== "error" && typeof key.iou === "number") return "IoU " + key.iou.toFixed(3);
  return key.points === null ? "" : key.points.toLocaleString("en");
}
function legend() {
  const mode = modes[current];
  at("legend").replaceChildren(...mode.keys.map(key => {
    const row = document.createElement("label");
    row.className = "key";
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = !hidden[mode.hidden].has(key.label);
    box.addEventListener("change", () => {
      hidden[mode.hidden][box.checked ? "delete" : "add"](key.label);
      draw();
    });
    const dot = document.createElement("i");
    dot.style.background = key.color;
    const name = document.createElement("span"), note = document.createElement("small");
    name.textContent = key.name;
    note.textContent = noteOf(key);
    row.append(box, dot, name, note);
    return row;
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
function show(mode) { current = mode; legend(); draw(); }

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
at("metrics").hidden = !at("metrics").querySelector("table");
if (!D.count) { at("message").hidden = false; at("message").textContent = "no points"; }
// A link may name the colouring: page.html#error
show(Object.hasOwn(modes, location.hash.slice(1)) ? location.hash.slice(1) : "prediction");
</script>
</body>
</html>
"""
