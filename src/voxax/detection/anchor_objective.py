"""What anchor-based detectors should predict, and their losses.

A class, a box code and a direction belong to each anchor. Rows that don't count may hold NaN in
losses, also for gradients.

Sources: Yan, Mao, Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018, and the
axis-aligned assigner of OpenPCDet, whose rounding is kept: anchors that overlap a box equally up to
rounding are told apart alike; Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017;
Girshick, "Fast R-CNN", ICCV 2015.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Bool, Float, Int, Num
from voxax.detection.anchors import CODES, DIRECTION_OFFSET, Anchor, encode_residuals
from voxax.detection.boxes import as_boxes, as_classes, as_floats, check_rows, check_table
from voxax.errors import InputError, check_whole
from voxax.geometry.call_checks import checked_operator

BACKGROUND, UNDECIDED = -1, -2
"""Of an anchor: there is no object; what it predicts counts in no loss."""


class AnchorTargets(NamedTuple):
    """Targets of one scene for ``A`` anchors in each cell.

    Attributes:
      classes: ``int32[X, Y, A]``: the class of the object at an anchor; -1 where there is none, -2
        where an anchor is neither near enough to an object nor far enough, and does not count.
      codes: ``[X, Y, A, 7]``, see :func:`voxax.detection.encode_residuals`; 0 without an object.
      directions: ``int32[X, Y, A]``, the bin of the object's yaw; 0 without an object.
    """

    classes: jax.Array
    codes: jax.Array
    directions: jax.Array

    @property
    def mask(self) -> jax.Array:
        """``bool[X, Y, A]``: the anchors at objects."""
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
    """Return the targets of one scene; ``jax.vmap`` maps it over scenes.

    Anchors and boxes of the same class are compared by the IoU of their outlines from above, each
    turned to the nearer axis. An anchor takes the box with the largest IoU, if that is at least the
    class' ``matched``; the best anchors of a box take theirs in any case. Below ``unmatched`` there
    is no object.

    Args:
      boxes: ``[M, 7]``.
      classes: ``int[M]``, places in ``anchors``; negative for rows without a box, which may hold
        anything.
      places: ``[X, Y, A, 7]``, see :func:`voxax.detection.anchor_boxes`.
      anchors: static, one of each class.
      direction_bins: static, of a turn.
      direction_offset: where the first of them begins, in radians.

    Raises:
      InputError: other shapes, other anchors than the places have, bad boxes or classes that are
        known.
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
    # Of other rows nothing is computed, so that what they hold reaches no result.
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
    """Return the lower and upper corners ``[..., 2]`` from above, turned to the nearer axis."""
    yaw = boxes[..., 6:7]
    half_turn = jnp.asarray(np.pi, yaw.dtype)
    turned = jnp.abs(yaw - jnp.floor(yaw / half_turn + 0.5) * half_turn)
    size = jnp.where(turned < half_turn / 4, boxes[..., 3:5], boxes[..., 4:2:-1])
    return boxes[..., :2] - size / 2, boxes[..., :2] + size / 2


def _area(low: jax.Array, high: jax.Array) -> jax.Array:
    sides = jnp.maximum(high - low, jnp.zeros((), low.dtype))
    # A sum that follows would be rounded together with the product, differently in each of the
    # programs that XLA makes of it, and the best anchor of a box would differ from itself. The
    # minimum, which changes no number, stands between the two.
    return jnp.minimum(sides[..., 0] * sides[..., 1], jnp.finfo(low.dtype).max)


def sigmoid_focal_loss(
    logits: Num[Array | np.ndarray, "*shape classes"],
    classes: Int[Array | np.ndarray, "*shape"],
    *,
    alpha: float = 0.25,
    gamma: float = 2.0,
) -> Float[Array, "*shape"]:
    """Return the focal loss of independent classes, ``[...]``: the sum over the classes.

    Args:
      logits: ``[..., classes]``, before the sigmoid.
      classes: ``int[...]``; -1 where no class is right, lower where nothing counts.
      alpha: weight of what is right; what is wrong has ``1 - alpha``.
      gamma: power of how wrong a prediction is.

    Raises:
      InputError: other shapes.
    """
    (logits,) = as_floats(jnp.asarray(logits))
    classes = jnp.asarray(classes)
    if not logits.ndim or classes.shape != logits.shape[:-1]:
        raise _other("classes", classes, "logits", logits)
    counts = (classes >= BACKGROUND)[..., None]
    logits = jnp.where(counts, logits, jnp.zeros((), logits.dtype))
    right = _is_chosen(classes, logits)
    low, high = -jax.nn.log_sigmoid(logits), -jax.nn.log_sigmoid(-logits)
    # Powers of probabilities through their logarithms, whose gradient is finite at 0 too.
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
    """Return the smooth L1 loss of residuals, ``[...]``: the sum over their columns.

    The last column is compared by the sine of the difference, which is 0 for half a turn too.

    Args:
      codes: ``[..., 7]``, predicted.
      targets: ``[..., 7]``; NaN does not count.
      mask: ``bool[...]``, the rows that count.
      weights: ``[7]``, a factor for each column's difference; None for 1.
      beta: the difference from which the loss grows in a line.

    Raises:
      InputError: other shapes, a beta that is not positive.
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
    """Return the cross entropy of the direction's bins, ``[...]``.

    Args:
      logits: ``[..., bins]``.
      directions: ``int[...]``, the right bin.
      mask: ``bool[...]``, the rows that count.

    Raises:
      InputError: other shapes.
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
    """Losses of one scene, each ``[]``, over the number of its anchors at objects.

    Attributes:
      classes: see :func:`sigmoid_focal_loss`.
      boxes: see :func:`residual_loss`.
      directions: see :func:`direction_loss`.
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
    """Return the losses of one scene's predictions; ``jax.vmap`` maps it over scenes.

    SECOND's loss is their sum with the weights 1, 2 and 0.2, its mean over the scenes.

    Args:
      logits: ``[X, Y, A * classes]``, the anchors of a cell side by side.
      codes: ``[X, Y, A * 7]``.
      directions: ``[X, Y, A * bins]``.
      targets: see :func:`voxax.detection.anchor_targets`.
      code_weights: ``[7]``, see :func:`residual_loss`.

    Raises:
      InputError: other shapes.
    """
    shape = targets.classes.shape
    rows = []
    for name, given in (("logits", logits), ("codes", codes), ("directions", directions)):
        table = jnp.asarray(given)
        if table.ndim != 3 or table.shape[:2] != shape[:2] or table.shape[2] % shape[2]:
            raise InputError(
                f"{name} of shape {list(table.shape)}: give {list(shape[:2])} and channels of "
                f"{shape[2]} anchors"
            )
        rows.append(table.reshape(*shape, -1))
    mask = targets.mask
    number = jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1)
    losses = (
        sigmoid_focal_loss(rows[0], targets.classes),
        residual_loss(rows[1], targets.codes, mask, code_weights),
        direction_loss(rows[2], targets.directions, mask),
    )
    return AnchorLosses(*(jnp.sum(loss) / number.astype(loss.dtype) for loss in losses))


def _is_chosen(classes: jax.Array, logits: jax.Array) -> jax.Array:
    """Return ``bool[..., classes]``: compared, since a TPU gathers one number after the other."""
    columns = jnp.arange(logits.shape[-1], dtype=classes.dtype)
    return classes[..., None] == columns.reshape((1,) * classes.ndim + (-1,))


def _other(name: str, array: Any, like_name: str, like: Any) -> InputError:
    return InputError(
        f"{name} of shape {list(array.shape)} for {like_name} of shape {list(like.shape)}"
    )
