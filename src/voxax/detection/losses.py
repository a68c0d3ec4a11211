"""Losses of center-based detectors. NaN in rows that do not count does not reach the gradients."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from voxax._array_types import Array, Bool, Float, Num
from voxax.detection.boxes import as_boxes, as_floats, bev_corners
from voxax.detection.overlap import bev_iou, iou_3d
from voxax.errors import InputError, check_known

IouLoss = Literal["3d", "bev", "distance"]


def gaussian_focal_loss(
    logits: Num[Array | np.ndarray, "*shape classes"],
    targets: Num[Array | np.ndarray, "*shape classes"],
    valid: Bool[Array | np.ndarray, "*shape"] | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 4.0,
    axis_name: str | tuple[str, ...] | None = None,
) -> Float[Array, ""]:
    """Return the penalty-reduced focal loss of heat maps, divided by the number of centers, ``[]``.

    Args:
      logits: ``[..., classes]``, before the sigmoid.
      targets: ``[..., classes]`` in 0..1; exactly 1 at the centers.
      valid: ``bool[...]``, the cells that count; None counts all.
      alpha: exponent of a prediction's error, which is ``1 - p`` at a center and ``p`` elsewhere.
      beta: exponent of ``1 - target``, a factor that reduces the loss near a center.
      axis_name: name of a mapped axis. The loss and the number of centers are then summed over
        its devices too.

    Raises:
      InputError: wrong shapes.

    Source: Law and Deng, "CornerNet: Detecting Objects as Paired Keypoints", ECCV 2018.
    """
    logits, targets = as_floats(jnp.asarray(logits), jnp.asarray(targets))
    _check_same("targets", targets, "logits", logits)
    counts = _counts(valid, logits.shape[:-1])[..., None]
    zero = jnp.zeros((), logits.dtype)
    logits, targets = jnp.where(counts, logits, zero), jnp.where(counts, targets, zero)
    is_center = targets == 1
    right, wrong = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    center = jnp.exp(alpha * wrong) * right
    # log(1 - p) of a rounded p would be infinite for a confident prediction.
    around = (1 - targets) ** beta * jnp.exp(alpha * right) * wrong
    total = jnp.sum(jnp.where(counts, jnp.where(is_center, center, around), zero))
    number = jnp.sum(is_center & counts, dtype=jnp.int32).astype(logits.dtype)
    if axis_name is not None:
        total, number = jax.lax.psum((total, number), axis_name)
    return -total / jnp.maximum(number, jnp.ones((), logits.dtype))


def code_loss(
    codes: Num[Array | np.ndarray, "*shape code"],
    targets: Num[Array | np.ndarray, "*shape code"],
    mask: Bool[Array | np.ndarray, "*shape"],
    weights: Num[Array | np.ndarray, " code"] | None = None,
    axis_name: str | tuple[str, ...] | None = None,
) -> Float[Array, " code"]:
    """Return the L1 loss of box codes, ``[D]``: for each column the mean over boxes that count.

    Args:
      codes: ``[..., M, D]``, predicted codes, gathered at the ``rows`` of a
        :class:`voxax.detection.CenterTargets`.
      targets: ``[..., M, D]``; NaN, as for an unknown velocity, does not count.
      mask: ``bool[..., M]``, the boxes that count.
      weights: ``[D]``, a factor for each column; None is 1.
      axis_name: name of a mapped axis. The mean is then taken over the boxes that count on all
        its devices.

    Raises:
      InputError: wrong shapes.
    """
    codes, targets = as_floats(jnp.asarray(codes), jnp.asarray(targets))
    _check_same("targets", targets, "codes", codes)
    counts = _counts(mask, codes.shape[:-1])[..., None] & ~jnp.isnan(targets)
    zero, one = jnp.zeros((), codes.dtype), jnp.ones((), codes.dtype)
    away = jnp.abs(jnp.where(counts, codes, zero) - jnp.where(counts, targets, zero))
    axes = tuple(range(codes.ndim - 1))
    number = jnp.sum(counts, axis=axes, dtype=jnp.int32).astype(codes.dtype)
    total = jnp.sum(away, axis=axes)
    if axis_name is not None:
        total, number = jax.lax.psum((total, number), axis_name)
    loss = total / jnp.maximum(number, one)
    if weights is None:
        return loss
    factors = jnp.asarray(weights, codes.dtype)
    if factors.shape != loss.shape:
        raise InputError(
            f"weights of shape {list(factors.shape)} for {loss.shape[0]} columns: give "
            f"[{loss.shape[0]}]"
        )
    return loss * factors


def iou_loss(
    boxes: Num[Array | np.ndarray, "*shape box"],
    targets: Num[Array | np.ndarray, "*shape _"],
    mask: Bool[Array | np.ndarray, "*shape"],
    kind: IouLoss = "3d",
) -> Float[Array, ""]:
    """Return the mean of ``1 - IoU`` over the boxes that count, ``[]``; 0 if no box counts.

    Args:
      boxes: ``[..., 7]`` or ``[..., 9]``, predicted boxes.
      targets: ``[..., 7]`` or ``[..., 9]`` with the leading axes of ``boxes``.
      mask: ``bool[...]``, the boxes that count.
      kind: name of the loss. ``"3d"`` takes the IoU of volumes, ``"bev"`` the IoU seen from above.
        ``"distance"`` takes the IoU of volumes, and adds to the loss the squared distance of the
        centers over the squared diagonal of the box around both. The gradient of this term moves
        disjoint boxes together.

    Raises:
      InputError: wrong shapes, an unknown kind, or (unless traced) invalid boxes that count.

    Source: Zheng et al., "Distance-IoU Loss: Faster and Better Learning for Bounding Box
    Regression", AAAI 2020.
    """
    check_known("IoU loss", kind, get_args(IouLoss))
    # Shapes first, because the mask selects which values are checked.
    boxes, targets = (
        as_boxes(jnp.asarray(table), name, False)[..., :7]
        for name, table in (("boxes", boxes), ("targets", targets))
    )
    boxes, targets = as_floats(boxes, targets)
    _check_same("targets", targets, "boxes", boxes)
    mask = _counts(mask, boxes.shape[:-1])
    as_boxes(boxes, "boxes", mask)
    as_boxes(targets, "targets", mask)
    zero, one = jnp.zeros((), boxes.dtype), jnp.ones((), boxes.dtype)
    a, b = (jnp.where(mask[..., None], x, one) for x in (boxes, targets))
    loss = 1 - (bev_iou if kind == "bev" else iou_3d)(a, b)
    if kind == "distance":
        loss = loss + _distance(a, b)
    number = jnp.sum(mask, dtype=jnp.int32).astype(boxes.dtype)
    return jnp.sum(jnp.where(mask, loss, zero)) / jnp.maximum(number, one)


def _distance(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return for pairs of boxes the squared distance of their centers, as a fraction ``[...]``.

    It is divided by the squared diagonal of the axis-aligned box around both boxes.
    """
    flat = jnp.concatenate([bev_corners(a), bev_corners(b)], axis=-2)
    sides = [
        jnp.max(flat[..., axis], axis=-1) - jnp.min(flat[..., axis], axis=-1) for axis in (0, 1)
    ]
    top = jnp.maximum(a[..., 2] + 0.5 * a[..., 5], b[..., 2] + 0.5 * b[..., 5])
    bottom = jnp.minimum(a[..., 2] - 0.5 * a[..., 5], b[..., 2] - 0.5 * b[..., 5])
    diagonal = sum(side * side for side in (*sides, top - bottom))
    apart = jnp.sum((a[..., :3] - b[..., :3]) ** 2, axis=-1)
    return apart / jnp.maximum(diagonal, jnp.finfo(a.dtype).tiny)


def _counts(mask: Any, shape: tuple[int, ...]) -> jax.Array:
    counts = jnp.ones(shape, bool) if mask is None else jnp.asarray(mask, bool)
    if counts.shape != shape:
        raise InputError(f"mask of shape {list(counts.shape)}: give {list(shape)}")
    return counts


def _check_same(name: str, array: Any, other: str, like: Any) -> None:
    if array.shape != like.shape or not array.ndim:
        raise InputError(
            f"{name} of shape {list(array.shape)} for {other} of shape {list(like.shape)}"
        )
