"""Join the coordinates, features and labels of several scenes into one batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from voxax.torch.core.errors import ArgumentError
from voxax.torch.minkowski.arguments import floored


def _tensor(array: Any, what: str) -> torch.Tensor:
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    if not isinstance(array, torch.Tensor):
        raise ArgumentError(f"{what} of {type(array).__name__}: expected arrays or tensors")
    return array


def batched_coordinates(
    coords: Sequence[Any], dtype: torch.dtype = torch.int32, device: Any = None
) -> torch.Tensor:
    """Join the coordinates of scenes to one tensor ``[N, 1 + D]`` with the batch index first.

    Args:
      coords: arrays or tensors ``[n, D]``, one per scene; for ``int32``, floats are rounded down.
      dtype: ``int32`` or ``float32``.
      device: device of the result; None is the CPU.
    """
    if not isinstance(coords, Sequence):
        raise ArgumentError(f"coordinates of {type(coords).__name__}: expected a list of scenes")
    if dtype not in (torch.int32, torch.float32):
        raise ArgumentError(f"dtype={dtype}: expected torch.int32 or torch.float32")
    parts = [_tensor(part, "coordinates") for part in coords]
    shapes = [tuple(part.shape) for part in parts]
    if not parts or any(part.ndim != 2 or part.shape[1] != parts[0].shape[1] for part in parts):
        raise ArgumentError(f"coordinates of shapes {shapes}: expected [n, D] of each scene")
    rows = torch.zeros((sum(map(len, parts)), parts[0].shape[1] + 1), dtype=dtype, device=device)
    places = rows.split([len(part) for part in parts])
    for index, (part, place) in enumerate(zip(parts, places, strict=True)):
        place[:, 0] = index
        place[:, 1:] = floored(part) if dtype is torch.int32 else part
    return rows


def sparse_collate(
    coords: Sequence[Any],
    feats: Sequence[Any],
    labels: Sequence[Any] | None = None,
    dtype: torch.dtype = torch.int32,
    device: Any = None,
) -> tuple[Any, ...]:
    """Join scenes to one batch: return coordinates and features, and labels if given.

    Each argument has one item per scene. ``dtype`` and ``device`` are those of the coordinates, the
    result of :func:`batched_coordinates`. Features, and labels that are arrays or tensors, are
    concatenated; other labels stay a list.
    """
    rows = batched_coordinates(coords, dtype, device)
    features = torch.cat([_tensor(part, "features") for part in feats])
    if len(features) != len(rows):
        raise ArgumentError(f"{len(features)} rows of features for {len(rows)} coordinates")
    if labels is None:
        return rows, features
    found: Any = [
        torch.from_numpy(label) if isinstance(label, np.ndarray) else label for label in labels
    ]
    if found and isinstance(found[0], torch.Tensor):
        found = torch.cat(found)
    return rows, features, found


def batch_sparse_collate(
    data: Sequence[Any], dtype: torch.dtype = torch.int32, device: Any = None
) -> tuple[Any, ...]:
    """Join a list of scenes ``(coordinates, features[, labels])`` by :func:`sparse_collate`."""
    return sparse_collate(*zip(*data, strict=True), dtype=dtype, device=device)


class SparseCollation:
    """Collate function of a data loader, which joins scenes ``(coordinates, features, labels)``.

    ``limit_numpoints`` is the largest number of rows in a batch; -1 means no limit. The first scene
    with which the batch would exceed it is left out, with all scenes after it. It is an error if no
    scene remains. ``dtype`` and ``device`` are as in :func:`batched_coordinates`.
    """

    def __init__(
        self, limit_numpoints: int = -1, dtype: torch.dtype = torch.int32, device: Any = None
    ) -> None:
        self.limit_numpoints, self.dtype, self.device = limit_numpoints, dtype, device

    def __call__(self, list_data: Sequence[Any]) -> tuple[Any, ...]:
        kept, rows = [], 0
        for scene in list_data:
            rows += len(scene[0])
            if 0 < self.limit_numpoints < rows:
                text = "%d of %d scenes: more exceed limit_numpoints=%d"
                numbers = len(kept), len(list_data), self.limit_numpoints
                logging.getLogger(__name__).warning(text, *numbers)
                break
            kept.append(scene)
        if not kept:
            raise ArgumentError(
                f"the first scene has {rows} rows: limit_numpoints={self.limit_numpoints}"
            )
        return batch_sparse_collate(kept, self.dtype, self.device)
