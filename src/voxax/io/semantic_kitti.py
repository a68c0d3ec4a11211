"""Read SemanticKITTI: ``sequences/NN`` with ``velodyne/*.bin`` and ``labels/*.label``.

In the data set, class 0 means "ignore" and the classes are 1..19. In voxax the classes are 0..18,
and -1 means "ignore", so that a model needs no output for ignored points.

Source: the data set's page, which also fixes the split (Behley et al., "SemanticKITTI: A Dataset
for Semantic Scene Understanding of LiDAR Sequences", 2019), and ``semantic-kitti.yaml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import FileFormatError, InputError
from voxax.io.formats import read
from voxax.io.layout import Layout, PathTask
from voxax.io.point_cloud import PointCloud, as_labels
from voxax.io.records import KITTI_FIELDS

TRAIN = ("00", "01", "02", "03", "04", "05", "06", "07", "09", "10")
VALIDATION = ("08",)
TEST = tuple(str(number) for number in range(11, 22))


# Ids in the files for each class; the most frequent id is first.
RAW_IDS = {
    "car": (10, 252),  # and moving-car
    "bicycle": (11,),
    "motorcycle": (15,),
    "truck": (18, 258),
    "other-vehicle": (13, 16, 20, 256, 257, 259),  # bus, on-rails, other-vehicle, and moving ones
    "person": (30, 254),
    "bicyclist": (31, 253),
    "motorcyclist": (32, 255),
    "road": (40, 60),  # and lane-marking
    "parking": (44,),
    "sidewalk": (48,),
    "other-ground": (49,),
    "building": (50,),
    "fence": (51,),
    "vegetation": (70,),
    "trunk": (71,),
    "terrain": (72,),
    "pole": (80,),
    "traffic-sign": (81,),
}
IGNORED_IDS = (0, 1, 52, 99)  # unlabeled, outlier, other-structure, other-object
SEMANTIC_KITTI_CLASS_NAMES = tuple(RAW_IDS)
SEMANTIC_KITTI_LEARNING_MAP = dict.fromkeys(IGNORED_IDS, -1) | {
    raw: place for place, ids in enumerate(RAW_IDS.values()) for raw in ids
}


def to_common_classes(raw: ArrayLike) -> np.ndarray:
    """Convert raw SemanticKITTI ids to the 19 classes of the benchmark.

    Args:
      raw: integers [N], the low 16 bits of a ``.label`` file, as
          :func:`voxax.io.read_labels` returns them.

    Returns:
      int32 [N]: 0..18, an index into `SEMANTIC_KITTI_CLASS_NAMES`, or -1 for points
      that the benchmark ignores.

    Raises:
      InputError: an id does not exist in the data set.
    """
    present, where = np.unique(as_labels(raw), return_inverse=True)
    unknown = sorted({*present.tolist()} - {*SEMANTIC_KITTI_LEARNING_MAP})
    if unknown:
        raise InputError(
            f"{len(unknown)} ids are not SemanticKITTI's: {unknown[:8]}; its raw ids are "
            f"{sorted(SEMANTIC_KITTI_LEARNING_MAP)}"
        )
    table = [SEMANTIC_KITTI_LEARNING_MAP[value] for value in present.tolist()]
    return np.array(table, np.int32)[where]


@dataclass(frozen=True)
class SemanticKittiScan(PathTask):
    """Callable that reads a sweep (path `points`) and, if `labels` is a path, labels 0 to 18."""

    points: str
    labels: str | None

    def __call__(self) -> PointCloud:
        cloud = read(self.points, self.labels, columns=KITTI_FIELDS)
        if cloud.labels is None:
            return cloud
        try:
            return cloud.with_labels(to_common_classes(cloud.labels))
        except InputError as error:
            raise FileFormatError(f"{self.labels}: {error}") from error


class SemanticKitti(Layout):
    """List the sweeps of sequences in a SemanticKITTI folder; names are of sequences, as ``08``."""

    marks = ("sequences/*/velodyne",)
    class_names = SEMANTIC_KITTI_CLASS_NAMES
    attributes = ("intensity",)

    def split(self, name: str) -> Sequence[str]:
        return {"train": TRAIN, "validation": VALIDATION, "test": TEST}[name]

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[SemanticKittiScan]:
        place = self.folder / "sequences"
        if not place.is_dir():
            raise FileFormatError(
                f"{self.folder} has no folder sequences, which the layout of SemanticKITTI begins "
                "with"
            )
        scans = []
        for name in names:
            own = place / name
            if not own.is_dir():
                there = ", ".join(sorted(p.name for p in place.iterdir() if p.is_dir()))
                raise FileFormatError(f"{place} has no sequence {name!r}; it has {there or 'none'}")
            sweeps = sorted((own / "velodyne").glob("*.bin"))
            if not sweeps:
                raise FileFormatError(f"{own / 'velodyne'} holds no sweeps (*.bin)")
            for sweep in sweeps:
                labels = own / "labels" / f"{sweep.stem}.label"
                if labeled and not labels.is_file():
                    raise FileFormatError(
                        f"{sweep} has no labels: {labels} is missing; sequences 11 to 21 of the "
                        "data set have none"
                    )
                scans.append(SemanticKittiScan(str(sweep), str(labels) if labeled else None))
        return scans
