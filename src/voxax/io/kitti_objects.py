"""KITTI's object detection data, and Waymo's in its layout: sweeps, boxes and their calibration.

KITTI has ``training/velodyne/*.bin``, ``training/label_2/*.txt``, ``training/calib/*.txt``, and
lists of frames in ``ImageSets/*.txt``. Waymo's is what MMDetection3D writes before version 1.4:
boxes are in ``label_all``, with KITTI's columns, then the number of the camera, and maybe the
object's identifier. Its points and boxes are in the frame of the vehicle, whose origin is on the
ground.

Sources: Geiger, Lenz and Urtasun, "Are we ready for Autonomous Driving? The KITTI Vision Benchmark
Suite", CVPR 2012, and ``readme.txt`` of its object development kit; Sun et al., "Scalability in
Perception for Autonomous Driving: Waymo Open Dataset", CVPR 2020, and the conversion of
MMDetection3D 1.3 (``waymo_converter.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from voxax.detection.boxes import corners, wrap_angle
from voxax.detection.kitti_metric import NO_CARE, KittiObjects
from voxax.detection.objects import Objects
from voxax.errors import FileFormatError, InputError
from voxax.io.annotated import AnnotatedScan
from voxax.io.decoding import existing_file
from voxax.io.formats import read
from voxax.io.layout import Layout
from voxax.io.poses import Pose
from voxax.io.records import KITTI_FIELDS

KITTI_CLASSES = ("Car", "Pedestrian", "Cyclist")
"""Classes that the benchmark evaluates."""
# Width and height of most images, where the images are not there.
IMAGE_SIZE = (1242, 375)
PNG = struct.Struct(">8s8xII")
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# type truncated occluded alpha, rectangle, height width length, x y z, rotation_y
LABEL_COLUMNS = 15
# The camera, its rectification, and the scanner seen from it.
CALIBRATION = ("P2", "R0_rect", "Tr_velo_to_cam")
SHAPES = ((3, 4), (3, 3), (3, 4))
# Points nearer to the camera's plane have no place in the image.
NEAREST = 1e-3


@dataclass(frozen=True, eq=False)
class Calibration:
    """Where the camera is, seen from the scanner, and how it projects.

    `camera` leads from the scanner to the rectified camera (x right, y down, z forward),
    `projection` [3, 4] from there to pixels. `true` has the frame's true boxes as :meth:`found`
    returns boxes, if they were read.
    """

    camera: Pose
    projection: np.ndarray
    image_size: tuple[int, int] = IMAGE_SIZE
    true: KittiObjects | None = None

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

    def found_rows(self, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which boxes the camera sees, bool [M], and their rows of a label file [K, 7].

        Boxes are [M, 7] or [M, 9] in the scanner's frame. No truth is known where the camera does
        not see a box's center. A row has height, width, length, the middle of the bottom in the
        camera's frame, and the angle around its y axis.
        """
        boxes = np.asarray(boxes, np.float64)[:, :7]
        seen = self.in_image(boxes[:, :3])
        boxes = boxes[seen]
        bottom = self.camera.points(boxes[:, :3])
        bottom[:, 1] += boxes[:, 5] / 2
        return seen, np.column_stack([boxes[:, [5, 4, 3]], bottom, self._turns(boxes[:, 6])])

    def _turns(self, yaws: np.ndarray) -> np.ndarray:
        """Return the angles around the camera's y axis of yaws in the scanner's frame."""
        heading = self.camera.vectors(np.stack([np.cos(yaws), np.sin(yaws), 0 * yaws], axis=1))
        return np.arctan2(-heading[:, 2], heading[:, 0])

    def alphas(self, boxes: np.ndarray) -> np.ndarray:
        """Return the angles of observation [M] of boxes [M, 7], in -pi..pi.

        It is the yaw around the camera's y axis, less the direction in which the box is seen.
        """
        boxes = np.asarray(boxes, np.float64).reshape(-1, 7)
        seen = self.camera.points(boxes[:, :3])
        return wrap_angle(self._turns(boxes[:, 6]) - np.arctan2(seen[:, 0], seen[:, 2]))

    def found(self, boxes: np.ndarray, classes: np.ndarray, scores: np.ndarray) -> KittiObjects:
        """Return boxes [M, 7] in the scanner's frame for :func:`voxax.detection.kitti_ap`.

        The benchmark compares boxes that stand upright in the camera's frame. So are these: x
        points forward, y to the left and z up.
        """
        seen, rows = self.found_rows(boxes)
        boxes = np.asarray(boxes, np.float64)[seen, :7]
        return KittiObjects(
            upright_boxes(rows),
            np.asarray(classes)[seen],
            np.asarray(scores)[seen],
            self.rectangles(boxes),
            alphas=self.alphas(boxes),
        )


def upright_boxes(rows: np.ndarray) -> np.ndarray:
    """Return boxes [M, 7] in the camera's frame turned so that x points forward and z up.

    Rows [M, 7] are those of a label file: height, width, length, location, and the angle.
    """
    height, width, length, x, y, z, turn = rows.T
    return np.column_stack([z, -x, height / 2 - y, length, width, height, -turn - np.pi / 2])


def read_calibration(
    path: Path, image: Path | None = None, entries: tuple[str, str, str] = CALIBRATION
) -> Calibration:
    """Read a ``calib/*.txt``, and the size of the camera's image where that is there.

    `entries` are the names of its lines, in the order of ``CALIBRATION``.
    """
    found: dict[str, np.ndarray] = {}
    for number, line in enumerate(existing_file(path).read_text("latin-1").splitlines(), 1):
        name, colon, rest = line.partition(":")
        if not colon or name.strip() not in entries:
            continue
        shape = SHAPES[entries.index(name.strip())]
        values = _numbers(rest.split(), path, number)
        if values.size != np.prod(shape):
            raise FileFormatError(
                f"{path}:{number}: {name} has {values.size} numbers, it must have {np.prod(shape)}"
            )
        found[name.strip()] = values.reshape(shape)
    missing = [name for name in entries if name not in found]
    if missing:
        raise FileFormatError(
            f"{path} has no line {' and no line '.join(missing)}: calibrations of this layout have "
            f"{', '.join(entries)}"
        )
    projection, rectified, sensor = (found[name] for name in entries)
    try:
        unrectified = Pose(sensor[:, :3], sensor[:, 3])
        camera = unrectified.then(Pose(rectified, np.zeros(3)))
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from error
    size = IMAGE_SIZE if image is None or not image.is_file() else _image_size(image)
    return Calibration(camera, projection, size)


def read_kitti_objects(path: Path, calibration: Calibration) -> KittiLabels:
    """Read a ``label_2/*.txt`` as boxes in the scanner's frame, without ground truth if empty.

    Rows ``DontCare`` keep their rectangle; their box is 0. A 16th column has scores.
    """
    names, table = label_rows(path, (LABEL_COLUMNS, LABEL_COLUMNS + 1))
    unboxed = [name.lower() == NO_CARE for name in names]
    boxes = calibration.boxes(table[:, 10:13], table[:, 7:10], table[:, 13])
    upright = upright_boxes(table[:, 7:14])
    boxes[unboxed] = upright[unboxed] = 0
    scores = table[:, 14] if table.shape[1] == LABEL_COLUMNS else None
    classes = np.array(names, dtype=object)
    more = table[:, 3:7], table[:, 0], table[:, 1].astype(int), table[:, 2]
    return KittiLabels(
        boxes, classes, scores, *more, upright=KittiObjects(upright, classes, scores, *more)
    )


def label_rows(
    path: Path, columns: Sequence[int], read: int | None = None
) -> tuple[list[str], np.ndarray]:
    """Return the names of a label file's boxes, and the numbers after them, float64 [M, k].

    All rows have the same one of these numbers of columns, the name among them; of these the first
    `read` are read, or all.
    """
    if not path.is_file():
        raise FileFormatError(f"no file {path}: it should hold the boxes of a frame")
    names: list[str] = []
    rows: list[np.ndarray] = []
    for number, line in enumerate(path.read_text("latin-1").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) not in columns:
            raise FileFormatError(
                f"{path}:{number}: {len(words)} columns, rows of {path.parent.name} have "
                f"{' or '.join(map(str, columns))}"
            )
        values = _numbers(words[1:read], path, number)
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
    return names, np.array(rows) if rows else np.zeros((0, LABEL_COLUMNS - 1))


@dataclass(frozen=True)
class KittiLabels(KittiObjects):
    """The rows of a label file, in the scanner's frame.

    `upright` are the same as :meth:`Calibration.found` returns boxes, straight from the file.
    """

    upright: Any = None


@dataclass(frozen=True)
class KittiFrame:
    """Task that reads one frame, such as ``000123``: points that the camera sees, and its boxes.

    `folder` holds ``velodyne``, ``label_2`` and ``calib``. What the camera does not see is not
    annotated.
    """

    folder: str
    name: str
    labeled: bool = True

    def __call__(self) -> AnnotatedScan:
        place = Path(self.folder)
        calibration = read_calibration(
            place / "calib" / f"{self.name}.txt", place / "image_2" / f"{self.name}.png"
        )
        objects: Objects = Objects([], [])
        if self.labeled:
            objects = read_kitti_objects(place / "label_2" / f"{self.name}.txt", calibration)
            calibration = replace(calibration, true=objects.upright)
        cloud = read(place / "velodyne" / f"{self.name}.bin", columns=KITTI_FIELDS)
        cloud = cloud.select(calibration.in_image(cloud.positions))
        if not len(cloud):
            raise FileFormatError(f"{self}: the camera sees none of its points")
        return AnnotatedScan(cloud, objects, calibration)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it reads."""
        others = (f"{self.folder}/{kind}/{self.name}.txt" for kind in ("calib", "label_2"))
        return (str(self), f"{self.folder}/image_2/{self.name}.png", *others)

    def __str__(self) -> str:
        return f"{self.folder}/velodyne/{self.name}.bin"


class KittiObjectFolder(Layout):
    """See :class:`voxax.io.layout.Layout`; names are those of frames, such as ``000123``.

    Without boxes, frames are those of ``testing``.
    """

    task = "detect"
    marks = ("training/velodyne", "testing/velodyne")
    class_names = KITTI_CLASSES
    attributes = ("intensity",)

    def split(self, name: str) -> Sequence[str]:
        return image_sets(self.folder, "val" if name == "validation" else name)

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[Any]:
        needed = ("velodyne", "calib", *(("label_2",) * labeled))
        return [
            KittiFrame(str(self._place_of(name, needed)), name, labeled=labeled) for name in names
        ]

    def _place_of(self, name: str, needed: Sequence[str]) -> Path:
        """Return the folder with a frame's files in the folders `needed`.

        That is ``training``; where no boxes are needed also ``testing``, without the frame there.
        """
        place = self.folder / "training"
        labeled = any(part.startswith("label") for part in needed)
        if not labeled and not (place / "velodyne" / f"{name}.bin").is_file():
            place = self.folder / "testing"
        if not place.is_dir():
            raise FileFormatError(
                f"{self.folder} has no folder {place.name}, which the layout of KITTI's object "
                "detection has"
            )
        for part in needed:
            path = place / part / f"{name}.{'bin' if part == 'velodyne' else 'txt'}"
            if not path.is_file():
                raise FileFormatError(f"frame {name!r} has no file {path}")
        return place


def image_sets(folder: Path, name: str) -> tuple[str, ...]:
    """Return the frames that ``ImageSets/NAME.txt`` lists; none without the file."""
    path = folder / "ImageSets" / f"{name}.txt"
    if not path.is_file():
        return ()
    frames = tuple(path.read_text("latin-1").split())
    if not frames:
        raise FileFormatError(f"{path} is empty: it should name a frame on each line")
    return frames


def _numbers(words: Sequence[str], path: Path, line: int) -> np.ndarray:
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError as error:
        raise FileFormatError(f"{path}:{line}: {str(error)[:80]}") from None
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


# The sixth is the time or the place in the range image, by the version of the conversion.
WAYMO_FIELDS = ("x", "y", "z", "intensity", "elongation", "_")
WAYMO_CALIBRATION = ("P0", "R0_rect", "Tr_velo_to_cam_0")
# The first digit of a frame's name.
SPLIT_DIGITS = {"train": "0", "validation": "1", "test": "2"}
BOXES = "label_all"


@dataclass(frozen=True)
class WaymoFrame:
    """Task that reads all points of one frame, such as ``0000000``, and maybe its boxes.

    `folder` holds ``velodyne``, ``label_all`` and ``calib``.
    """

    folder: str
    name: str
    labeled: bool = True

    def __call__(self) -> AnnotatedScan:
        place = Path(self.folder)
        objects = Objects([], [])
        if self.labeled:
            calibration = place / "calib" / f"{self.name}.txt"
            objects = read_waymo_objects(place / BOXES / f"{self.name}.txt", calibration)
        return AnnotatedScan(read(str(self), columns=WAYMO_FIELDS), objects)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it reads."""
        return (str(self), *(f"{self.folder}/{kind}/{self.name}.txt" for kind in ("calib", BOXES)))

    def __str__(self) -> str:
        return f"{self.folder}/velodyne/{self.name}.bin"


def read_waymo_objects(path: Path, calibration: Path) -> Objects:
    """Return the boxes [M, 7] of a ``label_all/*.txt`` in the frame of the vehicle."""
    camera = read_calibration(calibration, entries=WAYMO_CALIBRATION).camera
    names, table = label_rows(path, (LABEL_COLUMNS + 1, LABEL_COLUMNS + 2), LABEL_COLUMNS)
    known = [name.lower() != NO_CARE for name in names]
    height, width, length = table[known, 7:10].T
    # The conversion moves the middle of the bottom into the camera's frame, and keeps the yaw.
    centers = camera.inverse().points(table[known, 10:13])
    centers[:, 2] += height / 2
    yaw = -table[known, 13] - np.pi / 2
    boxes = np.column_stack([centers, length, width, height, yaw])
    return Objects(boxes, np.array(names, dtype=object)[known])


class Waymo(KittiObjectFolder):
    """See :class:`voxax.io.layout.Layout`; names are those of frames, such as ``0000000``.

    Without boxes, frames are also those of ``testing``.
    """

    marks = (f"training/{BOXES}", "training/image_0", "testing/image_0")
    attributes = None

    def split(self, name: str) -> Sequence[str]:
        listed = super().split(name)
        place = self.folder / ("testing" if name == "test" else "training") / "velodyne"
        return listed or sorted(p.stem for p in place.glob(f"{SPLIT_DIGITS[name]}*.bin"))

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[Any]:
        training = self.folder / "training"
        if labeled and not (training / BOXES).is_dir():
            raise FileFormatError(
                f"{training} has no folder {BOXES} with the boxes as text: MMDetection3D writes "
                "it up to version 1.3; convert Waymo's files with tools/create_data.py of 1.3"
            )
        needed = ("velodyne", *((BOXES, "calib") if labeled else ()))
        return [WaymoFrame(str(self._place_of(name, needed)), name, labeled) for name in names]
