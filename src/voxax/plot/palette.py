"""Colors for classes, numbers and groups in pictures.

A class with a known word in its name (road, car, tree, ...) gets the color of that word in
every picture. Every other class gets a color from a fixed set that is hard to confuse with the
colors of the other classes, for normal and for red-green-blind eyes.

Colors of numbers run from light to dark in one hue, or from orange over white to blue if some
numbers are negative. Groups of points without names get tints of the colors of Okabe and Ito
("Color Universal Design", 2008).
"""

import re
from collections.abc import Sequence

import numpy as np

CORRECT = "#bcc2c9"
WRONG = "#5500ff"  # no class has it, nor one close to it
IGNORED = "#dfe3e7"

# One color per word; the words of a group share a hue and differ in lightness. The last
# word of a class name that is found here decides ("traffic-sign" is a sign). A word in
# REMAINDER decides only if no other word is found ("vegetation and other" is vegetation).
WORDS = {
    # ground: gray-brown
    "ground": "#a08f7d", "road": "#75695f", "floor": "#a39281", "terrain": "#b5a06f",
    "sidewalk": "#c4b29f", "pavement": "#c4b29f", "parking": "#927f91", "surface": "#8d8177",
    "rail": "#5d4a3c", "marking": "#ded3c4",
    # buildings: warm
    "building": "#d9793f", "roof": "#b3502c", "wall": "#e0aa7e", "facade": "#e39a68",
    "house": "#d9793f", "bridge": "#a8604f", "structure": "#a8604f", "manmade": "#c99073",
    "fence": "#9a4f78", "barrier": "#b5709a", "door": "#a5673f", "ceiling": "#d8c9bb",
    "column": "#c98a2b", "beam": "#e2b34f",
    # vehicles: blue
    "vehicle": "#2b6cb8", "car": "#2b6cb8", "truck": "#173f7d", "bus": "#5a9bdc",
    "trailer": "#45608f", "bicycle": "#7f8ff0", "motorcycle": "#5a52c9", "train": "#1d2f5c",
    "window": "#7fb2e5",
    # thin and tall objects: yellow
    "pole": "#e5bf1b", "sign": "#f6dd52", "light": "#f2e38a", "wire": "#b3930d", "cable": "#b3930d",
    "tower": "#8f7a12",
    # plants: green
    "vegetation": "#3c9448", "tree": "#27763a", "trunk": "#6b5a2a", "plant": "#5fb05a",
    "grass": "#8fc263", "bush": "#6fb35c",
    # people and animals: red
    "person": "#d4232f", "pedestrian": "#d4232f", "human": "#d4232f", "bicyclist": "#f0627c",
    "cyclist": "#f0627c", "motorcyclist": "#8f1030", "animal": "#e58b93",
    # water: cyan
    "water": "#22b4cf", "river": "#22b4cf",
    # furniture
    "table": "#b98b5a", "desk": "#b98b5a", "chair": "#8a5fb0", "sofa": "#c06fbf", "bed": "#c98fb4",
    "bookcase": "#6f4e37", "cabinet": "#8c6a4a", "board": "#3f7f86",
}  # fmt: skip
REMAINDER = {
    "clutter": "#82878f", "object": "#82878f", "other": "#9aa0a8", "unclassified": "#9aa0a8",
    "unlabeled": "#c9cdd2", "unlabelled": "#c9cdd2", "noise": "#55585e", "outlier": "#55585e",
}  # fmt: skip

# Twenty-four colors for names without a known word, after Okabe and Ito and Paul Tol's sets.
# Dark and light colors are for more classes than hue alone can distinguish.
GENERIC = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#332288",
    "#882255", "#35e0b8", "#999933", "#aa4499", "#117733", "#ddcc77", "#88ccee", "#7050f1",
    "#663300", "#7f7f7f", "#1b1b3a", "#e3f2a8", "#fdbf9f", "#93ac6b", "#004d4d", "#4a0f2e",
)  # fmt: skip

# Colors closer than this (CIELAB units) are distinguished only side by side.
CONFUSABLE = 6.0


def rgb(color: str) -> np.ndarray:
    """Convert a color ``"#rrggbb"`` to uint8 [3]."""
    return np.frombuffer(bytes.fromhex(color.removeprefix("#")), np.uint8)


def class_colors(class_names: Sequence[str]) -> list[str]:
    """Return one color ``"#rrggbb"`` for each class.

    A name with a known word ("car", "traffic-sign", "Trees") gets that word's color,
    whatever the other classes are. If two names would have the same color, the second is
    treated as a name without a known word. Up to 24 classes all have different colors. With more
    classes, two classes without a known word may have the same color.
    """
    colors: dict[int, str] = {}
    for i, name in enumerate(class_names):
        known = _known_color(str(name))
        if known is not None and known not in colors.values():
            colors[i] = known
    for i in range(len(class_names)):
        if i not in colors:
            colors[i] = _least_confusable(list(colors.values()), i)
    return [colors[i] for i in range(len(class_names))]


def _known_color(name: str) -> str | None:
    # camelCase is split too: "trafficSign"
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
    for known in (WORDS, REMAINDER):
        for word in reversed(words):
            for form in (word, word.removesuffix("s"), word.removesuffix("es")):
                if form in known:
                    return known[form]
    return None


def _least_confusable(taken: list[str], turn: int) -> str:
    free = [color for color in GENERIC if color not in taken]
    if not free:
        return GENERIC[turn % len(GENERIC)]
    if not taken:
        return free[0]
    gap = color_gaps(free, taken).min(axis=1)
    # Early generic colors are the better ones: take the first that is clearly apart.
    clear = np.flatnonzero(gap > 4 * CONFUSABLE)
    return free[clear[0] if clear.size else int(gap.argmax())]


def color_gaps(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return the perceived differences between all pairs of colors, in CIELAB units.

    The result is float64 [len(first), len(second)]. Two differences are computed for each pair, for
    normal eyes and for deuteranopic (red-green-blind) eyes, and the smaller one is returned.
    """
    gaps = []
    for matrix in (np.eye(3), _DEUTERANOPIA):
        a, b = _lab(first, matrix), _lab(second, matrix)
        gaps.append(np.linalg.norm(a[:, None] - b[None], axis=-1))
    return np.minimum(*gaps)


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
_DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
_XYZ = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
) / np.array([[0.9505], [1.0], [1.089]])


def _lab(colors: Sequence[str], vision: np.ndarray) -> np.ndarray:
    srgb = np.stack([rgb(color) for color in colors]) / 255.0
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ vision.T, 0, 1) @ _XYZ.T
    f = np.where(seen > 0.008856, np.cbrt(seen), 7.787 * seen + 16 / 116)
    return np.stack(
        [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1
    )


GROUPS = ("#7db3e3", "#f2b84b", "#7cc9a6", "#e0a3c8", "#f4ee9b", "#5f7a96", "#b5622f", "#d9dde1")
ACCENT = "#c8430a"
UNKNOWN = "#d5d8dc"

_RISING = ("#e6eff8", "#b4d1ea", "#6fa8d6", "#2f78b5", "#124a80")
_SIGNED = ("#b45309", "#eba94f", "#f7f4ee", "#7db0dc", "#1c5c99")


class Scale:
    """A color scale for the numbers of one picture.

    Args:
      values: all numbers of the picture. The scale runs from 0 to the largest absolute value, or
        symmetrically around 0 if some number is negative.
    """

    def __init__(self, values: np.ndarray) -> None:
        values = np.asarray(values, np.float64)
        values = values[np.isfinite(values)]
        self.signed = bool((values < 0).any())
        self.limit = float(np.abs(values).max(initial=0.0)) or 1.0

    def color(self, value: float) -> str:
        """Return the color ``"#rrggbb"`` of `value`, a gray for NaN and infinities."""
        if not np.isfinite(value):
            return UNKNOWN
        part = value / self.limit
        return _blend(_SIGNED, (part + 1) / 2) if self.signed else _blend(_RISING, part)


def _blend(anchors: tuple[str, ...], part: float) -> str:
    place = min(max(part, 0.0), 1.0) * (len(anchors) - 1)
    low = min(int(place), len(anchors) - 2)
    first, second = rgb(anchors[low]).astype(int), rgb(anchors[low + 1]).astype(int)
    mixed = np.rint(first + (place - low) * (second - first)).astype(int)
    return "#" + "".join(f"{c:02x}" for c in mixed)
