"""KITTI's object detection data: sweeps, boxes and the calibration that brings them together.

The layout is ``training/velodyne/*.bin``, ``training/label_2/*.txt``, ``training/calib/*.txt``, and
lists of frames in ``ImageSets/*.txt``.

Source: Geiger, Lenz and Urtasun, "Are we ready for Autonomous Driving? The KITTI Vision Benchmark
Suite", CVPR 2012, and ``readme.txt`` of its object development kit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxax.detection.boxes import corners
from voxax.detection.kitti_metric import NO_CARE, KittiObjects
from voxax.errors import FileFormatError, InputError
from voxax.io.annotated import AnnotatedScan
from voxax.io.decoding import existing_file
from voxax.io.formats import read
from voxax.io.kitti import KITTI_FIELDS
from voxax.io.poses import Pose

KITTI_CLASSES = ("Car", "Pedestrian", "Cyclist")
"""Classes that the benchmark evaluates."""
# Width and height of most images, where the images are not there.
IMAGE_SIZE = (1242, 375)
PNG = struct.Struct(">8s8xII")
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# type truncated occluded alpha, rectangle, height width length, x y z, rotation_y
LABEL_COLUMNS = 15
CALIBRATION = {"P2": (3, 4), "R0_rect": (3, 3), "Tr_velo_to_cam": (3, 4)}
# Points nearer to the camera's plane have no place in the image.
NEAREST = 1e-3


@dataclass(frozen=True, eq=False)
class Calibration:
    """Where the camera is, seen from the scanner, and how it projects.

    Attributes:
        camera: from the scanner to the rectified camera: x right, y down, z forward.
        projection: float64 [3, 4], from there to pixels.
        image_size: width and height in pixels.
    """

    camera: Pose
    projection: np.ndarray
    image_size: tuple[int, int] = IMAGE_SIZE

    def pixels(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places [..., 2] of the scanner's points [..., 3] in the image, and depths."""
        there = self.camera.points(points)
        projected = there @ self.projection[:, :3].T + self.projection[:, 3]
        depth = projected[..., 2]
        return projected[..., :2] / np.maximum(depth, NEAREST)[..., None], depth

    def in_image(self, points: np.ndarray) -> np.ndarray:
        """Return bool [...]: which of the scanner's points [..., 3] the camera sees.

        Only what the camera sees is annotated.
        """
        places, depth = self.pixels(points)
        return ((places >= 0) & (places < self.image_size)).all(-1) & (depth > NEAREST)

    def rectangles(self, boxes: np.ndarray) -> np.ndarray:
        """Return the rectangles [M, 4] around boxes [M, 7] in the image, clipped to it."""
        places, _ = self.pixels(corners(np.asarray(boxes, np.float64).reshape(-1, 7)))
        limit = np.asarray(self.image_size) - 1.0
        low, high = (np.clip(ends(places, axis=1), 0, limit) for ends in (np.min, np.max))
        return np.concatenate([low, high], axis=1)

    def boxes(self, locations: np.ndarray, sizes: np.ndarray, yaws: np.ndarray) -> np.ndarray:
        """Return boxes [M, 7] in the scanner's frame.

        Args:
            locations: [M, 3] in the camera's frame, the middle of the bottom.
            sizes: [M, 3], height, width and length.
            yaws: [M], around the camera's y axis, 0 along its x axis.
        """
        height, width, length = sizes.T
        middle = locations - np.stack([0 * height, height / 2, 0 * height], axis=1)
        back = self.camera.inverse()
        heading = back.vectors(np.stack([np.cos(yaws), 0 * yaws, -np.sin(yaws)], axis=1))
        yaw = np.arctan2(heading[:, 1], heading[:, 0])
        return np.column_stack([back.points(middle), length, width, height, yaw])

    def found(self, boxes: np.ndarray, classes: np.ndarray, scores: np.ndarray) -> KittiObjects:
        """Return what a network found, for :func:`voxax.detection.kitti_ap`.

        Boxes whose center the camera does not see are left out: no truth is known there.

        Args:
            boxes: [M, 7] in the scanner's frame.
            classes: [M], names.
            scores: [M].
        """
        boxes = np.asarray(boxes, np.float64)[:, :7]
        seen = self.in_image(boxes[:, :3])
        boxes = boxes[seen]
        rectangles = self.rectangles(boxes)
        return KittiObjects(boxes, np.asarray(classes)[seen], np.asarray(scores)[seen], rectangles)


def read_calibration(path: Path, image: Path | None = None) -> Calibration:
    """Read a ``calib/*.txt``, and the size of the image where that is there.

    Raises:
        FileFormatError: an entry is missing or has another number of values; names the line.
    """
    found: dict[str, np.ndarray] = {}
    for number, line in enumerate(existing_file(path).read_text("latin-1").splitlines(), 1):
        name, colon, rest = line.partition(":")
        if not colon or name.strip() not in CALIBRATION:
            continue
        shape = CALIBRATION[name.strip()]
        values = _numbers(rest.split(), path, number)
        if values.size != np.prod(shape):
            raise FileFormatError(
                f"{path}:{number}: {name} has {values.size} numbers, it must have {np.prod(shape)}"
            )
        found[name.strip()] = values.reshape(shape)
    missing = [name for name in CALIBRATION if name not in found]
    if missing:
        raise FileFormatError(
            f"{path} has no line {' and no line '.join(missing)}: calibrations of KITTI's object "
            "detection have P2, R0_rect and Tr_velo_to_cam"
        )
    sensor, rectified = found["Tr_velo_to_cam"], found["R0_rect"]
    try:
        unrectified = Pose(sensor[:, :3], sensor[:, 3])
        camera = unrectified.then(Pose(rectified, np.zeros(3)))
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from error
    size = IMAGE_SIZE if image is None or not image.is_file() else _image_size(image)
    return Calibration(camera, found["P2"], size)


def read_kitti_objects(path: Path, calibration: Calibration) -> KittiObjects:
    """Read a ``label_2/*.txt`` as boxes in the scanner's frame, without ground truth if empty.

    Rows ``DontCare`` keep their rectangle; their box is 0. A 16th column has scores.

    Raises:
        FileFormatError: a row of another length, a word that is no number, a size that is not
            positive; names the line.
    """
    if not path.is_file():
        raise FileFormatError(f"no file {path}: it should hold the boxes of a frame")
    names: list[str] = []
    rows: list[np.ndarray] = []
    for number, line in enumerate(path.read_text("latin-1").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) not in (LABEL_COLUMNS, LABEL_COLUMNS + 1):
            raise FileFormatError(
                f"{path}:{number}: {len(words)} columns, rows of KITTI have {LABEL_COLUMNS}, and "
                f"{LABEL_COLUMNS + 1} with a score"
            )
        values = _numbers(words[1:], path, number)
        sizes = values[7:10]
        if words[0].lower() != NO_CARE and (sizes <= 0).any():
            raise FileFormatError(
                f"{path}:{number}: {words[0]} has height, width, length {sizes.tolist()}: sizes "
                "must be positive, in meters"
            )
        names.append(words[0])
        rows.append(values)
    if len({len(row) for row in rows}) > 1:
        raise FileFormatError(f"{path}: some rows have a score and some do not")
    table = np.array(rows) if rows else np.zeros((0, LABEL_COLUMNS - 1))
    boxes = calibration.boxes(table[:, 10:13], table[:, 7:10], table[:, 13])
    boxes[[name.lower() == NO_CARE for name in names]] = 0
    return KittiObjects(
        boxes,
        np.array(names, dtype=object),
        table[:, 14] if table.shape[1] == LABEL_COLUMNS else None,
        table[:, 3:7],
        table[:, 0],
        table[:, 1].astype(int),
    )


@dataclass(frozen=True)
class KittiFrame:
    """Task that reads one frame: the points that the camera sees, and its boxes.

    Attributes:
        folder: that holds ``velodyne``, ``label_2`` and ``calib``.
        name: of the frame, such as ``000123``.
        seen: whether points that the camera does not see are left out; nothing is annotated there.
    """

    folder: str
    name: str
    seen: bool = True

    def __call__(self) -> AnnotatedScan:
        place = Path(self.folder)
        calibration = read_calibration(
            place / "calib" / f"{self.name}.txt", place / "image_2" / f"{self.name}.png"
        )
        objects = read_kitti_objects(place / "label_2" / f"{self.name}.txt", calibration)
        cloud = read(place / "velodyne" / f"{self.name}.bin", columns=KITTI_FIELDS)
        if self.seen:
            cloud = cloud.select(calibration.in_image(cloud.positions))
        if not len(cloud):
            raise FileFormatError(f"{self}: the camera sees none of its points")
        return AnnotatedScan(cloud, objects, calibration)

    def __str__(self) -> str:
        return f"{self.folder}/velodyne/{self.name}.bin"


def kitti_frames(folder: Path, names: Sequence[str]) -> list[KittiFrame]:
    """Return frames by name, such as ``000123``; only names are read.

    Raises:
        FileFormatError: a frame, or one of its three files, is missing.
    """
    place = folder / "training"
    if not place.is_dir():
        raise FileFormatError(
            f"{folder} has no folder training, which the layout of KITTI's object detection has"
        )
    for name in names:
        for part, end in (("velodyne", "bin"), ("label_2", "txt"), ("calib", "txt")):
            path = place / part / f"{name}.{end}"
            if not path.is_file():
                raise FileFormatError(f"frame {name!r} has no file {path}")
    return [KittiFrame(str(place), name) for name in names]


def image_sets(folder: Path, name: str) -> tuple[str, ...]:
    """Return the frames that ``ImageSets/NAME.txt`` lists; none without the file.

    Raises:
        FileFormatError: it lists none.
    """
    path = folder / "ImageSets" / f"{name}.txt"
    if not path.is_file():
        return ()
    frames = tuple(path.read_text("latin-1").split())
    if not frames:
        raise FileFormatError(f"{path} is empty: it should name a frame on each line")
    return frames


def _numbers(words: Sequence[str], path: Path, line: int) -> np.ndarray:
    values = []
    for word in words:
        try:
            values.append(float(word))
        except ValueError:
            raise FileFormatError(f"{path}:{line}: {word[:40]!r} is no number") from None
    numbers = np.array(values, np.float64)
    if not np.isfinite(numbers).all():
        raise FileFormatError(f"{path}:{line}: numbers must be finite, got {' '.join(words)[:80]}")
    return numbers


def _image_size(path: Path) -> tuple[int, int]:
    with path.open("rb") as stream:
        begin = stream.read(PNG.size)
    if len(begin) < PNG.size or not begin.startswith(PNG_MAGIC):
        raise FileFormatError(f"{path} is no PNG picture; without it {IMAGE_SIZE} is assumed")
    _, width, height = PNG.unpack(begin)
    return width, height
