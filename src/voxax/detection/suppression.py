"""Greedy non-maximum suppression with a static number of results, for use inside ``jit``.

Each round takes the candidate with the highest score and compares it with all others. Memory grows
with the number of candidates N, not with N squared. Time grows with N times the number of selected
boxes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Bool, Int, Int32, Num
from voxax.detection.boxes import as_boxes, as_classes, as_floats, as_mask, check_rows, check_table
from voxax.detection.overlap import NmsOverlap, bev_iou, iou_3d
from voxax.errors import InputError, check_known, check_whole
from voxax.geometry.call_checks import checked_operator


class Selected(NamedTuple):
    """Result of a non-maximum suppression: the boxes that it keeps.

    Attributes:
      indices: ``int32[max_selected]``, the selected rows of the input by falling score; the entries
        after the first ``num_selected`` are -1.
      num_selected: ``int32[]``, the number of selected rows.
      num_remaining: ``int32[]``, the number of candidates that were neither selected nor
        suppressed because ``max_selected`` was reached; 0 if ``max_selected`` was large enough.
    """

    indices: Int32[Array, " max_selected"]
    num_selected: Int32[Array, ""]
    num_remaining: Int32[Array, ""]


@checked_operator
def nms(
    boxes: Num[Array | np.ndarray, "N box"],
    scores: Num[Array | np.ndarray, " N"],
    *,
    iou_threshold: float,
    max_selected: int,
    classes: Int[Array | np.ndarray, " N"] | None = None,
    valid: Bool[Array | np.ndarray, " N"] | None = None,
    overlap: NmsOverlap = "bev",
) -> Selected:
    """Select boxes by falling score, and leave out those that overlap a selected box (NMS).

    Args:
      boxes: ``[N, 7]`` or ``[N, 9]``, the boxes of one scene; use ``jax.vmap`` for several scenes.
      scores: ``float[N]``. Among equal scores the lower row is selected first.
      iou_threshold: number in 0..1, which may be traced. A box is suppressed if its IoU with a
        selected box is greater.
      max_selected: static number of results, at least 1.
      classes: ``int[N]``, the class of each box. Only boxes of the same class suppress each other.
        None compares all boxes.
      valid: ``bool[N]``, the rows that take part. The values in other rows have no effect. None
        uses all rows. Rows with a score of -inf and, inside ``jit``, rows with NaN are left out
        too.
      overlap: ``"bev"`` takes the IoU of boxes seen from above, ``"3d"`` the IoU of volumes.

    Returns:
      The selected rows. No gradient flows through them.

    Raises:
      InputError: an array has a wrong shape, ``iou_threshold`` or ``max_selected`` is out of
        range, ``overlap`` is unknown, or values are invalid (checked unless they are traced).
    """
    check_known("overlap", overlap, get_args(NmsOverlap))
    if not _compat.is_traced(iou_threshold) and not 0 <= iou_threshold <= 1:
        raise InputError(f"iou_threshold={iou_threshold} must lie in 0..1")
    rows = jnp.asarray(boxes)
    check_table(rows, "boxes")
    given = _optional(rows.shape[0], scores, classes, valid)
    rows = as_boxes(rows, "boxes", given.valid)
    number = check_whole("max_selected", max_selected)
    return _nms(rows, given, iou_threshold, number=number, overlap=overlap)


@checked_operator
def circle_nms(
    centers: Num[Array | np.ndarray, "N columns"],
    scores: Num[Array | np.ndarray, " N"],
    *,
    radius: float | Num[Array | np.ndarray, " N"],
    max_selected: int,
    classes: Int[Array | np.ndarray, " N"] | None = None,
    valid: Bool[Array | np.ndarray, " N"] | None = None,
) -> Selected:
    """Select boxes by falling score, and leave out those with a center near a selected center.

    This is non-maximum suppression by the distance of centers, seen from above, not by overlap.

    Args:
      centers: ``[N, 2]`` or more columns, such as whole boxes; the first two columns are x and y in
        meters.
      scores, max_selected, classes, valid: as in :func:`nms`.
      radius: distance in meters, above 0. A box at this distance or nearer is suppressed. ``[N]``
        gives each box a radius; the radius of the selected box counts.

    Returns:
      The selected rows. No gradient flows through them.

    Raises:
      InputError: an array has a wrong shape, ``radius`` or ``max_selected`` is out of range, or
        values are invalid (checked unless they are traced).

    Source: Yin, Zhou and Krähenbühl, "Center-based 3D Object Detection and Tracking", CVPR 2021.
    """
    (rows,) = as_floats(jnp.asarray(centers))
    radii = jnp.asarray(radius, rows.dtype)
    if not _compat.is_traced(radii) and not bool(np.all((radii > 0) & (radii < np.inf))):
        raise InputError(f"radius={radius} must be positive and finite, in meters")
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise InputError(
            f"centers of shape {list(rows.shape)}: give [N, 2] or more columns, x and y first"
        )
    given = _optional(rows.shape[0], scores, classes, valid)
    if radii.ndim:
        check_rows("radius", radii, len(rows), "centers")
    radii = jnp.broadcast_to(radii, rows.shape[:1])
    rows = rows[:, :2]
    if not _compat.is_traced(rows, given.valid):
        bad = ~np.isfinite(np.asarray(rows)).all(axis=1) & np.asarray(given.valid)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"centers[{row}] is {np.asarray(rows)[row].tolist()}: leave such rows out with "
                "valid="
            )
    return _circle_nms(rows, given, radii, number=check_whole("max_selected", max_selected))


class _Given(NamedTuple):
    scores: jax.Array
    classes: jax.Array | None
    valid: jax.Array


def _optional(number: int, scores: Any, classes: Any, valid: Any) -> _Given:
    """Check the scores, classes and valid rows of `number` boxes, and return them as JAX arrays.

    If `valid` is None, all rows are valid; if `classes` is None, it stays None. Raise InputError
    for wrong shapes, or (unless traced) for NaN in the score of a valid row.
    """
    check_rows("scores", scores, number, "boxes")
    (scores,) = as_floats(jnp.asarray(scores))
    if classes is not None:
        check_rows("classes", classes, number, "boxes")
        classes = as_classes(classes)
    valid = as_mask("valid", valid, number, "boxes")
    if not _compat.is_traced(scores, valid):
        bad = np.isnan(np.asarray(scores)) & np.asarray(valid)
        if bad.any():
            raise InputError(
                f"scores[{int(np.argmax(bad))}] is NaN: leave such rows out with valid="
            )
    return _Given(scores, classes, valid)


@functools.partial(jax.jit, static_argnames=("number", "overlap"))
def _nms(
    boxes: jax.Array, given: _Given, threshold: Any, *, number: int, overlap: NmsOverlap
) -> Selected:
    iou = bev_iou if overlap == "bev" else iou_3d
    boxes = jax.lax.stop_gradient(boxes[:, :7])

    def suppressed(best: jax.Array) -> jax.Array:
        return iou(boxes[best][None], boxes) > jnp.asarray(threshold, boxes.dtype)

    return _greedy(boxes, given, suppressed, number)


@functools.partial(jax.jit, static_argnames=("number",))
def _circle_nms(centers: jax.Array, given: _Given, radii: jax.Array, *, number: int) -> Selected:
    centers = jax.lax.stop_gradient(centers)

    def suppressed(best: jax.Array) -> jax.Array:
        squared = jnp.sum((centers - centers[best][None]) ** 2, axis=1)
        return squared <= radii[best] ** 2

    return _greedy(centers, given, suppressed, number)


def _greedy(
    rows: jax.Array, given: _Given, suppressed: Callable[[jax.Array], jax.Array], number: int
) -> Selected:
    scores = jax.lax.stop_gradient(given.scores)
    finite = jnp.isfinite(rows).all(axis=1)
    lowest = jnp.asarray(-jnp.inf, scores.dtype)
    open_ = given.valid & finite & (scores > lowest)  # NaN is above nothing

    def unfinished(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        count, open_, _ = state
        return (count < number) & jnp.any(open_)

    def select(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        count, open_, indices = state
        best = jnp.argmax(jnp.where(open_, scores, lowest)).astype(jnp.int32)
        gone = suppressed(best)
        if given.classes is not None:
            gone &= given.classes == given.classes[best]
        indices = indices.at[count].set(best)
        return count + 1, (open_ & ~gone).at[best].set(False), indices

    count, indices = jnp.zeros((), jnp.int32), jnp.full(number, -1, jnp.int32)
    count, open_, indices, *_ = _compat.vary_alike(count, open_, indices, scores, rows)
    if not len(scores):
        return Selected(indices, count, count)
    count, open_, indices = jax.lax.while_loop(unfinished, select, (count, open_, indices))
    return Selected(indices, count, jnp.sum(open_, dtype=jnp.int32))
