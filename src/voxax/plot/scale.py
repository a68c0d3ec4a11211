"""Colours for values and groups on a light ground, told apart by colour-blind eyes too.

Values run along one hue from light to dark; values of both signs from orange over white to
blue. Groups take tints of the set of Okabe and Ito ("Color Universal Design", 2008).
"""

import numpy as np

GROUPS = ("#7db3e3", "#f2b84b", "#7cc9a6", "#e0a3c8", "#f4ee9b", "#5f7a96", "#b5622f", "#d9dde1")
ACCENT = "#c8430a"
UNKNOWN = "#d5d8dc"

_RISING = ("#e6eff8", "#b4d1ea", "#6fa8d6", "#2f78b5", "#124a80")
_SIGNED = ("#b45309", "#eba94f", "#f7f4ee", "#7db0dc", "#1c5c99")


class Scale:
    """Colours for the numbers of one picture.

    Args:
      values: every value of the picture. Without a negative one the scale runs from 0 to
        the largest, otherwise symmetrically around 0.
    """

    def __init__(self, values: np.ndarray) -> None:
        values = np.asarray(values, np.float64)
        values = values[np.isfinite(values)]
        self.signed = bool((values < 0).any())
        self.limit = float(np.abs(values).max(initial=0.0)) or 1.0

    def color(self, value: float) -> str:
        """``"#rrggbb"`` of `value`; one grey for NaN and infinities."""
        if not np.isfinite(value):
            return UNKNOWN
        part = value / self.limit
        return _blend(_SIGNED, (part + 1) / 2) if self.signed else _blend(_RISING, part)


def group_color(group: int) -> str:
    """``"#rrggbb"`` of group (or scene) number `group`; eight differ."""
    return GROUPS[group % len(GROUPS)]


def ink_on(color: str) -> str:
    """Black or white, whichever reads better on `color`."""
    red, green, blue = (c / 255 for c in _rgb(color))
    return "#ffffff" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.52 else "#1c2126"


def _blend(anchors: tuple[str, ...], part: float) -> str:
    place = min(max(part, 0.0), 1.0) * (len(anchors) - 1)
    low = min(int(place), len(anchors) - 2)
    first, second = np.array(_rgb(anchors[low])), np.array(_rgb(anchors[low + 1]))
    mixed = np.rint(first + (place - low) * (second - first)).astype(int)
    return "#" + "".join(f"{c:02x}" for c in mixed)


def _rgb(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color.removeprefix("#")))
