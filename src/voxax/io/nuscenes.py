"""Read nuScenes: LiDAR sweeps of key frames with boxes and velocities, or with a class per point.

A key frame is a moment with annotations. The data set has tables, ``v1.0-*/*.json``, and sweeps of
key frames, ``samples/LIDAR_TOP/*.pcd.bin``. A key frame can be read with the sweeps before it, from
``sweeps/LIDAR_TOP``. The table ``lidarseg.json`` has the path of a file of uint8 labels for each
sweep. ``category.json`` has the category of each label.

Sources: Caesar et al., "nuScenes: A multimodal dataset for autonomous driving", CVPR 2020; Fong et
al., "Panoptic nuScenes: A Large-Scale Benchmark for LiDAR Panoptic Segmentation and Tracking",
2021; and the schema of its development kit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from voxax.detection.nuscenes_metric import NuscenesObjects
from voxax.detection.objects import Objects
from voxax.errors import FileFormatError, InputError
from voxax.io.annotated import AnnotatedScan
from voxax.io.decoding import existing_file
from voxax.io.formats import read
from voxax.io.layout import Layout, PathTask
from voxax.io.options import DEFAULT
from voxax.io.point_cloud import PointCloud, joined
from voxax.io.poses import Pose
from voxax.io.records import read_nuscenes

NUSCENES_CLASSES = (
    "car", "truck", "construction_vehicle", "bus", "trailer", "barrier", "motorcycle", "bicycle",
    "pedestrian", "traffic_cone",
)  # fmt: skip
"""The ten classes of the nuScenes detection task, in the order of published detectors' outputs."""

CATEGORIES = {
    "human.pedestrian.adult": "pedestrian",
    "human.pedestrian.child": "pedestrian",
    "human.pedestrian.construction_worker": "pedestrian",
    "human.pedestrian.police_officer": "pedestrian",
    "movable_object.barrier": "barrier",
    "movable_object.trafficcone": "traffic_cone",
    "vehicle.bicycle": "bicycle",
    "vehicle.bus.bendy": "bus",
    "vehicle.bus.rigid": "bus",
    "vehicle.car": "car",
    "vehicle.construction": "construction_vehicle",
    "vehicle.motorcycle": "motorcycle",
    "vehicle.trailer": "trailer",
    "vehicle.truck": "truck",
}
"""Detection class for each category in the tables. Boxes of other categories are left out."""

MOST_BOXES = 500
"""The largest number of boxes of a sample that the nuScenes server accepts."""

# Validation scenes of v1.0-mini and of v1.0-trainval. All other scenes are for training.
MINI_VALIDATION = frozenset(("scene-0103", "scene-0916"))
# Ranges of scene numbers: the first and the last number of each range.
_HELD_OUT = (
    (3, 3), (12, 18), (35, 36), (38, 39), (92, 110), (221, 221), (268, 278), (329, 332),
    (344, 346), (519, 524), (552, 565), (625, 627), (629, 630), (632, 638), (770, 771), (775, 775),
    (777, 778), (780, 784), (794, 800), (802, 802), (904, 917), (919, 931), (962, 963), (966, 969),
    (971, 972), (1059, 1073),
)  # fmt: skip
VALIDATION = frozenset(
    f"scene-{k:04d}" for first, last in _HELD_OUT for k in range(first, last + 1)
)

CHANNEL = "LIDAR_TOP"
# Points nearer than this along x and along y, in meters, are on the vehicle itself.
CLOSE = 1.0
MOST_SWEEPS = 100
# Bicycles and motorcycles in a rack are not evaluated.
RACK, RACKED = "static_object.bicycle_rack", ("bicycle", "motorcycle")
# Longest time in seconds between two annotations of an object for computing its velocity. The limit
# is twice as long if there is an annotation between them.
LONGEST = 1.5
# Tables from which boxes are computed.
OF_BOXES = ("sample_annotation", "instance", "category", "calibrated_sensor", "ego_pose", "sample")
Row = Mapping[str, Any]
Racks = tuple[tuple[Pose, tuple[float, ...]], ...]


@dataclass(frozen=True, eq=False)
class NuscenesSample(PathTask):
    """Callable that reads the points and boxes of one key frame, which nuScenes calls a sample.

    Attributes:
      path: the path of the key frame's sweep.
      objects: the M true objects, with boxes [M, 9] in the scanner's frame.
      token: the identifier of the sample in the tables.
      vehicle: the transform from the scanner's frame to the vehicle's frame.
      ego: the transform from the vehicle's frame to the world's frame, which the evaluation uses.
      true: the same objects in the world's frame, computed directly from the tables.
      racks: ``(pose, (width, length, height))`` of each bicycle rack, in meters. The pose is the
          transform from the rack's frame, with the rack's center as origin, to the world's frame.
      tables: the paths of the tables with boxes and poses.
      sweeps: one entry for each sweep, beginning with the key frame: the path, the transform from
          the sweep's frame to the scanner's frame at the key frame, and the age in seconds at the
          key frame. Empty if only the key frame is read.
    """

    path: str
    objects: NuscenesObjects
    token: str
    vehicle: Pose
    ego: Pose
    true: NuscenesObjects
    racks: Racks = ()
    tables: tuple[str, ...] = ()
    sweeps: tuple[tuple[str, Pose, float], ...] = ()

    def __call__(self) -> AnnotatedScan:
        cloud = self._joined() if self.sweeps else read(self.path)
        return AnnotatedScan(cloud, self.objects, self)

    def _joined(self) -> PointCloud:
        """Read all sweeps into one cloud, in the scanner's frame at the key frame.

        The attribute ``time`` is the age of a point's sweep in seconds. Points on the vehicle that
        carries the scanner are left out.
        """
        parts = []
        for path, pose, age in self.sweeps:
            cloud = read(path)
            cloud = cloud.select((np.abs(cloud.positions[:, :2]) >= CLOSE).any(axis=1))
            # Positions of the key frame stay exactly the same, without rounding.
            moved = cloud.positions if path == self.path else pose.points(cloud.positions)
            time = np.full(len(cloud), age, np.float32)
            parts.append(
                replace(cloud, positions=moved, attributes=cloud.attributes | {"time": time})
            )
        return joined(parts)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all files with this sample's data: the sweeps and the tables."""
        return (self.path, *self.tables, *(path for path, _, _ in self.sweeps))

    def __hash__(self) -> int:
        return hash(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NuscenesSample) and self.path == other.path

    def best_in_world(self, found: Objects) -> NuscenesObjects:
        """Return the ``MOST_BOXES`` detected boxes with the highest scores, in the world's frame.

        `found` has boxes in the scanner's frame: [M, 9], or [M, 7], which get the velocity 0.
        """
        best = np.argsort(-np.asarray(found.scores), kind="stable")[:MOST_BOXES]
        boxes = found.boxes[best]
        if boxes.shape[1] == 7:
            boxes = np.column_stack([boxes, np.zeros((len(boxes), 2))])
        boxes = self.vehicle.then(self.ego).boxes(boxes) if len(boxes) else boxes
        return NuscenesObjects(boxes, found.classes[best], found.scores[best])

    def evaluated(self, objects: NuscenesObjects) -> NuscenesObjects:
        """Convert objects to the input of the metric :func:`voxax.detection.nuscenes_score`.

        `objects` are in the world's frame. The result has the same axes, but the origin is at the
        vehicle. Bicycles and motorcycles in a rack are left out.
        """
        centers = objects.boxes[:, :3]
        racked = np.zeros(len(objects), bool)
        for pose, (width, length, height) in self.racks:
            inside = np.abs(pose.inverse().points(centers)) <= np.array([length, width, height]) / 2
            racked |= inside.all(axis=1)
        kept = ~(racked & np.isin(objects.classes, RACKED))
        boxes = objects.boxes[kept]
        if len(boxes):
            boxes[:, :3] -= self.ego.translation
        scores = None if objects.scores is None else objects.scores[kept]
        about = objects.attributes[kept], objects.num_points[kept]
        return NuscenesObjects(boxes, objects.classes[kept], scores, *about)


def _tables_of(folder: Path) -> Path:
    if (folder / "scene.json").is_file():
        return folder
    versions = sorted(path for path in folder.glob("v1.0-*") if path.is_dir())
    if not versions:
        raise FileFormatError(
            f"{folder} has no folder v1.0-*, which holds the tables in the layout of nuScenes"
        )
    if len(versions) > 1:
        names = ", ".join(path.name for path in versions)
        raise InputError(f"{folder} has {names}: give one of these as the folder")
    return versions[0]


class NuscenesTables:
    """The JSON tables of a version of nuScenes; a table is read when it is first used.

    The argument `folder` is a folder with ``samples`` and one folder ``v1.0-*``. If there are
    several folders ``v1.0-*``, `folder` must be one of them.
    """

    def __init__(self, folder: Path) -> None:
        self.place = _tables_of(folder)
        self.of_boxes = tuple(str(self.place / f"{name}.json") for name in OF_BOXES)
        self._rows: dict[str, dict[str, Row]] = {}
        self._sweeps: dict[str, Row] | None = None
        self._boxes: dict[str, list[Row]] | None = None

    def samples(self, scenes: Sequence[str], sweeps: int = 1) -> list[NuscenesSample]:
        """Return the key frames of `scenes` (names such as ``scene-0061``) in order of time.

        A key frame consists of its own sweep and the ``sweeps - 1`` sweeps before it, or of fewer
        sweeps at the start of a scene.
        """
        names = [row["name"] for row in self.rows("category")]
        if names and not set(names) & set(CATEGORIES):
            raise FileFormatError(
                f"{self.place / 'category.json'} has {', '.join(names[:5])}, and no category of "
                "nuScenes, such as vehicle.car: other data sets with its tables, such as Lyft's, "
                "are not read"
            )
        return [_sample(self, *row, sweeps) for row in self._key_frames(scenes)]

    def sweeps(self, scenes: Sequence[str]) -> list[tuple[Path, str]]:
        """Return the sweep of each key frame of `scenes`: its path and its token (identifier).

        `scenes` are names such as ``scene-0061``. The token is that of the sweep's row in the table
        ``sample_data``.
        """
        return [(path, sweep["token"]) for path, _, sweep in self._key_frames(scenes)]

    def _key_frames(self, scenes: Sequence[str]) -> Iterator[tuple[Path, str, Row]]:
        by_name = {row["name"]: row for row in self.rows("scene")}
        for name in scenes:
            if name not in by_name:
                some = ", ".join(sorted(by_name)[:5])
                raise InputError(
                    f"{self.place / 'scene.json'} has no scene {name!r}; it has {len(by_name)}: "
                    f"{some}{', ...' * (len(by_name) > 5)}"
                )
        for name in scenes:
            yield from _key_frames_of(self, by_name[name])

    def rows(self, name: str) -> Sequence[Row]:
        """Return all rows of the table `name`, such as ``"scene"``."""
        return list(self._table(name).values())

    def __call__(self, name: str, token: str) -> Row:
        """Return the row with the identifier `token` in the table `name`."""
        table = self._table(name)
        if token not in table:
            raise FileFormatError(
                f"{self.place / name}.json has no row with the token {token!r}, which another "
                "table names: the tables are of different versions, or one is cut short"
            )
        return table[token]

    def sweep(self, sample: str) -> Row:
        """Return the row of the table ``sample_data`` for the LiDAR sweep of one key frame.

        `sample` is the token of the key frame, which nuScenes calls a sample.
        """
        if self._sweeps is None:
            lidars = {
                row["token"]
                for row in self.rows("calibrated_sensor")
                if self("sensor", row["sensor_token"])["channel"] == CHANNEL
            }
            self._sweeps = {
                row["sample_token"]: row
                for row in self.rows("sample_data")
                if row["is_key_frame"] and row["calibrated_sensor_token"] in lidars
            }
        if sample not in self._sweeps:
            raise FileFormatError(
                f"{self.place / 'sample_data'}.json has no key frame of {CHANNEL} for the sample "
                f"{sample!r}"
            )
        return self._sweeps[sample]

    def boxes(self, sample: str) -> list[Row]:
        """Return the rows of the table ``sample_annotation`` (boxes) of one key frame.

        `sample` is the token of the key frame, which nuScenes calls a sample.
        """
        if self._boxes is None:
            self._boxes = {}
            for row in self.rows("sample_annotation"):
                self._boxes.setdefault(row["sample_token"], []).append(row)
        return self._boxes.get(sample, [])

    def _table(self, name: str) -> dict[str, Row]:
        if name not in self._rows:
            path = existing_file(self.place / f"{name}.json")
            try:
                rows = json.loads(path.read_bytes())
                self._rows[name] = {row["token"]: _Row(row, path) for row in rows}
            except (ValueError, TypeError, KeyError) as error:
                raise FileFormatError(
                    f"{path} is no table of nuScenes, a list of rows with a token: {error}"
                ) from error
        return self._rows[name]


class _Row(dict[str, Any]):
    """A row of a table: a dict that raises FileFormatError for a missing key."""

    __slots__ = ("path",)

    def __init__(self, values: Row, path: Path) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise FileFormatError(f"{self.path}: the row {self['token']!r} has no field {name!r}")


def _key_frames_of(tables: NuscenesTables, scene: Row) -> Iterator[tuple[Path, str, Row]]:
    """Yield sweep path, sample token and ``sample_data`` row of each key frame of a scene.

    `scene` is the row of the scene in its table.
    """
    token, seen = scene["first_sample_token"], set[str]()
    while token:
        if token in seen:
            raise FileFormatError(
                f"{tables.place / 'sample.json'}: the samples of {scene['name']} go round in a "
                f"circle at {token!r}"
            )
        seen.add(token)
        sample = tables("sample", token)
        sweep = tables.sweep(token)
        path = tables.place.parent / sweep["filename"]
        if not path.is_file():
            raise FileFormatError(f"no file {path}, the sweep of a sample of {scene['name']}")
        yield path, token, sweep
        token = sample["next"]


def _sample(
    tables: NuscenesTables, path: Path, token: str, sweep: Row, number: int
) -> NuscenesSample:
    vehicle, ego = _frames(tables, sweep)
    scanner = vehicle.then(ego).inverse()
    objects, true, racks = _objects(tables, token, scanner)
    sweeps: list[tuple[str, Pose, float]] = []
    current = sweep
    while number > 1 and len(sweeps) < number:
        there = tables.place.parent / current["filename"]
        if not there.is_file():
            raise FileFormatError(
                f"no file {there}, one of the {number} sweeps of the sample {token!r}: fetch the "
                "sweeps too, or read 1"
            )
        mounted, driven = _frames(tables, current)
        age = 1e-6 * sweep["timestamp"] - 1e-6 * current["timestamp"]
        sweeps.append((str(there), mounted.then(driven).then(scanner), age))
        if not current["prev"]:
            break
        current = tables("sample_data", current["prev"])
    own = objects, token, vehicle, ego, true, racks, tables.of_boxes
    return NuscenesSample(str(path), *own, tuple(sweeps))


def _frames(tables: NuscenesTables, sweep: Row) -> tuple[Pose, Pose]:
    """Return the transforms scanner to vehicle, and vehicle to world, at the time of a sweep.

    `sweep` is the row of the sweep in the table ``sample_data``.
    """
    vehicle = _pose(tables("calibrated_sensor", sweep["calibrated_sensor_token"]))
    return vehicle, _pose(tables("ego_pose", sweep["ego_pose_token"]))


def _pose(row: Row) -> Pose:
    try:
        return Pose.from_quaternion(row["rotation"], row["translation"])
    except InputError as error:
        path = row.path if isinstance(row, _Row) else ""
        raise FileFormatError(f"{path}: the row {row['token']!r}: {error}") from error


def _objects(
    tables: NuscenesTables, sample: str, scanner: Pose
) -> tuple[NuscenesObjects, NuscenesObjects, Racks]:
    """Return the annotated objects of a sample in the scanner's frame, then in the world's frame.

    The third result is the boxes of bicycle racks in the world's frame. Only objects with a
    detection class are returned. The M boxes [M, 9] are upright in their frame. `sample` is the
    token of the sample. `scanner` is the transform from the world's frame to the scanner's.
    """
    frames: tuple[list[Any], list[Any]] = ([], [])
    classes, attributes, points, racks = [], [], [], []
    for row in tables.boxes(sample):
        category = tables("category", tables("instance", row["instance_token"])["category_token"])
        name = category["name"]
        if name not in CATEGORIES and name != RACK:
            continue
        pose = _pose(row)
        width, length, height = sizes = row["size"]
        if min(sizes) <= 0:
            raise FileFormatError(
                f"{tables.place / 'sample_annotation.json'}: the row {row['token']!r} has width, "
                f"length, height {sizes}: sizes must be positive, in meters"
            )
        if name == RACK:
            racks.append((pose, (width, length, height)))
            continue
        velocity = _velocity(tables, row)
        own = (pose.then(scanner), scanner.vectors(velocity)), (pose, velocity)
        for rows, (there, speed) in zip(frames, own, strict=True):
            heading = there.rotation[:, 0]
            yaw = np.arctan2(heading[1], heading[0])
            rows.append([*there.translation, length, width, height, yaw, *speed[:2]])
        classes.append(CATEGORIES[name])
        names = [tables("attribute", token)["name"] for token in row.get("attribute_tokens", ())]
        attributes.append(names[0] if names else "")
        points.append(row["num_lidar_pts"] + row["num_radar_pts"])
    objects, true = (
        NuscenesObjects(
            np.array(rows, np.float64).reshape(-1, 9),
            np.array(classes, dtype=object),
            None,
            np.array(attributes, dtype=object),
            np.array(points, np.int64),
        )
        for rows in frames
    )
    return objects, true, tuple(racks)


def _velocity(tables: NuscenesTables, row: Row) -> np.ndarray:
    """Return the velocity [3] of an annotated object in the world's frame, in m/s.

    `row` is an annotation of the object. The velocity is computed from the positions in the
    previous and the next annotation of the object. If one of them is missing, `row` replaces it.
    The velocity is NaN if both are missing, or if they are too far apart in time.
    """
    before, after = row["prev"], row["next"]
    unknown = np.full(3, np.nan)
    if not before and not after:
        return unknown
    first = tables("sample_annotation", before) if before else row
    last = tables("sample_annotation", after) if after else row
    times = [tables("sample", one["sample_token"])["timestamp"] for one in (first, last)]
    seconds = 1e-6 * times[1] - 1e-6 * times[0]
    if not 0 < seconds <= (2 * LONGEST if before and after else LONGEST):
        return unknown
    return (np.asarray(last["translation"]) - np.asarray(first["translation"])) / seconds


class Nuscenes(Layout):
    """List the key frames with boxes of scenes in a nuScenes folder.

    The names of :meth:`scans` are those of scenes, such as ``scene-0061``.

    The argument `folder` is as for :class:`NuscenesTables`. The argument `sweeps` is the number of
    sweeps that are joined for each key frame: its own sweep and the ``sweeps - 1`` before it.
    """

    task = "detect"
    marks = ("v1.0-*/scene.json", "scene.json")
    class_names = NUSCENES_CLASSES
    attributes = ("intensity", "ring")

    def __init__(self, folder: Path, sweeps: int = 1) -> None:
        super().__init__(folder)
        self.tables = NuscenesTables(folder)  # read once for all splits
        self.sweeps = sweeps

    def split(self, name: str) -> Sequence[str]:
        version = self.tables.place.name
        names = [row["name"] for row in self.tables.rows("scene")]
        if version.endswith("test") or name == "test":
            return names if version.endswith("test") and name == "test" else ()
        held_out = MINI_VALIDATION if version.endswith("mini") else VALIDATION
        return [own for own in names if (own in held_out) == (name == "validation")]

    def set_name(self, split: str) -> str:
        """Return nuScenes' name of a split, e.g. ``mini_val`` for ``validation`` of v1.0-mini."""
        known = {"train": "train", "validation": "val", "test": "test"}
        mini = "mini_" if self.tables.place.name.endswith("mini") else ""
        return mini + known.get(split, "val")

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[Any]:
        del labeled
        return self.tables.samples(names, self.sweeps)


LIDARSEG_CLASSES = (
    "barrier", "bicycle", "bus", "car", "construction_vehicle", "motorcycle", "pedestrian",
    "traffic_cone", "trailer", "truck", "driveable_surface", "other_flat", "sidewalk", "terrain",
    "manmade", "vegetation",
)  # fmt: skip
"""The 16 classes of the nuScenes segmentation challenge, in the challenge's order."""

SURFACES = {
    "flat.driveable_surface": "driveable_surface",
    "flat.other": "other_flat",
    "flat.sidewalk": "sidewalk",
    "flat.terrain": "terrain",
    "static.manmade": "manmade",
    "static.vegetation": "vegetation",
}


@dataclass(frozen=True)
class LidarsegScan(PathTask):
    """Callable that reads one sweep with labels 0 to 15; the label of unknown points is -1.

    Attributes:
      points: the path of the sweep.
      token: the identifier of the sweep's row in the table ``sample_data``.
      labels: the path of the file of labels; None reads no labels.
      classes: the class (0 to 15) of each value in the file of labels, or -1 for unknown.
    """

    points: str
    token: str
    labels: str | None
    classes: tuple[int, ...]

    def __call__(self) -> PointCloud:
        cloud = read_nuscenes(existing_file(self.points), DEFAULT)
        finite = np.isfinite(cloud.positions).all(axis=1)
        if self.labels is None:
            return cloud.select(finite)
        raw = np.fromfile(existing_file(self.labels), np.uint8)
        if len(raw) != len(cloud):
            raise FileFormatError(
                f"{self.labels} has {len(raw)} labels, and {self.points} {len(cloud)} points"
            )
        outside = np.flatnonzero(raw >= len(self.classes))
        if len(outside):
            raise FileFormatError(
                f"{self.labels}: label {outside[0]} is {raw[outside[0]]}, beyond the "
                f"{len(self.classes)} indices of category.json"
            )
        labels = np.asarray(self.classes, np.int32)[raw]
        return replace(cloud, labels=labels).select(finite)


class NuscenesLidarseg(Nuscenes):
    """List the key frames with a label per point of scenes in a nuScenes folder.

    The arguments and the names of scenes are those of :class:`Nuscenes`. Only the sweep of the key
    frame is read, whatever the number of `sweeps`.
    """

    task = "segment"
    marks = ()  # same folders as nuScenes, so the caller must name the layout
    class_names = LIDARSEG_CLASSES

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[LidarsegScan]:
        tables, files, classes = self.tables, {}, ()
        if labeled:
            files = {row["sample_data_token"]: row["filename"] for row in tables.rows("lidarseg")}
            classes = self._classes()
        found = []
        for path, token in tables.sweeps(names):
            if labeled and token not in files:
                raise FileFormatError(
                    f"{tables.place / 'lidarseg.json'} has no labels of the sweep {token!r}"
                )
            labels = str(tables.place.parent / files[token]) if labeled else None
            found.append(LidarsegScan(str(path), token, labels, classes))
        return found

    def _classes(self) -> tuple[int, ...]:
        """Return the class (0 to 15) of each category index; -1 for a category without a class."""
        place = {name: number for number, name in enumerate(LIDARSEG_CLASSES)}
        known = CATEGORIES | SURFACES
        by_index = {row["index"]: row["name"] for row in self.tables.rows("category")}
        if not all(isinstance(k, int) and 0 <= k < 256 for k in by_index):
            raise FileFormatError(
                f"{self.tables.place / 'category.json'} has indices that are no numbers below 256"
            )
        names = [by_index.get(index, "") for index in range(max(by_index, default=-1) + 1)]
        return tuple(place[known[name]] if name in known else -1 for name in names)
