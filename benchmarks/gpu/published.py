"""Workloads by which others compare: their sizes, from scans and scenes that are here.

Sources: Tang et al., "TorchSparse++", MICRO 2023, the seven of whose figures are named as there;
voxel sizes and ranges of SPVNAS and of CenterPoint's own configurations. FlexGEMM's
``tests/submconv/train_benchmark.py``. :data:`DIFFERS` says what is not theirs.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
from benchmarks.tpu.scans import SCANS, points

# No multiple of a voxel: else a frame would be the last one's voxels.
METERS_A_FRAME = 0.53
TWO_SCENES = "+mirrored"
"""Behind the name of a cloud that has the scene and its mirror image."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """A network on a scene.

    Attributes:
      scene: of :data:`SCENES`.
      frames: sweeps in one.
      voxel: meters along x, y and z.
      width: factor on the channels of MinkUNet18.
      range: low and high corners in meters, of a detector; None is a MinkUNet.
      classes: of the logits.
    """

    scene: str
    frames: int
    voxel: tuple[float, ...]
    width: float = 1.0
    range: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    classes: int = 0

    @property
    def grid(self) -> tuple[int, ...]:
        """Cells of a detector along x, y and z."""
        assert self.range is not None
        low, high = map(np.asarray, self.range)
        return tuple(int(n) for n in np.round((high - low) / self.voxel))

    @property
    def channels(self) -> int:
        """Features of the input."""
        return 4 if self.range is None else 5


_NUSCENES = ((-51.2, -51.2, -5.0), (51.2, 51.2, 3.0))
_WAYMO = ((-75.2, -75.2, -2.0), (75.2, 75.2, 4.0))
SEVEN = {
    "SK-M-1x": Workload("SemanticKITTI", 1, (0.05, 0.05, 0.05), classes=19),
    "SK-M-0.5x": Workload("SemanticKITTI", 1, (0.05, 0.05, 0.05), 0.5, classes=19),
    "NS-M-3f": Workload("nuScenes", 3, (0.1, 0.1, 0.1), classes=16),
    "NS-M-1f": Workload("nuScenes", 1, (0.1, 0.1, 0.1), classes=16),
    "NS-C-10f": Workload("nuScenes", 10, (0.1, 0.1, 0.2), range=_NUSCENES),
    "WM-C-3f": Workload("Waymo", 3, (0.1, 0.1, 0.15), range=_WAYMO),
    "WM-C-1f": Workload("Waymo", 1, (0.1, 0.1, 0.15), range=_WAYMO),
}
"""TorchSparse++'s: MinkUNet18 (M) and CenterPoint's sparse backbone (C)."""

EIGHT = (
    (8, 1024, 16),
    (16, 1024, 8),
    (32, 1024, 4),
    (64, 1024, 2),
    (128, 512, 2),
    (256, 256, 2),
    (512, 128, 2),
    (1024, 64, 2),
)
"""FlexGEMM's: cells along an axis, channels, layers."""

# Name of the scan, and the sensor that is simulated where it is not there.
SCENES = {
    "SemanticKITTI": ("semantickitti", "lidar64"),
    "nuScenes": ("nuscenes", "lidar32"),
    "Waymo": (None, "waymo"),
}

_ONE = "one sweep for theirs of a whole data set"
_MOVED = f"frames are this sweep again, {METERS_A_FRAME} m further each, for sweeps of a drive"
_MADE = "a simulated street and sensor (64 beams, 2,650 columns) for Waymo's"
_TWO = "training: a second scene is the first one mirrored"
_DETECTOR = "the sparse backbone alone; theirs may count more"
DIFFERS = {
    "SK-M-1x": f"{_ONE}; {_TWO}",
    "SK-M-0.5x": f"{_ONE}; {_TWO}",
    "NS-M-3f": f"{_ONE}; {_MOVED}; 0.1 m is assumed; {_TWO}",
    "NS-M-1f": f"{_ONE}; 0.1 m is assumed; {_TWO}",
    "NS-C-10f": f"{_ONE}; {_MOVED}; {_DETECTOR}; {_TWO}",
    "WM-C-3f": f"{_MADE}; {_MOVED}; {_DETECTOR}; {_TWO}",
    "WM-C-1f": f"{_MADE}; {_DETECTOR}; {_TWO}",
    "stack": "FlexGEMM's shells as they are; spconv makes the map once and not in each layer",
}
"""What a workload has in place of the original's data, or measures otherwise."""


def sphere(size: int) -> np.ndarray:
    """FlexGEMM's shell in ``size`` cells along each axis: ``int64[N, 3]`` in canonical order."""
    squares = (np.arange(size) - size / 2 + 0.5) ** 2
    found = []
    for x in range(size):  # plane by plane: the largest has 2**30 cells
        distance = np.sqrt(squares[x] + squares[:, None] + squares)
        plane = np.argwhere((distance <= size / 2) & (distance >= size / 2 - 1.25))
        found.append(np.column_stack([np.full(len(plane), x), plane]))
    return np.concatenate(found)


def scene(workload: Workload, folder: Path | None) -> tuple[np.ndarray, str]:
    """Voxels ``int64[N, 3]`` in canonical order, and what they are made from.

    Args:
      workload: of :data:`SEVEN`.
      folder: of the scans, or None.
    """
    scan, sensor = SCENES[workload.scene]
    if scan is not None and folder is not None and (folder / SCANS[scan][0]).exists():
        found, source = points(folder, scan), f"the scan {scan}"
    else:
        found, source = _simulated(sensor), f"a simulated sweep of {sensor}"
    steps = np.arange(workload.frames) * METERS_A_FRAME
    moved = np.column_stack([steps, np.zeros((len(steps), 2))])
    found = (found + moved[:, None]).reshape(-1, 3)
    low = np.zeros(3)
    if workload.range is not None:
        low, high = map(np.asarray, workload.range)
        found = found[((found >= low) & (found < high)).all(1)]
    rows = np.floor((found - low) / workload.voxel).astype(np.int64)
    if workload.range is not None:  # rounding may reach the cell beyond the last
        rows = np.minimum(rows, np.array(workload.grid) - 1)
    return np.unique(rows, axis=0), f"{source}, {workload.frames} in one, {workload.voxel} m"


@functools.cache
def _simulated(name: str) -> np.ndarray:
    from voxax.io.simulator import Sensor, simulate_sweep

    beams = tuple(np.linspace(-17.6, 2.4, 64))
    waymo = Sensor("waymo", beams, 2650, 2.2, 75.0, range_noise=0.02, dropout=0.04)
    return np.asarray(simulate_sweep(0, sensor=waymo if name == "waymo" else name).positions)
