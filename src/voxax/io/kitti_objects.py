"""Read KITTI's object detection data, and Waymo's in KITTI's layout: sweeps, boxes, calibration.

KITTI has ``training/velodyne/*.bin``, ``training/label_2/*.txt``, ``training/calib/*.txt``, and
lists of frames in ``ImageSets/*.txt``. Waymo's data are in the layout that MMDetection3D wrote
before version 1.4: boxes are in ``label_all``, with KITTI's columns, then the number of the camera,
and optionally the object's identifier. Points and boxes of Waymo are in the frame of the vehicle,
whose origin is on the ground.

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
"""The classes that KITTI's benchmark evaluates."""
# Width and height of most images, assumed if the images are missing.
IMAGE_SIZE = (1242, 375)
PNG = struct.Struct(">8s8xII")
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# type truncated occluded alpha, rectangle, height width length, x y z, rotation_y
LABEL_COLUMNS = 15
# The camera's projection, its rectification, and the transform from the scanner to the camera.
CALIBRATION = ("P2", "R0_rect", "Tr_velo_to_cam")
SHAPES = ((3, 4), (3, 3), (3, 4))
# Points nearer to the camera's plane, in meters, are outside the image.
NEAREST = 1e-3


@dataclass(frozen=True, eq=False)
class Calibration:
    """The calibration of one KITTI frame: transforms from the scanner to the camera and its image.

    Attributes:
      camera: the transform from the scanner to the rectified camera (x right, y down, z forward).
      projection: the matrix [3, 4] from the rectified camera to pixels.
      image_size: width and height of the image in pixels.
      true: the true boxes of the frame, in the form that :meth:`found` returns; None if they were
        not read.
    """

    camera: Pose
    projection: np.ndarray
    image_size: tuple[int, int] = IMAGE_SIZE
    true: KittiObjects | None = None

    def pixels(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Project points [..., 3] in the scanner's frame into the image.

        Return pixels [..., 2] (x to the right, y down) and the depths [...] of the points.
        """
        there = self.camera.points(points)
        projected = there @ self.projection[:, :3].T + self.projection[:, 3]
        depth = projected[..., 2]
        return projected[..., :2] / np.maximum(depth, NEAREST)[..., None], depth

    def in_image(self, points: np.ndarray) -> np.ndarray:
        """Return bool [...]: whether points [..., 3] in the scanner's frame are in the image.

        The data set has annotations only for objects that the camera sees.
        """
        places, depth = self.pixels(points)
        return ((places >= 0) & (places < self.image_size)).all(-1) & (depth > NEAREST)

    def rectangles(self, boxes: np.ndarray) -> np.ndarray:
        """Project boxes [M, 7] in the scanner's frame to image rectangles [M, 4] in pixels.

        A row has left, top, right and bottom, clipped to the image.
        """
        places, _ = self.pixels(corners(np.asarray(boxes, np.float64).reshape(-1, 7)))
        limit = np.asarray(self.image_size) - 1.0
        low, high = (np.clip(ends(places, axis=1), 0, limit) for ends in (np.min, np.max))
        return np.concatenate([low, high], axis=1)

    def boxes(self, locations: np.ndarray, sizes: np.ndarray, yaws: np.ndarray) -> np.ndarray:
        """Convert boxes from KITTI's label format to boxes [M, 7] in the scanner's frame.

        Args:
          locations: the middle of each box's bottom in the camera's frame, [M, 3].
          sizes: height, width and length of each box, [M, 3].
          yaws: angles around the camera's y axis in radians, [M]; 0 is along the camera's x axis.
        """
        height, width, length = sizes.T
        middle = locations - np.stack([0 * height, height / 2, 0 * height], axis=1)
        back = self.camera.inverse()
        heading = back.vectors(np.stack([np.cos(yaws), 0 * yaws, -np.sin(yaws)], axis=1))
        yaw = np.arctan2(heading[:, 1], heading[:, 0])
        return np.column_stack([back.points(middle), length, width, height, yaw])

    def found_rows(self, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Convert boxes [M, 7] or [M, 9] in the scanner's frame to rows of KITTI's label format.

        Only the K boxes whose center is in the image get a row, because KITTI annotates only them.
        Return bool [M], whether a box gets a row, and the rows [K, 7]. A row has height, width,
        length, the middle of the bottom in the camera's frame, and the angle around the camera's y
        axis.
        """
        boxes = np.asarray(boxes, np.float64)[:, :7]
        seen = self.in_image(boxes[:, :3])
        boxes = boxes[seen]
        bottom = self.camera.points(boxes[:, :3])
        bottom[:, 1] += boxes[:, 5] / 2
        return seen, np.column_stack([boxes[:, [5, 4, 3]], bottom, self._turns(boxes[:, 6])])

    def _turns(self, yaws: np.ndarray) -> np.ndarray:
        """Convert yaws [M] in the scanner's frame to angles around the camera's y axis, [M]."""
        heading = self.camera.vectors(np.stack([np.cos(yaws), np.sin(yaws), 0 * yaws], axis=1))
        return np.arctan2(-heading[:, 2], heading[:, 0])

    def alphas(self, boxes: np.ndarray) -> np.ndarray:
        """Return the observation angles [M] of boxes [M, 7] in the scanner's frame, in -pi..pi.

        A box's angle is its yaw around the camera's y axis minus the azimuth of its center.
        """
        boxes = np.asarray(boxes, np.float64).reshape(-1, 7)
        seen = self.camera.points(boxes[:, :3])
        return wrap_angle(self._turns(boxes[:, 6]) - np.arctan2(seen[:, 0], seen[:, 2]))

    def found(self, boxes: np.ndarray, classes: np.ndarray, scores: np.ndarray) -> KittiObjects:
        """Convert detected boxes to the input of the metric :func:`voxax.detection.kitti_ap`.

        `boxes` are [M, 7] in the scanner's frame. The benchmark compares boxes that are upright in
        the camera's frame, so the result is in that frame, with axes x forward, y to the left and
        z up. Boxes whose center is not in the image are left out.
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
    """Convert rows [M, 7] of a label file to boxes [M, 7] with x forward, y to the left, z up.

    A row has height, width, length, the middle of the bottom (x right, y down, z forward), and the
    angle around the y axis. A box has center, length, width, height and yaw around the z axis. The
    origin of both frames is the camera.
    """
    height, width, length, x, y, z, turn = rows.T
    return np.column_stack([z, -x, height / 2 - y, length, width, height, -turn - np.pi / 2])


def read_calibration(
    path: Path, image: Path | None = None, entries: tuple[str, str, str] = CALIBRATION
) -> Calibration:
    """Read a calibration file ``calib/*.txt``, and the size of the camera's image.

    `image` is the image's path; if it is None or missing, the size is ``IMAGE_SIZE``. `entries` are
    the names of the lines with the projection, rectification, and scanner-to-camera transform.
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
    """Read a label file ``label_2/*.txt`` as boxes in the scanner's frame.

    `calibration` gives the transform between the camera of the file and the scanner. A row of the
    class ``DontCare`` has an image rectangle but no box, so its box is all zeros. The scores are
    the 16th column of the file; if the file has 15 columns, the scores are None.
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
    """Read a label file: return M class names, and the numbers after the name, float64 [M, k].

    `columns` are the allowed numbers of columns of a row, including the name. All rows must have
    equally many numbers. Of each row, only the first `read` columns are read; None reads all.
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
    """The boxes of a KITTI label file, in the scanner's frame.

    `upright` is a ``KittiObjects`` with the same boxes in the camera's frame, but with z up, as in
    the result of :meth:`Calibration.found`. It is computed directly from the numbers in the file.
    """

    upright: Any = None


@dataclass(frozen=True)
class _Frame:
    """Base class of the callables that read one frame of KITTI or Waymo.

    Attributes:
      folder: the folder that contains ``velodyne``, ``calib`` and the folder of boxes.
      name: the name of the frame, such as ``000123``.
      labeled: whether boxes are read.
    """

    folder: str
    name: str
    labeled: bool = True

    def __str__(self) -> str:
        return f"{self.folder}/velodyne/{self.name}.bin"

    def _text(self, kind: str) -> str:
        return f"{self.folder}/{kind}/{self.name}.txt"


class KittiFrame(_Frame):
    """Callable that reads one KITTI frame: the points that the camera sees, and the boxes.

    Points outside the image are left out, because the data set has no annotations for them. Boxes
    are read only if `labeled`.
    """

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of sweep, image, calibration and, if `labeled`, boxes.

        The image may be missing.
        """
        image = f"{self.folder}/image_2/{self.name}.png"
        boxes = [self._text("label_2")] if self.labeled else []
        return str(self), image, self._text("calib"), *boxes

    def __call__(self) -> AnnotatedScan:
        sweep, image, calibrated, *boxes = map(Path, self.files)
        calibration = read_calibration(calibrated, image)
        objects: Objects = Objects([], [])
        for path in boxes:
            objects = read_kitti_objects(path, calibration)
            calibration = replace(calibration, true=objects.upright)
        cloud = read(sweep, columns=KITTI_FIELDS)
        cloud = cloud.select(calibration.in_image(cloud.positions))
        if not len(cloud):
            raise FileFormatError(f"{self}: the camera sees none of its points")
        return AnnotatedScan(cloud, objects, calibration)


class KittiObjectFolder(Layout):
    """List the frames in a KITTI folder; their names are such as ``000123``.

    ``scans(names, labeled=False)`` also finds frames in ``testing``, which have no boxes.
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
        """Return the folder that has the frame `name`: ``training`` or ``testing``.

        `needed` are the names of the subfolders with the frame's files, such as ``calib``. If
        labels are needed, the folder is ``training``. Otherwise it is ``testing`` if ``training``
        has no sweep of the frame. Raise FileFormatError if a subfolder has no file of the frame.
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
    """Return the names of the frames in ``ImageSets/NAME.txt`` of `folder`; NAME is `name`.

    Return ``()`` if the file is missing.
    """
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


# The sixth column is the time or the index in the range image; this depends on the converter.
WAYMO_FIELDS = ("x", "y", "z", "intensity", "elongation", "_")
WAYMO_CALIBRATION = ("P0", "R0_rect", "Tr_velo_to_cam_0")
# The first digit of a frame's name.
SPLIT_DIGITS = {"train": "0", "validation": "1", "test": "2"}
BOXES = "label_all"


class WaymoFrame(_Frame):
    """Callable that reads one Waymo frame: all points, and the boxes if `labeled`."""

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the sweep and, if `labeled`, of the calibration and the boxes."""
        labels = [self._text("calib"), self._text(BOXES)] if self.labeled else []
        return str(self), *labels

    def __call__(self) -> AnnotatedScan:
        sweep, *labels = map(Path, self.files)
        objects = Objects([], [])
        if labels:
            calibration, boxes = labels
            objects = read_waymo_objects(boxes, calibration)
        return AnnotatedScan(read(sweep, columns=WAYMO_FIELDS), objects)


def read_waymo_objects(path: Path, calibration: Path) -> Objects:
    """Read the boxes [M, 7] and class names of one frame, in the frame of the vehicle.

    `path` is that of ``label_all/*.txt``, whose positions are in a camera's frame. `calibration` is
    the path of ``calib/*.txt``, which has the transform from the vehicle to this camera. Rows of
    the class ``DontCare`` are left out.
    """
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
    """List the frames in a Waymo folder; their names are such as ``0000000``.

    ``scans(names, labeled=False)`` also finds frames in ``testing``, which have no boxes.
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
