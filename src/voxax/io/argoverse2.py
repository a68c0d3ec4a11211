"""Read the data set Argoverse 2: LiDAR sweeps and boxes of objects in the frame of the vehicle.

The layout is ``SPLIT/LOG/sensors/lidar/TIMESTAMP.feather`` and ``SPLIT/LOG/annotations.feather``,
where SPLIT is ``train``, ``val`` or ``test``.

Source: Wilson et al., "Argoverse 2: Next Generation Datasets for Self-Driving Perception and
Forecasting", NeurIPS Datasets and Benchmarks 2021, and the Python package of the data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxax.detection.objects import Objects
from voxax.errors import FileFormatError
from voxax.io.annotated import AnnotatedScan
from voxax.io.decoding import existing_file
from voxax.io.formats import read
from voxax.io.layout import Layout, folders_with
from voxax.io.table import read_table_columns

ARGOVERSE2_CLASSES = (
    "REGULAR_VEHICLE", "PEDESTRIAN", "BICYCLIST", "MOTORCYCLIST", "WHEELED_RIDER", "BOLLARD",
    "CONSTRUCTION_CONE", "SIGN", "CONSTRUCTION_BARREL", "STOP_SIGN",
    "MOBILE_PEDESTRIAN_CROSSING_SIGN", "LARGE_VEHICLE", "BUS", "BOX_TRUCK", "TRUCK",
    "VEHICULAR_TRAILER", "TRUCK_CAB", "SCHOOL_BUS", "ARTICULATED_BUS", "MESSAGE_BOARD_TRAILER",
    "BICYCLE", "MOTORCYCLE", "WHEELED_DEVICE", "WHEELCHAIR", "STROLLER", "DOG",
)  # fmt: skip
"""The 26 classes of the detection challenge, in the order of published detectors' outputs.

Boxes of the four other categories in the files are read too, but networks do not learn them.
"""

ANNOTATIONS, SWEEPS = "annotations.feather", "sensors/lidar"
TIME, CATEGORY = "timestamp_ns", "category"
SIZES = ("length_m", "width_m", "height_m")
CENTER = ("tx_m", "ty_m", "tz_m")
QUATERNION = ("qw", "qx", "qy", "qz")


@dataclass(frozen=True)
class Argoverse2Sweep:
    """Callable that reads one LiDAR sweep as an ``AnnotatedScan``, with boxes if `labeled`.

    `log` is the path of a log's folder; a log is a recorded drive. `timestamp` is the time of the
    sweep in nanoseconds.
    """

    log: str
    timestamp: int
    labeled: bool = True

    def __call__(self) -> AnnotatedScan:
        objects = Objects([], [])
        if self.labeled:
            objects = read_argoverse2_objects(Path(self.log) / ANNOTATIONS, self.timestamp)
            if not len(objects):
                self._check_log()
        return AnnotatedScan(read(str(self)).with_labels(None), objects)

    def _check_log(self) -> None:
        """Raise FileFormatError if no box in the annotations has the time of any sweep of the log.

        The annotations then belong to another log. A single sweep without boxes is no error.
        """
        path = Path(self.log) / ANNOTATIONS
        annotated = read_table_columns(path, (TIME,))[TIME]
        if not np.isin(annotated, _timestamps(Path(self.log))).any():
            raise FileFormatError(
                f"{path} has {len(annotated)} boxes, and none at the time of a sweep in "
                f"{Path(self.log) / SWEEPS}: they are of another log"
            )

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the sweep and, if `labeled`, of the log's boxes."""
        boxes = [f"{self.log}/{ANNOTATIONS}"] if self.labeled else []
        return str(self), *boxes

    def __str__(self) -> str:
        return f"{self.log}/{SWEEPS}/{self.timestamp}.feather"


def read_argoverse2_objects(path: Path, timestamp: int) -> Objects:
    """Read the boxes [M, 7] of one sweep, in the frame of the vehicle, and their class names.

    A box has its center, length, width and height in meters, and its yaw in radians. `path` is a
    log's ``annotations.feather``. `timestamp` is the sweep's time in nanoseconds.
    """
    numbers = (*CENTER, *SIZES, *QUATERNION)
    columns = read_table_columns(existing_file(path), (TIME, *numbers), (CATEGORY,))
    rows = np.flatnonzero(columns[TIME] == timestamp)
    table = np.column_stack([columns[name][rows].astype(np.float64) for name in numbers])
    centers, sizes, turns = np.split(table, [3, 6], axis=1)
    lengths = np.linalg.norm(turns, axis=1)
    bad = ~np.isfinite(table).all(axis=1) | (sizes <= 0).any(axis=1) | (lengths == 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise FileFormatError(
            f"{path}: row {rows[row]} has {dict(zip(numbers, table[row].tolist(), strict=True))}: "
            "numbers must be finite, sizes positive, and the quaternion not 0"
        )
    w, x, y, z = (turns / lengths[:, None]).T
    yaw = np.arctan2(2 * (x * y + w * z), 1 - 2 * (y * y + z * z))
    return Objects(np.column_stack([centers, sizes, yaw]), columns[CATEGORY][rows])


class Argoverse2(Layout):
    """List the sweeps in an Argoverse 2 folder; names are of splits or logs (``val/LOG``)."""

    task = "detect"
    marks = (f"*/*/{SWEEPS}",)
    class_names = ARGOVERSE2_CLASSES

    def split(self, name: str) -> Sequence[str]:
        own = {"validation": "val"}.get(name, name)
        return (own,) if (self.folder / own).is_dir() else ()

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[Argoverse2Sweep]:
        found = []
        for name in names:
            what = f"logs: the layout is SPLIT/LOG/{SWEEPS}/TIMESTAMP.feather"
            for log in folders_with(self.folder / name, SWEEPS, what):
                if labeled and not (log / ANNOTATIONS).is_file():
                    raise FileFormatError(
                        f"{log} has no file {ANNOTATIONS}; logs of the split test have none"
                    )
                times = _timestamps(log)
                if not times:
                    raise FileFormatError(f"{log / SWEEPS} holds no sweeps (TIMESTAMP.feather)")
                found += [Argoverse2Sweep(str(log), time, labeled) for time in times]
        return found


def _timestamps(log: Path) -> list[int]:
    """Return the times in nanoseconds of all sweeps in the folder `log`, in ascending order."""
    files = (log / SWEEPS).glob("*.feather")
    return sorted(int(path.stem) for path in files if path.stem.isdecimal())
