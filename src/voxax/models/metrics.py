"""Segmentation metrics in NumPy: confusion matrix, intersection over union, accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxax._limits import CLASSES
from voxax.errors import InputError, check_whole


def confusion(truth: np.ndarray | None, prediction: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the confusion matrix, ``int64[num_classes, num_classes]``; rows are true classes.

    Args:
      truth: ``int[N]``; entries outside the classes are left out. None gives a matrix of zeros.
      prediction: ``int[N]``, 0 to ``num_classes - 1``.
      num_classes: number of classes, at most 4096.

    Raises:
      InputError: ``num_classes`` is out of range or no integer, the lengths differ, a prediction of
        an entry that counts is outside the classes, or the arrays are not integers.
    """
    num_classes = check_whole("num_classes", num_classes)
    CLASSES.check("num_classes", num_classes)
    if truth is None:
        return np.zeros((num_classes, num_classes), np.int64)
    if truth.shape != prediction.shape:
        raise InputError(
            f"predictions of shape {list(prediction.shape)} for truth of shape {list(truth.shape)}"
        )
    for name, labels in (("truth", truth), ("predictions", prediction)):
        if labels.size and not np.issubdtype(labels.dtype, np.integer):
            raise InputError(f"{name} of {labels.dtype}: give integers, one class for each entry")
    known = (truth >= 0) & (truth < num_classes)
    predicted = prediction[known].astype(np.int64)
    outside = predicted[(predicted < 0) | (predicted >= num_classes)]
    if len(outside):
        raise InputError(
            f"{len(outside)} of {len(predicted)} predictions are outside the {num_classes} classes "
            f"0 to {num_classes - 1}, the first is {outside[0]}: give num_classes= of the network"
        )
    key = truth[known].astype(np.int64) * num_classes + predicted
    return np.bincount(key, minlength=num_classes**2).reshape(num_classes, num_classes)


def iou_by_class(matrix: np.ndarray) -> np.ndarray:
    """Return the IoU of each class, ``float64[num_classes]``; NaN for classes not in the truth.

    Args:
      matrix: ``int[num_classes, num_classes]``, as :func:`confusion` returns it.

    Raises:
      InputError: ``matrix`` is not square.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"a confusion matrix is square, got shape {list(matrix.shape)}")
    hit = np.diag(matrix).astype(np.float64)
    union = matrix.sum(0) + matrix.sum(1) - hit
    return np.where(matrix.sum(1) > 0, hit / np.maximum(union, 1), np.nan)


def mean_iou(matrix: np.ndarray) -> float:
    """Return the mean IoU over the classes in the truth; 0 if the truth has no class.

    Arguments and errors as in :func:`iou_by_class`.
    """
    values = iou_by_class(matrix)
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


def iou_table(matrix: np.ndarray, names: Sequence[str]) -> dict[str, float | None]:
    """Return a dict from class name to IoU; None for classes not in the truth.

    Args:
      matrix: ``int[num_classes, num_classes]``, as in :func:`confusion`.
      names: names of the classes.

    Raises:
      InputError: ``matrix`` is not square, or the number of names differs from its size.
    """
    values = iou_by_class(matrix)
    if len(names) != len(values):
        raise InputError(f"{len(names)} names for {len(values)} classes")
    return {n: None if np.isnan(v) else float(v) for n, v in zip(names, values, strict=True)}


def accuracy_by_class(matrix: np.ndarray, names: Sequence[str]) -> dict[str, float | None]:
    """Return a dict from class name to recall (accuracy on the class); None for absent classes.

    Args:
      matrix: ``int[num_classes, num_classes]``, as in :func:`confusion`.
      names: names of the classes.

    Raises:
      InputError: ``matrix`` is not ``[len(names), len(names)]``.
    """
    if matrix.shape != (len(names),) * 2:
        raise InputError(f"{len(names)} names for a matrix of shape {list(matrix.shape)}")
    hits, number = np.diag(matrix), matrix.sum(1)
    return {
        name: float(hit / count) if count else None
        for name, hit, count in zip(names, hits, number, strict=True)
    }
