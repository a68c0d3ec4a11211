"""Boxes as polygons of shapely, in float64, and greedy suppression from a whole matrix."""

import numpy as np
import shapely


def polygons(boxes: np.ndarray) -> np.ndarray:
    made = []
    for x, y, _, length, width, _, yaw in np.asarray(boxes, np.float64)[:, :7]:
        forward = np.array([np.cos(yaw), np.sin(yaw)])
        left = np.array([-forward[1], forward[0]])
        ring = [
            np.array([x, y]) + s * length / 2 * forward + t * width / 2 * left
            for s, t in ((1, 1), (-1, 1), (-1, -1), (1, -1))
        ]
        made.append(ring)
    return shapely.polygons(np.array(made).reshape(-1, 4, 2))


def shared_area(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of corresponding rows.

    Corners lie on a grid of 1e-9: on none, GEOS loses the whole area of some pairs whose sides lie
    on each other but for rounding.
    """
    return shapely.area(shapely.intersection(polygons(a), polygons(b), grid_size=1e-9))


def bev_iou(a: np.ndarray, b: np.ndarray, shared: np.ndarray | None = None) -> np.ndarray:
    """Of corresponding rows; 0 where the union is empty."""
    shared = shared_area(a, b) if shared is None else shared
    return _ratio(shared, np.prod(a[:, 3:5], axis=1), np.prod(b[:, 3:5], axis=1))


def iou_3d(a: np.ndarray, b: np.ndarray, shared: np.ndarray | None = None) -> np.ndarray:
    """Of corresponding rows; 0 where the union is empty."""
    ends = [(boxes[:, 2] - boxes[:, 5] / 2, boxes[:, 2] + boxes[:, 5] / 2) for boxes in (a, b)]
    tall = np.minimum(ends[0][1], ends[1][1]) - np.maximum(ends[0][0], ends[1][0])
    shared = (shared_area(a, b) if shared is None else shared) * np.clip(tall, 0, None)
    return _ratio(shared, np.prod(a[:, 3:6], axis=1), np.prod(b[:, 3:6], axis=1))


def _ratio(shared: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    union = a + b - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def all_pairs(function, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rows, columns = np.indices((len(a), len(b))).reshape(2, -1)
    return function(a[rows], b[columns]).reshape(len(a), len(b))


def among(function, boxes: np.ndarray) -> np.ndarray:
    """Return the matrix of all boxes with all; what is on the diagonal is 1."""
    rows, columns = np.triu_indices(len(boxes), 1)
    matrix = np.eye(len(boxes))
    matrix[rows, columns] = matrix[columns, rows] = function(boxes[rows], boxes[columns])
    return matrix


def greedy(scores, suppresses: np.ndarray, classes=None, valid=None) -> list[int]:
    """Return all that is selected, in order; ``suppresses[i, j]``: i, once selected, removes j."""
    left = [i for i in range(len(scores)) if valid is None or valid[i]]
    left.sort(key=lambda i: (-scores[i], i))
    selected = []
    while left:
        best = left.pop(0)
        selected.append(best)
        same = [classes is None or classes[j] == classes[best] for j in left]
        left = [j for j, s in zip(left, same, strict=True) if not (s and suppresses[best, j])]
    return selected
