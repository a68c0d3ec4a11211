"""Write predictions as files in the formats that the servers of benchmarks accept."""

from __future__ import annotations

import abc
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from voxax._atomic_file import write_atomically
from voxax.detection.objects import Objects
from voxax.errors import FileFormatError
from voxax.io.annotated import AnnotatedScan
from voxax.io.layout import Layout
from voxax.io.numpy_files import read_npy_array
from voxax.io.nuscenes import MOST_BOXES, LidarsegScan, NuscenesSample
from voxax.io.ply import read_ply_vertices
from voxax.io.pointcept import ArrayScene
from voxax.io.records import KITTI_FIELDS, NUSCENES_FIELDS, records
from voxax.io.scannet import SCANNET200_CLASSES, SCANNET_CLASSES
from voxax.io.semantic_kitti import RAW_IDS, SemanticKittiScan


class Submission(abc.ABC):
    """Base class that writes the predictions for one split of a data set, scan by scan.

    Args:
      folder: the folder to write into, which must exist.
      layout: the data set.
      split: the name of the split: ``train``, ``validation`` or ``test``.

    Attributes:
      task: the task of the benchmark, ``segment`` or ``detect``.
    """

    task: ClassVar[str] = "segment"

    def __init__(self, folder: Path, layout: Layout, split: str) -> None:
        self.folder, self.layout, self.split = folder, layout, split

    @abc.abstractmethod
    def add(self, scan: Any, read: Any, found: Any) -> None:
        """Write the prediction for one scan.

        Args:
          scan: the task that read the scan, from :meth:`voxax.io.layout.Layout.scans`.
          read: what ``scan()`` returned, with N points.
          found: the predicted class of each point, int [N]; or predicted boxes with class names and
            scores, :class:`voxax.detection.Objects`, in the frame of the points.
        """

    def close(self) -> Path:
        """Write the remaining files, and return the path of the file or folder to submit."""
        return self.folder


def _spread(values: np.ndarray, positions: np.ndarray, missing: int, path: str) -> np.ndarray:
    """Return an array [N] with `values` at the finite rows of `positions` [N, 3], else `missing`.

    `values` has one value for each finite row, in order. Another number of values raises
    FileFormatError with the scan's `path`.
    """
    finite = np.isfinite(positions).all(axis=1)
    if finite.sum() != len(values):
        raise FileFormatError(
            f"{path} has {int(finite.sum())} points, and {len(values)} were labeled: submit what "
            "was read whole, without a radius"
        )
    whole = np.full(len(positions), missing, values.dtype)
    whole[finite] = values
    return whole


SEMANTIC_KITTI_IDS = np.array([ids[0] for ids in RAW_IDS.values()], "<u4")
"""The raw id of the data set that is written for each of the 19 classes, uint32 [19]."""


class SemanticKittiSubmission(Submission):
    """Write ``sequences/NN/predictions/*.label`` with the data set's raw class ids, uint32.

    NN is the sequence. :meth:`close` packs these files into ``submission.zip``.
    """

    def add(self, scan: SemanticKittiScan, read: Any, found: np.ndarray) -> None:
        sweep = Path(scan.points)
        rows = records(sweep, "<f4", len(KITTI_FIELDS), "sweep")
        ids = _spread(SEMANTIC_KITTI_IDS[found], rows[:, :3], 0, scan.points)
        place = self.folder / "sequences" / sweep.parent.parent.name / "predictions"
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / f"{sweep.stem}.label", ids.astype("<u4").tobytes())

    def close(self) -> Path:
        name = str(self.folder / "submission")
        # Only this folder is packed, without an older archive. The validator requires directories.
        return Path(shutil.make_archive(name, "zip", self.folder, "sequences"))


class LidarsegSubmission(Submission):
    """Write ``lidarseg/SET/TOKEN_lidarseg.bin`` for nuScenes: uint8, the 16 classes as 1 to 16.

    SET is the split's name in nuScenes, such as ``val``, and TOKEN is the identifier of the sweep.
    :meth:`close` adds ``SET/submission.json``, which names the sensors that were used.
    """

    def add(self, scan: LidarsegScan, read: Any, found: np.ndarray) -> None:
        rows = records(Path(scan.points), "<f4", len(NUSCENES_FIELDS), "sweep")
        # 0 is not allowed, so rows without a measurement get the first class.
        ids = _spread(found.astype(np.uint8) + np.uint8(1), rows[:, :3], 1, scan.points)
        place = self.folder / "lidarseg" / self.layout.set_name(self.split)  # type: ignore[attr-defined]
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / f"{scan.token}_lidarseg.bin", ids.tobytes())

    def close(self) -> Path:
        place = self.folder / self.layout.set_name(self.split)  # type: ignore[attr-defined]
        place.mkdir(exist_ok=True)
        write_atomically(place / "submission.json", json.dumps({"meta": _SENSORS}))
        return self.folder


_SENSORS = {
    f"use_{name}": name == "lidar" for name in ("camera", "lidar", "radar", "map", "external")
}


class NuscenesSubmission(Submission):
    """Write nuScenes' ``results_nusc.json`` with the best boxes of each sample (key frame).

    The boxes are in the world's frame, see :meth:`voxax.io.nuscenes.NuscenesSample.best_in_world`.
    """

    task = "detect"

    def __init__(self, folder: Path, layout: Layout, split: str) -> None:
        super().__init__(folder, layout, split)
        self._results: dict[str, list[dict[str, Any]]] = {}

    def add(self, scan: NuscenesSample, read: Any, found: Objects) -> None:
        boxes = scan.best_in_world(found)
        rows = []
        for i, box in enumerate(boxes.boxes.tolist()):
            half = box[6] / 2
            rows.append(
                {
                    "sample_token": scan.token,
                    "translation": box[:3],
                    "size": [box[4], box[3], box[5]],
                    "rotation": [float(np.cos(half)), 0.0, 0.0, float(np.sin(half))],
                    "velocity": box[7:9],
                    "detection_name": str(boxes.classes[i]),
                    "detection_score": float(boxes.scores[i]),
                    "attribute_name": "",
                }
            )
        assert len(rows) <= MOST_BOXES
        self._results[scan.token] = rows

    def close(self) -> Path:
        path = self.folder / "results_nusc.json"
        return write_atomically(path, json.dumps({"meta": _SENSORS, "results": self._results}))


class KittiSubmission(Submission):
    """Write KITTI's ``data/NNNNNN.txt`` with a row for each box whose center is in the image.

    NNNNNN is the name of the frame. :meth:`close` packs these files into ``submission.zip``.
    """

    task = "detect"

    def add(self, scan: Any, read: AnnotatedScan, found: Objects) -> None:
        calibration = read.about
        kept, rows = calibration.found_rows(found.boxes)
        names, scores = found.classes[kept].tolist(), found.scores[kept]
        boxes = found.boxes[kept, :7]
        numbers = np.column_stack(
            [calibration.alphas(boxes), calibration.rectangles(boxes), rows, scores]
        )
        lines = []
        for name, own in zip(names, numbers.tolist(), strict=True):
            lines.append(f"{name} -1 -1 {' '.join(f'{value:.6f}' for value in own)}\n")
        place = self.folder / "data"
        place.mkdir(exist_ok=True)
        write_atomically(place / f"{scan.name}.txt", "".join(lines))

    def close(self) -> Path:
        # The server needs the files at the top level of the archive.
        name = str(self.folder / "submission")
        return Path(shutil.make_archive(name, "zip", self.folder / "data"))


class ScanNetSubmission(Submission):
    """Write ``SCENE.txt`` with the benchmark's class id of each mesh vertex, one per line."""

    ids: ClassVar[tuple[int, ...]] = tuple(SCANNET_CLASSES)

    def add(self, scan: Any, read: Any, found: np.ndarray) -> None:
        place = Path(str(scan))
        if isinstance(scan, ArrayScene):
            vertices, name = read_npy_array(place / "coord.npy"), place.name
        else:
            vertices, name = read_ply_vertices(place).positions, place.parent.name
        labels = _spread(np.asarray(self.ids)[found], vertices, 0, str(scan))
        write_atomically(self.folder / f"{name}.txt", "".join(f"{i}\n" for i in labels.tolist()))


class ScanNet200Submission(ScanNetSubmission):
    """Write the same files as :class:`ScanNetSubmission`, with the ids of the 200 classes."""

    ids = tuple(SCANNET200_CLASSES)


class S3disSubmission(Submission):
    """Write ``AREA/ROOM.txt`` with a class from 0 to 12 for each point, one per line.

    There is no server for these results. The order of points is that of the room's object files,
    sorted by name, or that of ``coord.npy`` if Pointcept's files are read.
    """

    def add(self, scan: Any, read: Any, found: np.ndarray) -> None:
        room = Path(str(scan))
        place = self.folder / room.parent.name
        place.mkdir(exist_ok=True)
        text = "".join(f"{label}\n" for label in found.tolist())
        write_atomically(place / f"{room.name}.txt", text)


SUBMISSIONS: dict[str, type[Submission]] = {
    "semantic_kitti": SemanticKittiSubmission,
    "scannet": ScanNetSubmission,
    "scannet200": ScanNet200Submission,
    "scannet_pointcept": ScanNetSubmission,
    "scannet200_pointcept": ScanNet200Submission,
    "s3dis": S3disSubmission,
    "s3dis_pointcept": S3disSubmission,
    "kitti": KittiSubmission,
    "nuscenes": NuscenesSubmission,
    "nuscenes_lidarseg": LidarsegSubmission,
}
"""The subclass of :class:`Submission` for each layout, by the layout's name."""
