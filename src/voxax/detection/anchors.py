"""Anchors: boxes of typical sizes at every cell, relative to which a detector predicts boxes.

A detector predicts class logits, a box code and a direction for each anchor. In the losses, NaN in
rows that do not count reaches neither the loss nor the gradients.

The conventions are those of OpenPCDet, so that its trained weights can be used. IoUs are also
rounded as in OpenPCDet's axis-aligned assigner, so that anchors with almost equal IoUs are ranked
in the same order.

Sources: Yan, Mao, Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018; Lin et
al., "Focal Loss for Dense Object Detection", ICCV 2017; Girshick, "Fast R-CNN", ICCV 2015.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Bool, Float, Int, Num
from voxax.detection.bev_grid import Detections, best_rows, finite_codes
from voxax.detection.boxes import (
    array_module,
    as_boxes,
    as_classes,
    as_floats,
    check_integers,
    check_numbers,
    check_rows,
    check_table,
)
from voxax.errors import InputError, check_whole
from voxax.geometry.call_checks import checked_operator

CODES = 7
"""Number of values in a box code: center, sizes and yaw."""
CODES_WITH_VELOCITY = 10
"""Number of values in a box code with cosine and sine in place of the yaw, and the velocity."""

DIRECTION_OFFSET = 0.78539
"""Yaw at which the first direction bin begins, in radians: pi / 4 as OpenPCDet rounds it."""


@dataclass(frozen=True)
class Anchor:
    """A reference box of one class, repeated at every cell for every yaw. Static and hashable.

    Args:
      size: length, width and height in meters.
      bottom: z of the lower side in meters.
      yaws: yaws in radians; each cell has one anchor for each yaw.
      matched: lowest IoU with a box at which an anchor is matched to that box, see
        :func:`voxax.detection.anchor_targets`.
      unmatched: IoU below which an anchor is background.

    Raises:
      InputError: a size is not positive, there is no yaw, or ``unmatched`` exceeds ``matched``.
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
"""Anchors of OpenPCDet's SECOND for KITTI's classes: car, pedestrian and cyclist."""

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
"""Anchors of OpenPCDet's SECOND with several heads, for the ten detection classes of nuScenes."""


def anchor_boxes(
    anchors: Sequence[Anchor],
    low: Sequence[float],
    high: Sequence[float],
    shape: Sequence[int],
) -> Float[np.ndarray, "X Y A 7"]:
    """Return the anchors of all cells as boxes, ``float64[X, Y, A, 7]``.

    ``A`` is the total number of yaws over all anchors. As in OpenPCDet, the anchors of the first
    and last cells are centered on the border of the region.

    Args:
      anchors: anchors of a cell, in the order of the head's channels.
      low: x and y of the lower corner of the region, in meters.
      high: x and y of the upper corner of the region, in meters.
      shape: numbers of cells, ``(X, Y)``.

    Raises:
      InputError: there are no anchors, a number of cells is not positive, or ``low`` is not below
        ``high``.
    """
    shape = check_integers("shape", shape, 2)
    if min(shape) < 1 or not anchors:
        raise InputError(
            f"{len(anchors)} anchors on a grid of {shape} cells: give at least one of each"
        )
    low, high = check_numbers("low", low, 2), check_numbers("high", high, 2)
    if low[0] >= high[0] or low[1] >= high[1]:
        raise InputError(f"low={low} and high={high}: a region begins below its end on each axis")
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
    """Encode boxes relative to anchors as the residuals ``[..., 7]`` that a network predicts.

    The columns are: the offset of the center, along x and y divided by the anchor's diagonal in the
    plane, along z divided by the anchor's height; the logarithms of box size over anchor size; the
    difference of the yaws.

    Args:
      boxes: ``[..., 7]``, sizes above 0. The result is NumPy if boxes and anchors are.
      anchors: ``[..., 7]``, sizes above 0.

    Raises:
      InputError: wrong shapes, or (unless traced) invalid boxes.
    """
    boxes, anchors = as_floats(as_boxes(boxes), as_boxes(anchors, "anchors"))
    xp = array_module(boxes, anchors)
    offset = (boxes[..., :3] - anchors[..., :3]) / _scales(xp, anchors)
    ratio = xp.log(boxes[..., 3:6] / anchors[..., 3:6])
    return xp.concatenate([offset, ratio, boxes[..., 6:7] - anchors[..., 6:7]], axis=-1)


def decode_residuals(
    codes: Num[Array | np.ndarray, "... code"], anchors: Num[Array | np.ndarray, "... 7"]
) -> Float[Any, "... box"]:
    """Decode residuals relative to anchors to boxes, ``[..., 7]`` or ``[..., 9]``.

    This is the inverse of :func:`encode_residuals`. A code may also have 10 numbers, as OpenPCDet's
    codes for nuScenes: the differences of the yaws' cosines and sines replace the difference of the
    yaws, and the velocity follows. Codes of 10 numbers give boxes ``[..., 9]``.

    Args:
      codes: ``[..., 7]`` or ``[..., 10]``. The result is NumPy if codes and anchors are.
      anchors: ``[..., 7]``.

    Raises:
      InputError: wrong shapes, or (unless traced) invalid anchors.
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
    """Decode one scene's predictions for anchors to the boxes of the highest scores.

    Use ``jax.vmap`` for several scenes. A candidate is an anchor with its most likely class. With
    two direction bins, the code gives the yaw up to half a turn, and the more likely bin decides
    which of the two opposite directions is taken.

    Args:
      logits: ``[X, Y, A * classes]``, before the sigmoid; the channels of one anchor are adjacent.
      codes: ``[X, Y, A * 7]`` or ``[X, Y, A * 10]``, see :func:`decode_residuals`.
      directions: logits of the direction bins, ``[X, Y, A * bins]``; None keeps the yaws of the
        codes.
      anchors: ``[X, Y, A, 7]``, see :func:`anchor_boxes`.
      max_boxes: static number of rows of the result.
      min_score: lowest score of a valid row, in 0..1.
      direction_offset: yaw at which the first bin begins, in radians.

    Raises:
      InputError: wrong shapes, or a number out of range.
    """
    logits, codes, anchors = as_floats(*map(jnp.asarray, (logits, codes, anchors)))
    if anchors.ndim != 4 or anchors.shape[-1] != CODES:
        raise InputError(f"anchors of shape {list(anchors.shape)}: give [X, Y, A, {CODES}]")
    cells, number = tuple(anchors.shape[:2]), anchors.shape[2]
    tables = {"logits": logits, "codes": codes}
    if directions is not None:
        tables["directions"] = jnp.asarray(directions, logits.dtype)
    rows = {name: _by_anchor(name, table, *cells, number) for name, table in tables.items()}
    if codes.shape[2] not in (number * CODES, number * CODES_WITH_VELOCITY):
        raise InputError(
            f"codes of {codes.shape[2]} channels for {number} anchors: give {number * CODES} or "
            f"{number * CODES_WITH_VELOCITY}"
        )
    check_whole("max_boxes", max_boxes)
    if not 0 <= min_score <= 1:
        raise InputError(f"min_score={min_score} must lie in 0..1")
    rows = {name: table.reshape(-1, table.shape[-1]) for name, table in rows.items()}
    flat = anchors.reshape(-1, CODES)
    return _decode(rows, flat, min_score, direction_offset, number=int(max_boxes))


def _by_anchor(name: str, table: Any, *shape: int) -> jax.Array:
    """Check and reshape a table ``[X, Y, A * channels]`` to ``[X, Y, A, channels]``.

    `shape` is ``(X, Y, A)``, and `name` is the table's name in the error for another shape.
    """
    if table.ndim != 3 or table.shape[:2] != shape[:2] or table.shape[2] % shape[2]:
        raise InputError(
            f"{name} of shape {list(table.shape)}: give {list(shape[:2])} and channels of "
            f"{shape[2]} anchors"
        )
    return table.reshape(*shape, -1)


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


BACKGROUND, UNDECIDED = -1, -2
"""Classes of anchors without an object (-1) and of anchors that count in no loss (-2)."""


class AnchorTargets(NamedTuple):
    """Training targets of one scene for ``A`` anchors in each cell.

    Attributes:
      classes: ``int32[X, Y, A]``, the class of the object at an anchor; -1 for no object; -2 for an
        anchor that counts in no loss, because its largest IoU is below ``matched`` but not below
        ``unmatched`` of its :class:`Anchor`.
      codes: ``[X, Y, A, 7]``, see :func:`voxax.detection.encode_residuals`; 0 without an object.
      directions: ``int32[X, Y, A]``, the bin of the object's yaw; 0 without an object.
    """

    classes: jax.Array
    codes: jax.Array
    directions: jax.Array

    @property
    def mask(self) -> jax.Array:
        """Mask of the anchors that have an object, ``bool[X, Y, A]``."""
        return self.classes >= 0


@checked_operator
def anchor_targets(
    boxes: Num[Array | np.ndarray, "M 7"],
    classes: Int[Array | np.ndarray, " M"],
    places: Num[Array | np.ndarray, "X Y A 7"],
    anchors: Sequence[Anchor],
    *,
    direction_bins: int = 2,
    direction_offset: float = DIRECTION_OFFSET,
) -> AnchorTargets:
    """Match one scene's boxes to its anchors, and return the training targets of the anchors.

    Anchors and boxes of the same class are compared by the IoU of their outlines from above. Each
    outline is first turned to the nearer of the x and y axes. An anchor is matched to the box with
    which its IoU is largest. This IoU must be at least the ``matched`` of the class, or the anchor
    must have the largest IoU of all anchors with some box, above 0. Every other anchor with an IoU
    below ``unmatched`` is background. Use ``jax.vmap`` for several scenes.

    Args:
      boxes: ``[M, 7]``.
      classes: ``int[M]``, indices in ``anchors``; negative for rows without a box, whose values
        have no effect.
      places: anchors of all cells, ``[X, Y, A, 7]``, see :func:`voxax.detection.anchor_boxes`.
      anchors: one anchor for each class, static.
      direction_bins: static number of bins that divide a full turn.
      direction_offset: yaw at which the first bin begins, in radians.

    Raises:
      InputError: wrong shapes, another number of yaws in ``anchors`` than in ``places``, or (unless
        traced) invalid boxes or classes.
    """
    boxes, places = jnp.asarray(boxes), jnp.asarray(places)
    check_table(boxes)
    check_rows("classes", classes, len(boxes), "boxes")
    classes = as_classes(classes)
    boxes = as_boxes(boxes, "boxes", classes >= 0)[:, :CODES]
    counts = [len(anchor.yaws) for anchor in anchors]
    if places.ndim != 4 or places.shape[2:] != (sum(counts), CODES):
        raise InputError(
            f"places of shape {list(places.shape)} for {len(counts)} anchors of {sum(counts)} "
            f"yaws: give [X, Y, {sum(counts)}, {CODES}], as anchor_boxes returns"
        )
    check_whole("direction_bins", direction_bins)
    if not _compat.is_traced(classes) and np.any(np.asarray(classes) >= len(counts)):
        raise InputError(
            f"classes go up to {int(np.max(classes))}, there are {len(counts)} anchors: give one "
            "anchor for each class; rows without a box are negative"
        )
    rows = [anchor for anchor, count in zip(anchors, counts, strict=True) for _ in range(count)]
    return _targets(
        *as_floats(boxes, places),
        classes.astype(jnp.int32),
        direction_offset,
        kinds=tuple(np.repeat(np.arange(len(counts)), counts).tolist()),
        matched=tuple(row.matched for row in rows),
        unmatched=tuple(row.unmatched for row in rows),
        bins=int(direction_bins),
    )


@functools.partial(jax.jit, static_argnames=("kinds", "matched", "unmatched", "bins"))
def _targets(
    boxes: jax.Array,
    places: jax.Array,
    classes: jax.Array,
    offset: Any,
    *,
    kinds: tuple[int, ...],
    matched: tuple[float, ...],
    unmatched: tuple[float, ...],
    bins: int,
) -> AnchorTargets:
    dtype, shape = boxes.dtype, places.shape[:3]
    own = jnp.broadcast_to(jnp.asarray(kinds, jnp.int32)[None, None], shape)
    usable = jnp.isfinite(boxes).all(axis=1) & (boxes[:, 3:6] > 0).all(axis=1) & (classes >= 0)
    # The other rows become ones, so that their values reach no result and no gradient.
    boxes = jnp.where(usable[:, None], boxes, jnp.ones((), dtype))
    low, high = _outlines(places)
    area = _area(low, high)
    box_low, box_high = _outlines(boxes)
    box_area = _area(box_low, box_high)

    def compare(row: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        best, nearest, is_best = state
        shared = _area(
            jnp.maximum(low, box_low[row][None, None, None]),
            jnp.minimum(high, box_high[row][None, None, None]),
        )
        union = jnp.maximum(area + box_area[row] - shared, jnp.asarray(1e-6, dtype))
        compared = usable[row] & (own == classes[row])
        iou = jnp.where(compared, shared / union, jnp.asarray(-1, dtype))
        most = jnp.max(iou)
        is_best |= (iou == most) & (most > 0)
        nearest = jnp.where(iou > best, row, nearest)
        return jnp.maximum(best, iou), nearest, is_best

    start = (
        jnp.full(shape, -1, dtype),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape, bool),
    )
    start = _compat.vary_alike(*start, boxes, classes, places)[:3]
    best, nearest, is_best = (
        jax.lax.fori_loop(0, len(boxes), compare, tuple(start)) if len(boxes) else start
    )
    above, below = (jnp.asarray(v, dtype)[None, None] for v in (matched, unmatched))
    mask = is_best | (best >= above)
    found = jnp.where(best < below, BACKGROUND, UNDECIDED)
    codes = jnp.zeros((*shape, CODES), dtype)
    if len(boxes):
        codes = encode_residuals(boxes[nearest], places)
        codes = jnp.where(mask[..., None], codes, jnp.zeros((), dtype))
    turn = jnp.asarray(2 * np.pi, dtype)
    yaw = jnp.mod(codes[..., 6] + places[..., 6] - jnp.asarray(offset, dtype), turn)
    direction = jnp.clip(jnp.floor(yaw / (turn / bins)).astype(jnp.int32), 0, bins - 1)
    return AnchorTargets(jnp.where(mask, own, found), codes, jnp.where(mask, direction, 0))


def _outlines(boxes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the lower and upper corners ``[..., 2]`` of boxes from above, made axis-aligned.

    Each box ``[..., 7]`` is turned around its center so that its length lies along the nearer of
    the x and y axes.
    """
    yaw = boxes[..., 6:7]
    half_turn = jnp.asarray(np.pi, yaw.dtype)
    turned = jnp.abs(yaw - jnp.floor(yaw / half_turn + 0.5) * half_turn)
    size = jnp.where(turned < half_turn / 4, boxes[..., 3:5], boxes[..., 4:2:-1])
    return boxes[..., :2] - size / 2, boxes[..., :2] + size / 2


def _area(low: jax.Array, high: jax.Array) -> jax.Array:
    sides = jnp.maximum(high - low, jnp.zeros((), low.dtype))
    # In some programs XLA fuses the product with a sum that follows, and rounds only once. Then two
    # computations of the same IoU would differ. The minimum prevents the fusion, and changes no
    # number.
    return jnp.minimum(sides[..., 0] * sides[..., 1], jnp.finfo(low.dtype).max)


def sigmoid_focal_loss(
    logits: Num[Array | np.ndarray, "*shape classes"],
    classes: Int[Array | np.ndarray, "*shape"],
    *,
    alpha: float = 0.25,
    gamma: float = 2.0,
) -> Float[Array, "*shape"]:
    """Return the sigmoid focal loss of each row, ``[...]``, summed over the classes.

    Args:
      logits: ``[..., classes]``, before the sigmoid.
      classes: ``int[...]``, the right class; -1 for none, lower values for rows that do not count.
      alpha: weight of the right class; the other classes have the weight ``1 - alpha``.
      gamma: exponent of the probability of the wrong answer, which reduces the loss of easy rows.

    Raises:
      InputError: wrong shapes.
    """
    (logits,) = as_floats(jnp.asarray(logits))
    classes = jnp.asarray(classes)
    if not logits.ndim or classes.shape != logits.shape[:-1]:
        raise _other("classes", classes, "logits", logits)
    counts = (classes >= BACKGROUND)[..., None]
    logits = jnp.where(counts, logits, jnp.zeros((), logits.dtype))
    right = _is_chosen(classes, logits)
    low, high = -jax.nn.log_sigmoid(logits), -jax.nn.log_sigmoid(-logits)
    # Powers of probabilities are computed from logarithms, so that gradients at 0 are finite.
    loss = jnp.where(
        right, alpha * jnp.exp(-gamma * high) * low, (1 - alpha) * jnp.exp(-gamma * low) * high
    )
    return jnp.sum(jnp.where(counts, loss, jnp.zeros((), loss.dtype)), axis=-1)


def residual_loss(
    codes: Num[Array | np.ndarray, "*shape 7"],
    targets: Num[Array | np.ndarray, "*shape 7"],
    mask: Bool[Array | np.ndarray, "*shape"],
    weights: Num[Array | np.ndarray, " 7"] | None = None,
    *,
    beta: float = 1 / 9,
) -> Float[Array, "*shape"]:
    """Return the smooth L1 loss of each row of box codes, ``[...]``, summed over the 7 columns.

    For the yaw, the loss takes the sine of the difference, which is also 0 for half a turn.

    Args:
      codes: ``[..., 7]``, predicted codes.
      targets: ``[..., 7]``, true codes; columns that are NaN add no loss.
      mask: ``bool[...]``, the rows that count; other rows have a loss of 0.
      weights: ``[7]``, factors on the differences of the columns; None for 1.
      beta: difference from which the loss is linear instead of quadratic.

    Raises:
      InputError: wrong shapes, or ``beta`` is not positive.
    """
    codes, targets = as_floats(jnp.asarray(codes), jnp.asarray(targets))
    mask = jnp.asarray(mask, bool)
    if codes.shape[-1:] != (CODES,) or targets.shape != codes.shape:
        raise _other("targets", targets, "codes", codes)
    if mask.shape != codes.shape[:-1]:
        raise _other("mask", mask, "codes", codes)
    if not beta > 0:
        raise InputError(f"beta={beta} must be positive")
    zero = jnp.zeros((), codes.dtype)
    counts = mask[..., None] & ~jnp.isnan(targets)
    away = jnp.where(counts, codes, zero) - jnp.where(counts, targets, zero)
    away = jnp.concatenate([away[..., :6], jnp.sin(away[..., 6:])], axis=-1)
    if weights is not None:
        factors = jnp.asarray(weights, codes.dtype)
        if factors.shape != (CODES,):
            raise InputError(f"weights of shape {list(factors.shape)}: give [{CODES}]")
        away = away * factors.reshape((1,) * (away.ndim - 1) + (CODES,))
    far = jnp.abs(away)
    loss = jnp.where(far < beta, 0.5 * away * away / beta, far - 0.5 * beta)
    return jnp.sum(loss, axis=-1)


def direction_loss(
    logits: Num[Array | np.ndarray, "*shape bins"],
    directions: Int[Array | np.ndarray, "*shape"],
    mask: Bool[Array | np.ndarray, "*shape"],
) -> Float[Array, "*shape"]:
    """Return each row's cross entropy of direction bins, ``[...]``; 0 in rows that do not count.

    Args:
      logits: ``[..., bins]``, before the softmax.
      directions: ``int[...]``, the right bin.
      mask: ``bool[...]``, the rows that count.

    Raises:
      InputError: wrong shapes.
    """
    (logits,) = as_floats(jnp.asarray(logits))
    directions, mask = jnp.asarray(directions), jnp.asarray(mask, bool)
    for name, table in (("directions", directions), ("mask", mask)):
        if not logits.ndim or table.shape != logits.shape[:-1]:
            raise _other(name, table, "logits", logits)
    zero = jnp.zeros((), logits.dtype)
    logits = jnp.where(mask[..., None], logits, zero)
    own = jnp.sum(jnp.where(_is_chosen(directions, logits), logits, zero), axis=-1)
    return jnp.where(mask, jax.nn.logsumexp(logits, axis=-1) - own, zero)


class AnchorLosses(NamedTuple):
    """Three scalar losses of one scene, divided by the number of anchors that have an object.

    Attributes:
      classes: loss of the classes, see :func:`sigmoid_focal_loss`.
      boxes: loss of the box codes, see :func:`residual_loss`.
      directions: loss of the direction bins, see :func:`direction_loss`.
    """

    classes: jax.Array
    boxes: jax.Array
    directions: jax.Array


@checked_operator
def anchor_losses(
    logits: Num[Array | np.ndarray, "X Y A_classes"],
    codes: Num[Array | np.ndarray, "X Y A_codes"],
    directions: Num[Array | np.ndarray, "X Y A_bins"],
    targets: AnchorTargets,
    *,
    code_weights: Num[Array | np.ndarray, " 7"] | None = None,
) -> AnchorLosses:
    """Return the losses of one scene's predictions; use ``jax.vmap`` for several scenes.

    SECOND's loss is class loss + 2 * box loss + 0.2 * direction loss, averaged over scenes.

    Args:
      logits: ``[X, Y, A * classes]``, before the sigmoid; the channels of one anchor are adjacent.
      codes: predicted codes, ``[X, Y, A * 7]``.
      directions: logits of the direction bins, ``[X, Y, A * bins]``.
      targets: targets of the scene, see :func:`voxax.detection.anchor_targets`.
      code_weights: ``[7]``, factors on the differences of the codes, see :func:`residual_loss`.

    Raises:
      InputError: wrong shapes.
    """
    tables = {"logits": logits, "codes": codes, "directions": directions}
    shape = targets.classes.shape
    rows = [_by_anchor(name, jnp.asarray(table), *shape) for name, table in tables.items()]
    mask = targets.mask
    number = jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1)
    losses = (
        sigmoid_focal_loss(rows[0], targets.classes),
        residual_loss(rows[1], targets.codes, mask, code_weights),
        direction_loss(rows[2], targets.directions, mask),
    )
    return AnchorLosses(*(jnp.sum(loss) / number.astype(loss.dtype) for loss in losses))


def _is_chosen(classes: jax.Array, logits: jax.Array) -> jax.Array:
    """Return the one-hot mask of class numbers ``[...]``, in the shape of `logits` ``[..., C]``."""
    columns = jnp.arange(logits.shape[-1], dtype=classes.dtype)
    return classes[..., None] == columns.reshape((1,) * classes.ndim + (-1,))


def _other(name: str, array: Any, like_name: str, like: Any) -> InputError:
    return InputError(
        f"{name} of shape {list(array.shape)} for {like_name} of shape {list(like.shape)}"
    )
