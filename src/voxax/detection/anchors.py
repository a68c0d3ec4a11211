"""Anchors: boxes of usual sizes at every cell, to which a detector predicts differences.

Sources: Yan, Mao, Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018, and the
conventions of OpenPCDet, whose weights predict in them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax._array_types import Array, Float, Num
from voxax.detection.boxes import array_module, as_boxes, as_floats, check_integers, check_numbers
from voxax.detection.decoding import Detections, best_rows, finite_codes
from voxax.errors import InputError, check_whole
from voxax.geometry.call_checks import checked_operator

CODES = 7
"""Numbers that code a box: center, sizes and yaw."""
CODES_WITH_VELOCITY = 10
"""The same with cosine and sine of the yaw, and the velocity."""

DIRECTION_OFFSET = 0.78539
"""Where the first direction begins, in radians: an eighth of a turn, as OpenPCDet rounds it."""


@dataclass(frozen=True)
class Anchor:
    """A box that stands at every cell. Static and hashable.

    Args:
      size: length, width and height in meters.
      bottom: height of its lower side.
      yaws: angles, each an anchor of its own.
      matched: IoU from which an anchor has an object, see :func:`voxax.detection.anchor_targets`.
      unmatched: IoU below which it has none.

    Raises:
      InputError: sizes that are not positive, no yaw, or thresholds out of order.
    """

    size: Sequence[float]
    bottom: float
    yaws: Sequence[float] = (0.0, 1.57)
    matched: float = 0.6
    unmatched: float = 0.45

    def __post_init__(self) -> None:
        size = check_numbers("size", self.size, 3)
        yaws = check_numbers("yaws", self.yaws, len(self.yaws))
        (bottom,) = check_numbers("bottom", [self.bottom], 1)
        if min(size) <= 0 or not yaws:
            raise InputError(
                f"an anchor of size {size} with yaws {yaws}: sizes are positive, in meters, and "
                "there is at least one yaw"
            )
        if not 0 < self.unmatched <= self.matched <= 1:
            raise InputError(
                f"unmatched={self.unmatched} and matched={self.matched}: IoUs above 0, the first "
                "at most the second, which is at most 1"
            )
        for name, value in (("size", size), ("yaws", yaws), ("bottom", bottom)):
            object.__setattr__(self, name, value)


KITTI_ANCHORS = (
    Anchor((3.9, 1.6, 1.56), -1.78),
    Anchor((0.8, 0.6, 1.73), -0.6, matched=0.5, unmatched=0.35),
    Anchor((1.76, 0.6, 1.73), -0.6, matched=0.5, unmatched=0.35),
)
"""Anchors for cars, pedestrians and cyclists of OpenPCDet's SECOND for KITTI."""

NUSCENES_ANCHORS = (
    Anchor((4.63, 1.97, 1.74), -0.95),
    Anchor((6.93, 2.51, 2.84), -0.6, matched=0.55, unmatched=0.4),
    Anchor((6.37, 2.85, 3.19), -0.225, matched=0.5, unmatched=0.35),
    Anchor((10.5, 2.94, 3.47), -0.085, matched=0.55, unmatched=0.4),
    Anchor((12.29, 2.90, 3.87), 0.115, matched=0.5, unmatched=0.35),
    Anchor((0.50, 2.53, 0.98), -1.33, matched=0.55, unmatched=0.4),
    Anchor((2.11, 0.77, 1.47), -1.085, matched=0.5, unmatched=0.3),
    Anchor((1.70, 0.60, 1.28), -1.18, matched=0.5, unmatched=0.35),
    Anchor((0.73, 0.67, 1.77), -0.935, matched=0.6, unmatched=0.4),
    Anchor((0.41, 0.41, 1.07), -1.285, matched=0.6, unmatched=0.4),
)
"""Anchors for nuScenes' ten classes of detection, of OpenPCDet's SECOND with several heads."""


def anchor_boxes(
    anchors: Sequence[Anchor],
    low: Sequence[float],
    high: Sequence[float],
    shape: Sequence[int],
) -> Float[np.ndarray, "X Y A 7"]:
    """Return the anchors of all cells, ``float64[X, Y, A, 7]``; A counts the yaws of each.

    As in OpenPCDet, the first and the last cell have theirs on the border of the region.

    Args:
      anchors: in the order of the head's channels.
      low: x and y of the lower corner of the region, in meters.
      high: coordinates of the upper corner.
      shape: numbers of cells, ``(X, Y)``.

    Raises:
      InputError: no anchors, or a number of cells that is not positive.
    """
    shape = check_integers("shape", shape, 2)
    if min(shape) < 1 or not anchors:
        raise InputError(
            f"{len(anchors)} anchors on a grid of {shape} cells: give at least one of each"
        )
    rows = [
        (anchor.bottom + anchor.size[2] / 2, *anchor.size, yaw)
        for anchor in anchors
        for yaw in anchor.yaws
    ]
    boxes = np.zeros((*shape, len(rows), CODES))
    places = [np.linspace(low[axis], high[axis], shape[axis]) for axis in (0, 1)]
    boxes[..., 0], boxes[..., 1] = places[0][:, None, None], places[1][None, :, None]
    boxes[..., 2:] = rows
    return boxes


def encode_residuals(
    boxes: Num[Array | np.ndarray, "... 7"], anchors: Num[Array | np.ndarray, "... 7"]
) -> Float[Any, "... 7"]:
    """Return what a network predicts for boxes at anchors, ``[..., 7]``.

    Columns: the offset of the center along x and y over the anchor's diagonal in the plane, along z
    over its height; the logarithms of the ratios of the sizes; the difference of the yaws.

    Args:
      boxes: ``[..., 7]``, sizes above 0; NumPy in, NumPy out.
      anchors: ``[..., 7]``, sizes above 0.

    Raises:
      InputError: other shapes, or bad boxes that are known.
    """
    boxes, anchors = as_floats(as_boxes(boxes), as_boxes(anchors, "anchors"))
    xp = array_module(boxes, anchors)
    offset = (boxes[..., :3] - anchors[..., :3]) / _scales(xp, anchors)
    ratio = xp.log(boxes[..., 3:6] / anchors[..., 3:6])
    return xp.concatenate([offset, ratio, boxes[..., 6:7] - anchors[..., 6:7]], axis=-1)


def decode_residuals(
    codes: Num[Array | np.ndarray, "... code"], anchors: Num[Array | np.ndarray, "... 7"]
) -> Float[Any, "... box"]:
    """Return the boxes ``[..., 7]`` of codes at anchors: what :func:`encode_residuals` undoes.

    A code of 10 numbers has the differences of the yaws' cosines and sines in place of the last,
    then the velocity, as OpenPCDet's for nuScenes. Its box is ``[..., 9]``.

    Args:
      codes: ``[..., 7]`` or ``[..., 10]``; NumPy in, NumPy out.
      anchors: ``[..., 7]``.

    Raises:
      InputError: other shapes, or bad anchors that are known.
    """
    codes, anchors = as_floats(codes, as_boxes(anchors, "anchors"))
    if codes.shape[-1] not in (CODES, CODES_WITH_VELOCITY):
        raise InputError(
            f"codes of shape {list(codes.shape)}: give [..., {CODES}] or "
            f"[..., {CODES_WITH_VELOCITY}]"
        )
    xp = array_module(codes, anchors)
    center = codes[..., :3] * _scales(xp, anchors) + anchors[..., :3]
    sizes = xp.exp(codes[..., 3:6]) * anchors[..., 3:6]
    yaw = anchors[..., 6:7]
    if codes.shape[-1] == CODES:
        return xp.concatenate([center, sizes, codes[..., 6:7] + yaw], axis=-1)
    yaw = xp.arctan2(codes[..., 7:8] + xp.sin(yaw), codes[..., 6:7] + xp.cos(yaw))
    return xp.concatenate([center, sizes, yaw, codes[..., 8:]], axis=-1)


def _scales(xp: Any, anchors: Any) -> Any:
    diagonal = xp.sqrt(anchors[..., 3:4] ** 2 + anchors[..., 4:5] ** 2)
    return xp.concatenate([diagonal, diagonal, anchors[..., 5:6]], axis=-1)


@checked_operator
def decode_anchors(
    logits: Num[Array | np.ndarray, "X Y A_classes"],
    codes: Num[Array | np.ndarray, "X Y A_codes"],
    directions: Num[Array | np.ndarray, "X Y A_bins"] | None,
    anchors: Num[Array | np.ndarray, "X Y A 7"],
    *,
    max_boxes: int,
    min_score: float = 0.0,
    direction_offset: float = DIRECTION_OFFSET,
) -> Detections:
    """Return the best boxes of one scene's anchors; ``jax.vmap`` maps it over scenes.

    A candidate is an anchor with its most likely class. A code tells the yaw up to half a turn,
    and the direction's bin tells which half.

    Args:
      logits: ``[X, Y, A * classes]``, before the sigmoid; the anchors of a cell side by side.
      codes: ``[X, Y, A * 7]`` or ``[X, Y, A * 10]``, see :func:`decode_residuals`.
      directions: logits of the bins of the yaw, ``[X, Y, A * bins]``; None leaves the yaw.
      anchors: ``[X, Y, A, 7]``, see :func:`anchor_boxes`.
      max_boxes: static number of rows.
      min_score: rows with a lower score are not valid.
      direction_offset: where the first bin begins, in radians.

    Raises:
      InputError: other shapes, or a number out of range.
    """
    logits, codes, anchors = as_floats(*map(jnp.asarray, (logits, codes, anchors)))
    if anchors.ndim != 4 or anchors.shape[-1] != CODES:
        raise InputError(f"anchors of shape {list(anchors.shape)}: give [X, Y, A, {CODES}]")
    cells, number = tuple(anchors.shape[:2]), anchors.shape[2]
    tables = {"logits": logits, "codes": codes}
    if directions is not None:
        tables["directions"] = jnp.asarray(directions, logits.dtype)
    for name, table in tables.items():
        if table.ndim != 3 or tuple(table.shape[:2]) != cells or table.shape[2] % number:
            raise InputError(
                f"{name} of shape {list(table.shape)}: give {list(cells)} and channels of "
                f"{number} anchors"
            )
    if codes.shape[2] not in (number * CODES, number * CODES_WITH_VELOCITY):
        raise InputError(
            f"codes of {codes.shape[2]} channels for {number} anchors: give {number * CODES} or "
            f"{number * CODES_WITH_VELOCITY}"
        )
    check_whole("max_boxes", max_boxes)
    if not 0 <= min_score <= 1:
        raise InputError(f"min_score={min_score} must lie in 0..1")
    rows = {name: table.reshape(anchors[..., 0].size, -1) for name, table in tables.items()}
    flat = anchors.reshape(-1, CODES)
    return _decode(rows, flat, min_score, direction_offset, number=int(max_boxes))


@functools.partial(jax.jit, static_argnames=("number",))
def _decode(
    rows: dict[str, jax.Array], anchors: jax.Array, min_score: Any, offset: Any, *, number: int
) -> Detections:
    logits = rows["logits"]
    classes = jnp.argmax(logits, axis=1).astype(jnp.int32)
    best = jnp.max(logits, axis=1)
    place, scores, kept = best_rows(best, number, min_score)
    codes, kept = finite_codes(
        rows["codes"][place], kept, lambda c: decode_residuals(c, anchors[place])
    )
    boxes = decode_residuals(codes, anchors[place])
    if "directions" in rows:
        bins = rows["directions"][place]
        period = jnp.asarray(2 * np.pi / bins.shape[1], boxes.dtype)
        begin = jnp.asarray(offset, boxes.dtype)
        within = jnp.mod(boxes[:, 6] - begin, period)
        chosen = jnp.argmax(bins, axis=1).astype(boxes.dtype)
        boxes = boxes.at[:, 6].set(within + begin + period * chosen)
    return Detections.of_rows(boxes, scores, classes[place], kept)
