"""Confusion matrices and intersection over union, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def confusion(truth: np.ndarray | None, prediction: np.ndarray, num_classes: int) -> np.ndarray:
    """``int64[num_classes, num_classes]``, rows are truth. Entries with truth < 0 are left out."""
    if truth is None:
        return np.zeros((num_classes, num_classes), np.int64)
    known = (truth >= 0) & (truth < num_classes)
    key = truth[known].astype(np.int64) * num_classes + prediction[known]
    return np.bincount(key, minlength=num_classes**2).reshape(num_classes, num_classes)


def iou_by_class(matrix: np.ndarray) -> np.ndarray:
    """``float64[num_classes]``: intersection over union; NaN for classes not in the truth."""
    hit = np.diag(matrix).astype(np.float64)
    union = matrix.sum(0) + matrix.sum(1) - hit
    return np.where(matrix.sum(1) > 0, hit / np.maximum(union, 1), np.nan)


def mean_iou(matrix: np.ndarray) -> float:
    """Mean over the classes present in the truth; 0 without any."""
    values = iou_by_class(matrix)
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


def iou_table(matrix: np.ndarray, names: Sequence[str]) -> dict[str, float | None]:
    """IoU by class name; None for classes not in the truth."""
    values = iou_by_class(matrix)
    return {n: None if np.isnan(v) else float(v) for n, v in zip(names, values, strict=True)}
