"""Functions of ``spconv.utils``: points to voxels, overlaps of boxes, non-maximum suppression.

Rotated boxes are given by their corners ``[N, 4, 2]``. spconv's results are correct only for
clockwise corners. Here corners may have either order, and clockwise corners give spconv's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext as nullcontext
from typing import Any

import numpy as np
import torch

from voxax.torch.core.errors import ArgumentError
from voxax.torch.spconv import tensorview as tv
from voxax.torch.spconv.ops import CPU_ONLY_BUILD as CPU_ONLY_BUILD
from voxax.torch.spconv.tensorview import Tensor
from voxax.torch.spconv.utils import PointToVoxel

Array = np.ndarray
Corners = Sequence[tuple[float, float]]


def rbbox_iou(
    box_corners: Array, qbox_corners: Array, standup_iou: Array, standup_thresh: float
) -> Array:
    """Return the intersection over union of each of N rotated boxes with each of K, ``[N, K]``.

    Args:
      box_corners, qbox_corners: corners of the boxes, ``[N, 4, 2]`` and ``[K, 4, 2]``.
      standup_iou: ``[N, K]``, for example the overlaps of the axis-aligned bounding boxes.
      standup_thresh: threshold; pairs whose ``standup_iou`` is not above it get 0.

    Raises:
      SpconvError: other shapes.
    """
    return _of_pairs(_iou, box_corners, qbox_corners, standup_iou, standup_thresh)


def rbbox_intersection(
    box_corners: Array, qbox_corners: Array, standup_iou: Array, standup_thresh: float
) -> Array:
    """Return the common area of each of N rotated boxes with each of K, ``[N, K]``.

    Arguments are as in :func:`rbbox_iou`.
    """
    return _of_pairs(_shared, box_corners, qbox_corners, standup_iou, standup_thresh)


def rbbox_iou_loss(box_corners: Array, qbox_corners: Array) -> Array:
    """Return the intersection over union of N pairs of boxes, ``[N]``; corners ``[N, 4, 2]``."""
    first, second = _checked(box_corners), _checked(qbox_corners)
    if len(first) != len(second):
        raise ArgumentError(f"{len(first)} boxes and {len(second)}: expected pairs")
    return np.asarray([_iou(a, b) for a, b in zip(first, second, strict=True)], box_corners.dtype)


def non_max_suppression_cpu(
    boxes: Array, order: Array, thresh: float, eps: float = 0.0
) -> list[int]:
    """Return the indices of axis-aligned boxes that non-maximum suppression keeps, best first.

    Unlike spconv's function, this one does not write outside its arrays.

    Args:
      boxes: ``[N, 4]``: low corner, then high corner.
      order: ``[N]``, indices of the boxes, the best box first.
      thresh: a box is removed if its intersection over union with a kept better box is >= this.
      eps: length that is added to all edges.
    """
    low, high = boxes[:, :2], boxes[:, 2:4]
    areas = (high - low + eps).prod(1)

    def overlaps(index: int, others: Array) -> Array:
        edges = np.minimum(high[index], high[others]) - np.maximum(low[index], low[others]) + eps
        shared = edges.clip(min=0).prod(1)
        return (shared > 0) & (shared >= thresh * (areas[index] + areas[others] - shared))

    return _suppressed(order, overlaps)


def rotate_non_max_suppression_cpu(
    boxes: Array, order: Array, standup_iou: Array, thresh: float
) -> list[int]:
    """Return the indices of rotated boxes that non-maximum suppression keeps, best first.

    The result of spconv's function wrongly begins with N zeros, which are absent here.

    Args:
      boxes: corners, ``[N, 4, 2]``.
      order, thresh: as in :func:`non_max_suppression_cpu`.
      standup_iou: ``[N, N]``; a pair is compared only if its value is above 0.
    """
    corners = _checked(boxes)

    def overlaps(index: int, others: Array) -> Array:
        near = standup_iou[index, others] > 0
        pairs = zip(others, near, strict=True)
        ratio = np.asarray([_iou(corners[index], corners[j]) if n else 0 for j, n in pairs])
        return (ratio > 0) & (ratio >= thresh)  # without a common area spconv does not compare

    return _suppressed(order, overlaps)


def _suppressed(order: Array, overlaps: Callable[[int, Array], Array]) -> list[int]:
    kept, rest = [], np.asarray(order).astype(np.int64)
    while len(rest):
        best, rest = int(rest[0]), rest[1:]
        kept.append(best)
        rest = rest[~overlaps(best, rest)] if len(rest) else rest
    return kept


def _of_pairs(
    of: Callable[[Corners, Corners], float],
    box_corners: Array,
    qbox_corners: Array,
    standup_iou: Array,
    standup_thresh: float,
) -> Array:
    first, second = _checked(box_corners), _checked(qbox_corners)
    out = np.zeros((len(first), len(second)), box_corners.dtype)
    if np.shape(standup_iou) != out.shape:
        found = f"standup_iou of shape {np.shape(standup_iou)} for {out.shape[0]} and"
        raise ArgumentError(f"{found} {out.shape[1]} boxes: expected [N, K]")
    if not out.size:
        return out
    a, b = box_corners[:, None], qbox_corners[None]
    apart = (a.max(2) <= b.min(2)) | (b.max(2) <= a.min(2))
    for n, k in np.argwhere((standup_iou > standup_thresh) & ~apart.any(2)):
        out[n, k] = of(first[n], second[k])
    return out


def _checked(corners: Array) -> list[Corners]:
    if corners.ndim != 3 or corners.shape[1:] != (4, 2):
        raise ArgumentError(f"corners of shape {corners.shape}: expected [N, 4, 2]")
    boxes = corners.astype(np.float64).tolist()
    return [box if _area(box) >= 0 else box[::-1] for box in boxes]  # counterclockwise


def _area(corners: Corners) -> float:
    """Return a polygon's area, negative for clockwise corners; exact also far from the origin."""
    x0, y0 = corners[0] if corners else (0.0, 0.0)
    moved = [(x - x0, y - y0) for x, y in corners]
    return 0.5 * sum(x * v - u * y for (x, y), (u, v) in _edges(moved))


def _edges(corners: Corners) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    return zip(corners, [*corners[1:], *corners[:1]], strict=True)


def _shared(a: Corners, b: Corners) -> float:
    """Return the area that two boxes share: clip ``a`` at each edge of ``b``.

    This is the algorithm of Sutherland and Hodgman.
    """
    rest = a
    for (x0, y0), (x1, y1) in _edges(b):
        sides = [(x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) for x, y in rest]
        cut: list[tuple[float, float]] = []
        ends = [*sides[1:], *sides[:1]]
        for ((x, y), (u, v)), s, t in zip(_edges(rest), sides, ends, strict=True):
            if s >= 0:
                cut.append((x, y))
            if (s < 0) != (t < 0):
                part = s / (s - t)
                cut.append((x + part * (u - x), y + part * (v - y)))
        rest = cut
    return max(_area(rest), 0.0)


def _iou(a: Corners, b: Corners) -> float:
    shared = _shared(a, b)
    return shared / (_area(a) + _area(b) - shared) if shared > 0 else 0.0


__all__ = ["tv"]


class _Point2VoxelCPU(PointToVoxel):
    """:class:`voxax.torch.spconv.utils.PointToVoxel` for points in a NumPy array.

    A subclass sets the number of spatial axes.
    """

    def point_to_voxel(self, pc: Any, clear_voxels: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return the points of each cell, the cells, and the number of points in each cell.

        Points ``pc`` are an array or a :class:`~voxax.torch.spconv.tensorview.Tensor`.
        ``clear_voxels`` is ignored. Shapes are as in :meth:`generate_voxel_with_id`.
        """
        del clear_voxels
        return self._voxels(pc, empty_mean=False)

    def point_to_voxel_empty_mean(self, pc: Any, clear_voxels: bool = True) -> tuple[Tensor, ...]:
        """Return the results of :meth:`point_to_voxel`, with cells filled up with their mean.

        A cell with fewer points than the limit has the mean of its points, instead of 0, in the
        rows without a point.
        """
        del clear_voxels
        return self._voxels(pc, empty_mean=True)

    def _voxels(self, pc: Any, empty_mean: bool) -> tuple[Tensor, Tensor, Tensor]:
        array = pc.numpy() if hasattr(pc, "numpy") else np.asarray(pc)
        points = torch.from_numpy(np.ascontiguousarray(array, np.float32))
        voxels, indices, numbers = self(points, empty_mean=empty_mean)
        return Tensor(voxels.numpy()), Tensor(indices.numpy()), Tensor(numbers.numpy())


KINDS = tuple(
    type(f"Point2VoxelCPU{ndim}d", (_Point2VoxelCPU,), {"NDIM": ndim, "__module__": __name__})
    for ndim in range(1, 5)
)
"""The classes ``Point2VoxelCPU1d`` to ``Point2VoxelCPU4d`` for 1 to 4 axes."""
Point2VoxelCPU1d, Point2VoxelCPU2d, Point2VoxelCPU3d, Point2VoxelCPU4d = KINDS
