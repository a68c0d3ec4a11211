"""KITTI, SemanticKITTI and nuScenes sweeps: bare float32 records without a header.

Sources: the KITTI raw-data development kit (``velodyne/*.bin``), the SemanticKITTI
dataset page (``*.label``) and the nuScenes schema (``*.pcd.bin``). All are
little-endian.
"""

from pathlib import Path

import numpy as np

from voxax.io.files import record_count
from voxax.io.point_cloud import PointCloud

KITTI_FIELDS = ("x", "y", "z", "intensity")
NUSCENES_FIELDS = (*KITTI_FIELDS, "ring")
FLOAT_BYTES = 4
LABEL_BYTES = 4
NO_RING = -1


def read_kitti(path: Path) -> PointCloud:
    """Read a KITTI or SemanticKITTI ``.bin``: float32 x, y, z (metres) and intensity.

    Raises:
        FileFormatError: the size is not a multiple of the 16-byte record.
    """
    record = len(KITTI_FIELDS) * FLOAT_BYTES
    other = len(NUSCENES_FIELDS) * FLOAT_BYTES
    hint = ""
    if path.stat().st_size % other == 0:
        hint = (
            f"; it divides into the {other}-byte records of nuScenes, whose files end in .pcd.bin"
        )
    rows = _rows(path, len(KITTI_FIELDS), record_count(path, record, "KITTI sweep", hint))
    return PointCloud(rows[:, :3], {"intensity": rows[:, 3].copy()}, source=str(path))


def read_nuscenes(path: Path) -> PointCloud:
    """Read a nuScenes ``.pcd.bin``: float32 x, y, z (metres), intensity and ring.

    The ring becomes int32, -1 where the file holds no number.

    Raises:
        FileFormatError: the size is not a multiple of the 20-byte record.
    """
    record = len(NUSCENES_FIELDS) * FLOAT_BYTES
    rows = _rows(path, len(NUSCENES_FIELDS), record_count(path, record, "nuScenes sweep"))
    ring = rows[:, 4]
    # Written so that NaN fails it: casting NaN to an integer is undefined.
    usable = (ring >= 0) & (ring < np.iinfo(np.int16).max)
    attributes = {
        "intensity": rows[:, 3].copy(),
        "ring": np.where(usable, ring, NO_RING).astype(np.int32),
    }
    return PointCloud(rows[:, :3], attributes, source=str(path))


def read_packed_labels(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read a SemanticKITTI ``.label``: uint32, low half the class, high half the object.

    Returns:
        The raw class ids, int32 [N] (see :mod:`voxax.io.semantic_kitti` for the common
        classes), and ``{"instance": int32 [N]}``.

    Raises:
        FileFormatError: the size is not a multiple of 4 bytes.
    """
    record_count(path, LABEL_BYTES, "SemanticKITTI label file")
    packed = np.fromfile(path, dtype="<u4")
    return (packed & 0xFFFF).astype(np.int32), {"instance": (packed >> 16).astype(np.int32)}


def _rows(path: Path, width: int, count: int) -> np.ndarray:
    return np.fromfile(path, dtype="<f4").reshape(count, width).astype(np.float32, copy=False)
