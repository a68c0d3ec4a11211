"""The folders of SemanticKITTI: ``sequences/NN``, with ``velodyne/*.bin`` and ``labels/*.label``.

Source: the data set's page (Behley et al., "SemanticKITTI: A Dataset for Semantic Scene
Understanding of LiDAR Sequences", 2019), which also fixes the split.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from voxax.errors import FileFormatError, InputError
from voxax.io.point_cloud import PointCloud
from voxax.io.reading import read
from voxax.io.semantic_kitti import to_common_classes

TRAIN = ("00", "01", "02", "03", "04", "05", "06", "07", "09", "10")
VALIDATION = ("08",)


@dataclass(frozen=True)
class SemanticKittiScan:
    """Task: one sweep, in the 19 common classes."""

    points: str
    labels: str

    def __call__(self) -> PointCloud:
        cloud = read(self.points, self.labels)
        try:
            return cloud.with_labels(to_common_classes(cloud.labels))  # type: ignore[arg-type]
        except InputError as error:
            raise FileFormatError(f"{self.labels}: {error}") from error

    def __str__(self) -> str:
        return self.points


def semantic_kitti_scans(folder: Path, sequences: Sequence[str]) -> list[SemanticKittiScan]:
    """The sweeps of some sequences, in order of time.

    Raises:
        FileFormatError: a sequence, its sweeps or the labels of one are missing.
    """
    place = folder / "sequences"
    if not place.is_dir():
        raise FileFormatError(
            f"{folder} has no folder sequences, which the layout of SemanticKITTI begins with"
        )
    scans = []
    for name in sequences:
        own = place / name
        if not own.is_dir():
            there = ", ".join(sorted(p.name for p in place.iterdir() if p.is_dir()))
            raise FileFormatError(f"{place} has no sequence {name!r}; it has {there or 'none'}")
        sweeps = sorted((own / "velodyne").glob("*.bin"))
        if not sweeps:
            raise FileFormatError(f"{own / 'velodyne'} holds no sweeps (*.bin)")
        for sweep in sweeps:
            labels = own / "labels" / f"{sweep.stem}.label"
            if not labels.is_file():
                raise FileFormatError(
                    f"{sweep} has no labels: {labels} is missing; sequences 11 to 21 of the data "
                    "set have none"
                )
            scans.append(SemanticKittiScan(str(sweep), str(labels)))
    return scans
