"""Bars: how many times as long other libraries take as voxax."""

from collections.abc import Sequence
from pathlib import Path

from drawings.drawing import FADED, INK, Drawing

# A row of the table: its words, and a range (least, most) of each column, or none.
Row = tuple[str, Sequence[tuple[float, float] | None]]

_COLORS = (("#0b7285", "#9ccfd8"), ("#5f6a73", "#c5ccd2"))
_WIDTH, _TOP, _BAR, _GAP, _LEFT, _RIGHT = 860, 64, 15, 20, 310, 150


def draw_speed(path: Path, title: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Draw a bar for each range: full color up to the least, faint up to the most.

    Args:
      path: of the picture.
      title: of the picture.
      columns: what each column is compared with.
      rows: the ranges.
    """
    bars = [sum(found is not None for found in ranges) for _, ranges in rows]
    height = _TOP + sum(_BAR * count + _GAP for count in bars) + 46
    most = max(found[1] for _, ranges in rows for found in ranges if found)
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    sheet = Drawing(_WIDTH, height)
    sheet.text(20, 26, title, 15, bold=True, anchor="left")
    y = _TOP
    for (words, ranges), count in zip(rows, bars, strict=True):
        sheet.text(_LEFT - 14, y + _BAR * count / 2, words, 13, anchor="right")
        for (full, faint), found in zip(_COLORS, ranges, strict=True):
            if found is None:
                continue
            low, high = (_LEFT + scale * ratio for ratio in found)
            sheet.boxes([(low, y + 1, high, y + _BAR - 1)], fill=faint)
            sheet.boxes([(_LEFT, y + 1, low, y + _BAR - 1)], fill=full)
            text = f"{found[0]:.1f} to {found[1]:.1f} times"
            sheet.text(high + 8, y + _BAR / 2, text, 12, INK, anchor="left")
            y += _BAR
        y += _GAP
    one = _LEFT + scale
    sheet.line([(one, _TOP - 12), (one, y - _GAP + 6)], FADED, 1)
    sheet.text(one, _TOP - 20, "as fast as voxax", 11, FADED)
    x = _LEFT
    for (full, _), words in zip(_COLORS, columns, strict=True):
        sheet.boxes([(x, y + 4, x + 12, y + 16)], fill=full)
        sheet.text(x + 20, y + 10, words, 12, anchor="left")
        x += 40 + 7.2 * len(words)
    sheet.write(path, title)
