"""Joins scenes into the flat arrays that a batched voxel grid is built from."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import InputError
from voxax.io.point_cloud import PointCloud


class Batch(NamedTuple):
    """The points of B scenes, one scene after the other.

    ``positions[i] + origins[batch_index[i]]`` is where point i was, and scene b has the
    rows ``offsets[b]:offsets[b + 1]``.
    """

    positions: np.ndarray
    """float32 [N, 3], relative to the origin of the scene."""
    batch_index: np.ndarray
    """int32 [N], the scene of each point."""
    labels: np.ndarray | None
    """int32 [N], or None where the scenes have none."""
    offsets: np.ndarray
    """int32 [B + 1], first row of each scene, and N at the end."""
    origins: np.ndarray
    """float64 [B, 3]."""


def collate(clouds: Sequence[PointCloud], origins: ArrayLike | None = None) -> Batch:
    """Join scenes; NumPy only.

    Args:
        clouds: at least one; scenes without points are allowed and keep their index.
        origins: float [B, 3], subtracted from each scene before it becomes float32.
            By default the smallest coordinates of the scene rounded down to a whole
            number, and 0 for an empty scene; a voxel grid whose cells divide 1 unit
            then has the cells it would have had without the shift. Zeros keep the
            sensor's frame; they are right for sweeps and lose precision for
            coordinates of a national grid.

    Raises:
        InputError: no scenes; a position is not finite; some scenes with points have
            labels and others have not; `origins` has another shape.
    """
    if len(clouds) == 0:
        raise InputError("collate needs at least one cloud, got 0")
    for scene, cloud in enumerate(clouds):
        bad = len(cloud) - int(np.isfinite(cloud.positions).all(axis=1).sum())
        if bad:
            raise InputError(f"{bad} of {len(cloud)} positions of scene {scene} are not finite")
    shifts = _origins(clouds, origins)
    counts = np.array([len(cloud) for cloud in clouds])
    return Batch(
        positions=np.concatenate(
            [
                (cloud.positions - shift).astype(np.float32)
                for cloud, shift in zip(clouds, shifts, strict=True)
            ]
        ),
        batch_index=np.repeat(np.arange(len(clouds), dtype=np.int32), counts),
        labels=_labels(clouds),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        origins=shifts,
    )


def _origins(clouds: Sequence[PointCloud], origins: ArrayLike | None) -> np.ndarray:
    if origins is None:
        return np.stack(
            [
                np.floor(cloud.positions.min(axis=0)) if len(cloud) else np.zeros(3)
                for cloud in clouds
            ]
        )
    given = np.asarray(origins, np.float64)
    if given.shape != (len(clouds), 3):
        raise InputError(
            f"origins must have shape {[len(clouds), 3]} for {len(clouds)} clouds, "
            f"got {list(given.shape)}"
        )
    return given


def _labels(clouds: Sequence[PointCloud]) -> np.ndarray | None:
    # A scene without points has every label it needs.
    filled = [scene for scene, cloud in enumerate(clouds) if len(cloud)]
    bare = [scene for scene in filled if clouds[scene].labels is None]
    if bare and len(bare) < len(filled):
        raise InputError(
            f"{len(bare)} of {len(filled)} scenes have no labels: scenes {bare[:8]}; "
            "give all of them labels, or none (with_labels(None))"
        )
    if bare or all(cloud.labels is None for cloud in clouds):
        return None
    return np.concatenate(
        [np.zeros(0, np.int32) if cloud.labels is None else cloud.labels for cloud in clouds]
    )
