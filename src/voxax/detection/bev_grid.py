"""Ground plane grid in whose cells center-based detectors predict boxes; box coding, decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from voxax._array_types import Array, Bool, Float, Int, Int32, Num
from voxax.detection.boxes import (
    array_module,
    as_boxes,
    as_floats,
    as_mask,
    check_integers,
    check_numbers,
)
from voxax.errors import InputError, check_whole
from voxax.geometry.call_checks import checked_operator


@dataclass(frozen=True)
class BevGrid:
    """Grid of cells on the ground plane, ``X`` along x and ``Y`` along y. Static and hashable.

    A dense map over the grid has the shape ``[X, Y, channels]``. The lower corner of cell
    ``[i, j]`` is ``low + [i, j] * cell``.

    Args:
      low: x and y of the corner where the grid begins, in meters.
      cell: sides of a cell along x and y in meters, which are the voxel size times the stride.
      shape: numbers of cells, ``(X, Y)``.

    Raises:
      InputError: a side or a number of cells is not positive.
    """

    low: Sequence[float]
    cell: Sequence[float]
    shape: Sequence[int]

    def __post_init__(self) -> None:
        cell = check_numbers("cell", self.cell, 2)
        shape = check_integers("shape", self.shape, 2)
        if min(cell) <= 0:
            raise InputError(f"cell={self.cell}: sides must be positive, in meters")
        if min(shape) < 1:
            raise InputError(f"shape={self.shape}: give two numbers of cells, each at least 1")
        object.__setattr__(self, "low", check_numbers("low", self.low, 2))
        object.__setattr__(self, "cell", cell)
        object.__setattr__(self, "shape", shape)

    def places(self, boxes: Any) -> Any:
        """Return the centers of boxes along x and y in units of cells, ``[..., 2]``.

        A center at the lower corner of cell ``[i, j]`` has the values ``[i, j]``.

        Args:
          boxes: ``[..., 2]`` or more columns, x and y first; NumPy in, NumPy out.

        Raises:
          InputError: the boxes are not real numbers.
        """
        (boxes,) = as_floats(boxes)
        xp = array_module(boxes)
        low, cell = (xp.asarray(v, boxes.dtype) for v in (self.low, self.cell))
        shape = (1,) * (boxes.ndim - 1) + (2,)
        return (boxes[..., :2] - low.reshape(shape)) / cell.reshape(shape)

    def cells(self) -> np.ndarray:
        """Return the indices of all cells, ``int32[X * Y, 2]``, in the order of a flattened map."""
        return np.moveaxis(np.indices(self.shape), 0, -1).reshape(-1, 2).astype(np.int32)


@checked_operator
def encode_boxes(
    boxes: Num[Array | np.ndarray, "... box"],
    cells: Int[Array | np.ndarray, "... 2"],
    grid: BevGrid,
) -> Float[Any, "... code"]:
    """Encode boxes relative to cells as the codes ``[..., 8]`` that a network predicts.

    With velocities the codes are ``[..., 10]``. The columns are, in the order of OpenPCDet's heads:
    offset of the center from the lower corner of the cell along x and y, in cells; z in meters;
    logarithms of length, width and height; cosine and sine of yaw; vx and vy.

    Args:
      boxes: ``[..., 7]`` or ``[..., 9]``, sizes above 0; NumPy in, NumPy out.
      cells: ``int[..., 2]``, the cell that predicts each box.
      grid: grid of the cells.

    Raises:
      InputError: wrong shapes, or (unless traced) invalid boxes.
    """
    boxes = as_boxes(boxes)
    xp = array_module(boxes)
    offset = grid.places(boxes) - xp.asarray(cells).astype(boxes.dtype)
    yaw = boxes[..., 6:7]
    parts = [offset, boxes[..., 2:3], xp.log(boxes[..., 3:6]), xp.cos(yaw), xp.sin(yaw)]
    return xp.concatenate([*parts, boxes[..., 7:]], axis=-1)


@checked_operator
def decode_boxes(
    codes: Num[Array | np.ndarray, "... code"],
    cells: Int[Array | np.ndarray, "... 2"],
    grid: BevGrid,
) -> Float[Any, "... box"]:
    """Decode codes relative to cells to boxes, ``[..., 7]`` or ``[..., 9]``.

    This is the inverse of :func:`encode_boxes`.

    Args:
      codes: ``[..., 8]`` or ``[..., 10]``. The vector of cosine and sine need not have length 1.
        NumPy in, NumPy out.
      cells: ``int[..., 2]``, the cell that predicts each box.
      grid: grid of the cells.

    Raises:
      InputError: wrong shapes.
    """
    (codes,) = as_floats(codes)
    if codes.ndim < 1 or codes.shape[-1] not in (8, 10):
        raise InputError(
            f"codes of shape {list(codes.shape)}: give [..., 8] (offset x, y, z, log length, "
            "width, height, cos, sin), or [..., 10] with vx and vy"
        )
    xp = array_module(codes)
    shape = (1,) * (codes.ndim - 1) + (2,)
    low, cell = (xp.asarray(v, codes.dtype).reshape(shape) for v in (grid.low, grid.cell))
    center = (xp.asarray(cells).astype(codes.dtype) + codes[..., :2]) * cell + low
    cos, sin = codes[..., 6:7], codes[..., 7:8]
    # A head that begins with zeros predicts (0, 0). It becomes the angle 0, whose derivative is
    # finite.
    cos = xp.where((cos == 0) & (sin == 0), xp.ones((), codes.dtype), cos)
    yaw = xp.arctan2(sin, cos)
    parts = [center, codes[..., 2:3], xp.exp(codes[..., 3:6]), yaw, codes[..., 8:]]
    return xp.concatenate(parts, axis=-1)


class Detections(NamedTuple):
    """Boxes found in one scene, sorted from the highest score; the number of rows is static.

    Attributes:
      boxes: ``[N, 7]`` or ``[N, 9]``; 0 where ``valid`` is false.
      scores: ``[N]`` in 0..1; 0 where ``valid`` is false.
      classes: ``int32[N]``; -1 where ``valid`` is false.
      valid: ``bool[N]``, whether the row is a box; false for unused rows and for boxes that are not
        finite.
    """

    boxes: Float[Array, "max_boxes box"]
    scores: Float[Array, " max_boxes"]
    classes: Int32[Array, " max_boxes"]
    valid: Bool[Array, " max_boxes"]

    def take(self, indices: jax.Array) -> Detections:
        """Return the detections in the rows ``indices``.

        Args:
          indices: ``int[K]``, such as those from :func:`voxax.detection.nms`; -1 gives a row that
            is not valid.
        """
        kept = (indices >= 0) & self.valid[indices]
        return Detections.of_rows(
            self.boxes[indices], self.scores[indices], self.classes[indices], kept
        )

    @classmethod
    def of_rows(
        cls, boxes: jax.Array, scores: jax.Array, classes: jax.Array, kept: jax.Array
    ) -> Detections:
        """Make detections from arrays; the rows where ``kept`` is false become invalid.

        Args:
          boxes, scores, classes: arrays as in the attributes of the class.
          kept: ``bool[N]``, the valid rows.
        """
        return cls(
            jnp.where(kept[:, None], boxes, jnp.zeros((), boxes.dtype)),
            jnp.where(kept, scores, jnp.zeros((), scores.dtype)),
            jnp.where(kept, classes, -1),
            kept,
        )


@checked_operator
def decode_centers(
    logits: Num[Array | np.ndarray, "X Y classes"],
    codes: Num[Array | np.ndarray, "X Y code"],
    grid: BevGrid,
    *,
    max_boxes: int,
    min_score: float = 0.0,
) -> Detections:
    """Decode one scene's dense maps to its best boxes; use ``jax.vmap`` for several scenes.

    Every pair of a cell and a class is a candidate. Remove duplicates afterwards::

        found = decode_centers(logits, codes, grid, max_boxes=500)
        kept = nms(found.boxes, found.scores, iou_threshold=0.2, max_selected=83,
                   classes=found.classes, valid=found.valid)
        found = found.take(kept.indices)

    Args:
      logits: ``[X, Y, classes]``, before the sigmoid.
      codes: ``[X, Y, 8]`` or ``[X, Y, 10]``, see :func:`voxax.detection.encode_boxes`.
      grid: grid of the two maps.
      max_boxes: static number of rows of the result.
      min_score: lowest score of a valid row, in 0..1.

    Raises:
      InputError: wrong shapes, or a number out of range.
    """
    logits, codes = jnp.asarray(logits), jnp.asarray(codes)
    for name, table in (("logits", logits), ("codes", codes)):
        if table.ndim != 3 or table.shape[:2] != grid.shape:
            raise InputError(
                f"{name} of shape {list(table.shape)}: give {list(grid.shape)} and channels, one "
                "scene on the grid"
            )
    logits, codes = (table.reshape(-1, table.shape[-1]) for table in (logits, codes))
    cells = grid.cells()
    return decode_cells(logits, codes, cells, grid, max_boxes=max_boxes, min_score=min_score)


@checked_operator
def decode_cells(
    logits: Num[Array | np.ndarray, "P classes"],
    codes: Num[Array | np.ndarray, "P code"],
    cells: Int[Array | np.ndarray, "P 2"],
    grid: BevGrid,
    *,
    max_boxes: int,
    min_score: float = 0.0,
    valid: Bool[Array | np.ndarray, " P"] | None = None,
) -> Detections:
    """Decode the predictions at one scene's sparse cells to its best boxes.

    Args:
      logits: ``[P, classes]``, before the sigmoid.
      codes: ``[P, 8]`` or ``[P, 10]``, see :func:`voxax.detection.encode_boxes`.
      cells: ``int[P, 2]``, indices of the cells in the grid.
      grid: grid of the cells.
      max_boxes, min_score: see :func:`decode_centers`.
      valid: ``bool[P]``, true for rows with a cell, false for padding, whose values have no effect.
        None means that all rows have a cell.

    Raises:
      InputError: wrong shapes, or a number out of range.
    """
    logits, codes = as_floats(jnp.asarray(logits), jnp.asarray(codes))
    cells = jnp.asarray(cells)
    if logits.ndim != 2 or codes.shape[:1] != logits.shape[:1]:
        raise InputError(
            f"logits of shape {list(logits.shape)} and codes of shape {list(codes.shape)}: give "
            "[P, classes] and [P, 8] or [P, 10]"
        )
    number = len(logits)
    if cells.shape != (number, 2):
        raise InputError(f"cells of shape {list(cells.shape)}: give int[{number}, 2]")
    valid = as_mask("valid", valid, number, "cells")
    check_whole("max_boxes", max_boxes)
    if not 0 <= min_score <= 1:
        raise InputError(f"min_score={min_score} must lie in 0..1")
    if not number:  # `_decode` reads at least one row, here an invalid one
        logits, codes, cells = (jnp.zeros((1, t.shape[1]), t.dtype) for t in (logits, codes, cells))
        valid = jnp.zeros(1, bool)
    return _decode(logits, codes, cells, valid, min_score, grid=grid, number=int(max_boxes))


@functools.partial(jax.jit, static_argnames=("grid", "number"))
def _decode(
    logits: jax.Array,
    codes: jax.Array,
    cells: jax.Array,
    valid: jax.Array,
    min_score: Any,
    *,
    grid: BevGrid,
    number: int,
) -> Detections:
    num_classes = logits.shape[1]
    lowest = jnp.asarray(-jnp.inf, logits.dtype)
    place, scores, kept = best_rows(
        jnp.where(valid[:, None], logits, lowest).reshape(-1), number, min_score
    )
    row = place // num_classes
    codes, kept = finite_codes(codes[row], kept, lambda c: decode_boxes(c, cells[row], grid))
    boxes = decode_boxes(codes, cells[row], grid)
    return Detections.of_rows(boxes, scores, (place % num_classes).astype(jnp.int32), kept)


def finite_codes(
    codes: jax.Array, kept: jax.Array, decode: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Return box codes ``[N, D]`` and a mask ``bool[N]`` of the codes that give finite boxes.

    `decode` computes boxes from codes. A box is not finite if the logarithm of a size is too large.
    The mask is also false where `kept` is false. Codes outside the mask become zero and have no
    gradient.
    """
    boxes = decode(jax.lax.stop_gradient(codes))
    kept &= jnp.isfinite(boxes[:, :7]).all(axis=1)
    return jnp.where(kept[:, None], codes, jnp.zeros((), codes.dtype)), kept


def best_rows(
    logits: jax.Array, number: int, min_score: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the indices of the highest logits, their scores, and a mask of those that count.

    ``logits`` is ``[N]``. Each result is ``[number]``, the highest logit first. A score is the
    sigmoid of a logit. Logits of NaN or -inf, or with a score below ``min_score``, do not count.
    """
    lowest = jnp.asarray(-jnp.inf, logits.dtype)
    flat = jnp.where(jnp.isnan(logits), lowest, logits)
    flat = jnp.pad(flat, (0, max(0, number - len(flat))), constant_values=-jnp.inf)
    best, place = jax.lax.top_k(flat, number)
    scores = jax.nn.sigmoid(best)
    kept = (best > lowest) & (scores >= jnp.asarray(min_score, scores.dtype))
    return jnp.minimum(place, len(logits) - 1), scores, kept
