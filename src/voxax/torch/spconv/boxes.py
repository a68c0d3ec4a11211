"""Overlaps of turned boxes given by corners, as ``spconv.utils`` has them, and suppression by them.

Boxes are convex, ``[N, 4, 2]``. spconv's numbers have a meaning for corners in clockwise order;
here the order is either, and clockwise ones give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from voxax.torch.spconv.errors import SpconvError

Corners = Sequence[tuple[float, float]]


def rbbox_iou(
    box_corners: np.ndarray,
    qbox_corners: np.ndarray,
    standup_iou: np.ndarray,
    standup_thresh: float,
) -> np.ndarray:
    """Return intersection over union of all pairs, ``[N, K]``.

    Args:
      box_corners: ``[N, 4, 2]``.
      qbox_corners: ``[K, 4, 2]``.
      standup_iou: ``[N, K]``, for example of the boxes around them.
      standup_thresh: pairs of at most this ``standup_iou`` get 0.

    Raises:
      SpconvError: other shapes.
    """
    return _of_pairs(_iou, box_corners, qbox_corners, standup_iou, standup_thresh)


def rbbox_intersection(
    box_corners: np.ndarray,
    qbox_corners: np.ndarray,
    standup_iou: np.ndarray,
    standup_thresh: float,
) -> np.ndarray:
    """Return the areas that all pairs share, ``[N, K]``; the rest as :func:`rbbox_iou`."""
    return _of_pairs(_shared, box_corners, qbox_corners, standup_iou, standup_thresh)


def rbbox_iou_loss(box_corners: np.ndarray, qbox_corners: np.ndarray) -> np.ndarray:
    """Return intersection over union of each box and the one in the same row, ``[N]``.

    Raises:
      SpconvError: other shapes, or numbers of boxes that differ.
    """
    first, second = _checked(box_corners), _checked(qbox_corners)
    if len(first) != len(second):
        raise SpconvError(f"{len(first)} boxes and {len(second)}: expected pairs")
    return np.asarray([_iou(a, b) for a, b in zip(first, second, strict=True)], box_corners.dtype)


def non_max_suppression_cpu(
    boxes: np.ndarray, order: np.ndarray, thresh: float, eps: float = 0.0
) -> list[int]:
    """Return which boxes stay, in their order. spconv writes beyond its memory here.

    Args:
      boxes: ``[N, 4]``: low and high corner.
      order: ``[N]``, the best box first.
      thresh: boxes of at least this intersection over union with a better one go.
      eps: is added to all edge lengths.
    """
    low, high = boxes[:, :2], boxes[:, 2:4]
    areas = (high - low + eps).prod(1)

    def overlaps(index: int, others: np.ndarray) -> np.ndarray:
        edges = np.minimum(high[index], high[others]) - np.maximum(low[index], low[others]) + eps
        shared = edges.clip(min=0).prod(1)
        return (shared > 0) & (shared >= thresh * (areas[index] + areas[others] - shared))

    return _suppressed(order, overlaps)


def rotate_non_max_suppression_cpu(
    boxes: np.ndarray, order: np.ndarray, standup_iou: np.ndarray, thresh: float
) -> list[int]:
    """Return which boxes stay, in their order. spconv puts N zeros before them.

    Args:
      boxes: corners, ``[N, 4, 2]``.
      order: ``[N]``, the best box first.
      standup_iou: ``[N, N]``: pairs of at most 0 are not compared.
      thresh: boxes of at least this intersection over union with a better one go.

    Raises:
      SpconvError: another shape.
    """
    corners = _checked(boxes)

    def overlaps(index: int, others: np.ndarray) -> np.ndarray:
        near = standup_iou[index, others] > 0
        ratio = [_iou(corners[index], corners[j]) if n else 0 for j, n in zip(others, near)]  # noqa: B905 (of one length)
        # Without a common area spconv does not compare.
        return (np.asarray(ratio) > 0) & (np.asarray(ratio) >= thresh)

    return _suppressed(order, overlaps)


def _suppressed(order: np.ndarray, overlaps: Callable[[int, np.ndarray], np.ndarray]) -> list[int]:
    kept, rest = [], np.asarray(order).astype(np.int64)
    while len(rest):
        best, rest = int(rest[0]), rest[1:]
        kept.append(best)
        rest = rest[~overlaps(best, rest)] if len(rest) else rest
    return kept


def _of_pairs(
    of: Callable[[Corners, Corners], float],
    box_corners: np.ndarray,
    qbox_corners: np.ndarray,
    standup_iou: np.ndarray,
    standup_thresh: float,
) -> np.ndarray:
    first, second = _checked(box_corners), _checked(qbox_corners)
    out = np.zeros((len(first), len(second)), box_corners.dtype)
    if np.shape(standup_iou) != out.shape:
        raise SpconvError(
            f"standup_iou of shape {np.shape(standup_iou)} for {out.shape[0]} and {out.shape[1]} "
            "boxes: expected [N, K]"
        )
    if not out.size:
        return out
    a, b = box_corners[:, None], qbox_corners[None]
    apart = (a.max(2) <= b.min(2)) | (b.max(2) <= a.min(2))
    for n, k in np.argwhere((standup_iou > standup_thresh) & ~apart.any(2)):
        out[n, k] = of(first[n], second[k])
    return out


def _checked(corners: np.ndarray) -> list[Corners]:
    if corners.ndim != 3 or corners.shape[1:] != (4, 2):
        raise SpconvError(f"corners of shape {corners.shape}: expected [N, 4, 2]")
    boxes = corners.astype(np.float64)
    # From here on counterclockwise.
    return [box if _area(box) >= 0 else box[::-1] for box in boxes.tolist()]


def _area(corners: Corners) -> float:
    """Return the area, below 0 for clockwise corners."""
    # Around the first corner, so that far boxes lose no digits.
    x0, y0 = corners[0] if corners else (0.0, 0.0)
    moved = [(x - x0, y - y0) for x, y in corners]
    return 0.5 * sum(x * v - u * y for (x, y), (u, v) in _edges(moved))


def _edges(corners: Corners) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    return zip(corners, [*corners[1:], *corners[:1]], strict=True)


def _shared(a: Corners, b: Corners) -> float:
    """Return the common area: ``a``, cut along each edge of ``b`` (Sutherland and Hodgman)."""
    rest = a
    for (x0, y0), (x1, y1) in _edges(b):
        sides = [(x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) for x, y in rest]
        cut: list[tuple[float, float]] = []
        for ((x, y), (u, v)), s, t in zip(
            _edges(rest), sides, [*sides[1:], *sides[:1]], strict=True
        ):
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
