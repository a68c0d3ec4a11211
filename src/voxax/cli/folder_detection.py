"""The task ``detect`` on folders of annotated scans: more networks, and the benchmarks' scores."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from voxax import models
from voxax.cli.detection_task import BRANCHES, BoxPreparation, Detection
from voxax.cli.driving_scores import KittiScore, NuscenesRunScore
from voxax.cli.published import detector_networks
from voxax.cli.scenes import SceneExample
from voxax.cli.task import mesh_of
from voxax.detection import Objects, augment
from voxax.io import PointCloud
from voxax.io.annotated import AnnotatedScan
from voxax.io.augment import Transform
from voxax.models.centerpoint import BRANCHES as WITH_VELOCITY
from voxax.models.sparse_center_training import SparseCenterTrainer
from voxax.parallel.trainer import DataParallelSparseCenterTrainer

ANCHORED, SPARSE = ("second", "second-residual"), "voxelnext"
SCORES = {"kitti": KittiScore, "nuscenes": NuscenesRunScore}
REGIONS = {
    "kitti": (0.0, -40.0, -3.0, 70.4, 40.0, 1.0),
    "nuscenes": (-51.2, -51.2, -5.0, 51.2, 51.2, 3.0),
}
"""What detectors look at in each data set: lower x, y, z, then upper, in meters."""
# Half the turn of an augmentation, and the mirrored axes. KITTI shows what is in front of the car.
TURNS = {"kitti": (math.pi / 4, (1,)), "nuscenes": (math.pi, (0, 1))}


@dataclasses.dataclass(frozen=True)
class FolderPreparation(BoxPreparation):
    """As :class:`BoxPreparation`; the truth is the whole annotation, which benchmarks want."""

    def __call__(self, scan: AnnotatedScan) -> SceneExample:
        example = super().__call__(scan)
        truth = dataclasses.replace(scan, cloud=PointCloud(np.zeros((0, 3))))
        return dataclasses.replace(example, truth=truth)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderDetection(Detection):
    """Settings of a network that detects; scenes are annotated scans.

    Attributes:
      metric: ``kitti`` or ``nuscenes``, whose scans the scenes are then; ``distance`` compares
        centers.
    """

    metric: str = "distance"

    @classmethod
    def networks(cls) -> Sequence[str]:
        others = (name for name in detector_networks() if name not in ANCHORED)
        return tuple(dict.fromkeys((*super().networks(), *others)))

    @classmethod
    def shares_equally(cls, network: str) -> bool:
        return not network.startswith(SPARSE)  # its layers count voxels

    @property
    def has_velocity(self) -> bool:
        """Whether boxes have velocities, which the small network does not learn."""
        return self.metric == "nuscenes" and self.network != "small"

    def preparation(self) -> BoxPreparation:
        plain = super().preparation()
        if self.metric not in SCORES:
            return plain
        fields: dict[str, Any] = {f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)}
        fields["columns"] = 9 if self.has_velocity else 7
        return FolderPreparation(**fields)

    def model(self) -> Any:
        if self.network == "small":
            return super().model()
        channels, classes = self.preparation().num_channels, len(self.class_names)
        branches = dict(WITH_VELOCITY if self.has_velocity else BRANCHES)
        options: dict[str, Any] = {"grid": self.region.grid, "branches": branches}
        if self.groups is not None:
            options["groups"] = self.groups
        return self._made(channels, classes, options | self.options)

    def trainer(self, devices: int = 1) -> Any:
        if not self.network.startswith(SPARSE):
            return super().trainer(devices)
        model = self.model()
        assert isinstance(model, models.VoxelNeXt)
        looked = self.region, len(self.class_names)
        options: dict[str, Any] = {"box_weight": self.box_weight, "min_radius": self.min_radius}
        if devices == 1:
            return SparseCenterTrainer(model, self.optimizer(), *looked, **options)
        mesh = mesh_of(devices)
        return DataParallelSparseCenterTrainer(model, self.optimizer(), mesh, *looked, **options)

    def score(self) -> Any:
        kind = SCORES.get(self.metric)
        return super().score() if kind is None else kind(self.class_names)


def box_transform(
    layout: str,
    *,
    rotate: bool,
    flip: bool,
    scales: tuple[float, float],
    points: Transform | None = None,
) -> functools.partial[AnnotatedScan]:
    """Return random changes of annotated scans, picklable.

    Args:
      layout: ``kitti`` or ``nuscenes``; KITTI's scans turn by at most 45 degrees and mirror y only.
      rotate, flip: whether they do.
      scales: smallest and largest factor.
      points: changes the cloud alone, afterwards.
    """
    max_angle, flips = TURNS[layout]
    return functools.partial(
        _changed,
        max_angle=max_angle if rotate else 0.0,
        flips=flips if flip else (),
        scales=scales,
        points=points,
    )


def _changed(
    scan: AnnotatedScan,
    rng: np.random.Generator,
    *,
    max_angle: float,
    flips: Sequence[int],
    scales: tuple[float, float],
    points: Transform | None,
) -> AnnotatedScan:
    own = scan.objects
    positions, boxes = augment(
        scan.cloud.positions, own.boxes, rng, max_angle=max_angle, flips=flips, scales=scales
    )
    cloud = dataclasses.replace(scan.cloud, positions=positions)
    if points is not None:
        cloud = points(cloud, rng)
    return AnnotatedScan(cloud, Objects(boxes, own.classes), scan.about)
