"""nuScenes: key-frame sweeps of the LiDAR with boxes and velocities, or a class for each point.

The layout is a folder of tables, ``v1.0-*/*.json``, beside ``samples/LIDAR_TOP/*.pcd.bin``. Of a
key frame one sweep is read, or also those before it, in ``sweeps/LIDAR_TOP``. The table
``lidarseg.json`` names a file of uint8 for each sweep; ``category.json`` says which index is which
category.

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
from voxax.io.layout import Layout
from voxax.io.options import DEFAULT
from voxax.io.point_cloud import PointCloud
from voxax.io.poses import Pose
from voxax.io.records import read_nuscenes

NUSCENES_CLASSES = (
    "car", "truck", "construction_vehicle", "bus", "trailer", "barrier", "motorcycle", "bicycle",
    "pedestrian", "traffic_cone",
)  # fmt: skip
"""The ten classes of the detection task, in the order in which published detectors have them."""

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
"""Classes of the detection task by category; boxes of other categories are left out."""

MOST_BOXES = 500
"""Boxes of a sample that nuScenes takes."""

# Scenes to validate with, of v1.0-mini and of v1.0-trainval; all others are for training.
MINI_VALIDATION = frozenset(("scene-0103", "scene-0916"))
# From the first scene to the last.
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
# Points nearer than this along x and along y are of the vehicle, in meters.
CLOSE = 1.0
MOST_SWEEPS = 100
# Bicycles and motorcycles in it do not count.
RACK, RACKED = "static_object.bicycle_rack", ("bicycle", "motorcycle")
# Annotations further apart tell no velocity, in seconds; twice as far with one between them.
LONGEST = 1.5
# Tables that say where boxes are.
OF_BOXES = ("sample_annotation", "instance", "category", "calibrated_sensor", "ego_pose", "sample")
Row = Mapping[str, Any]
Racks = tuple[tuple[Pose, tuple[float, ...]], ...]


@dataclass(frozen=True, eq=False)
class NuscenesSample:
    """Task that reads the sweep of one key frame.

    Attributes:
      path: of the sweep.
      objects: boxes [M, 9] in the scanner's frame.
      token: of the sample.
      vehicle: from the scanner's frame to the vehicle's.
      ego: from the vehicle's frame to the world's, in which nuScenes evaluates.
      true: the same boxes in the world's frame, straight from the tables.
      racks: poses and sizes (width, length, height) of bicycle racks in the world's frame.
      tables: the files that boxes and poses come from.
      sweeps: of several sweeps, the key frame's first: the path, the pose from its frame to the
          scanner's at the key frame, and how long before it was measured, in seconds. Empty where
          the key frame is read alone.
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
        """Return the points of all sweeps in one frame; ``time`` is their age in seconds.

        Points at the vehicle itself are left out.
        """
        parts = []
        for path, pose, age in self.sweeps:
            cloud = read(path)
            cloud = cloud.select((np.abs(cloud.positions[:, :2]) >= CLOSE).any(axis=1))
            # The frame of the key frame stays as it is, to the last bit.
            moved = cloud.positions if path == self.path else pose.points(cloud.positions)
            time = np.full(len(cloud), age, np.float32)
            parts.append(
                replace(cloud, positions=moved, attributes=cloud.attributes | {"time": time})
            )
        attributes = {
            name: np.concatenate([part.attributes[name] for part in parts])
            for name in parts[0].attributes
        }
        positions = np.concatenate([part.positions for part in parts])
        return PointCloud(positions, attributes, None, self.path)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it reads, and those that its boxes come from."""
        return (self.path, *self.tables, *(path for path, _, _ in self.sweeps))

    def __str__(self) -> str:
        return self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NuscenesSample) and self.path == other.path

    def best_in_world(self, found: Objects) -> NuscenesObjects:
        """Return the boxes of the highest scores in the world's frame, as many as nuScenes takes.

        They are [M, 7], and get the velocity 0, or [M, 9], in the scanner's frame.
        """
        best = np.argsort(-np.asarray(found.scores), kind="stable")[:MOST_BOXES]
        boxes = found.boxes[best]
        if boxes.shape[1] == 7:
            boxes = np.column_stack([boxes, np.zeros((len(boxes), 2))])
        boxes = self.vehicle.then(self.ego).boxes(boxes) if len(boxes) else boxes
        return NuscenesObjects(boxes, found.classes[best], found.scores[best])

    def evaluated(self, objects: NuscenesObjects) -> NuscenesObjects:
        """Return objects of the world's frame for :func:`voxax.detection.nuscenes_score`.

        The vehicle is their origin, and the axes stay the world's. What is in a rack is left out.
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
    """The tables of a version, each read when it is asked for.

    `folder` holds one ``v1.0-*`` and ``samples``, or is that ``v1.0-*``, where there are several.
    """

    def __init__(self, folder: Path) -> None:
        self.place = _tables_of(folder)
        self.of_boxes = tuple(str(self.place / f"{name}.json") for name in OF_BOXES)
        self._rows: dict[str, dict[str, Row]] = {}
        self._sweeps: dict[str, Row] | None = None
        self._boxes: dict[str, list[Row]] | None = None

    def samples(self, scenes: Sequence[str], sweeps: int = 1) -> list[NuscenesSample]:
        """Return the key frames of scenes such as ``scene-0061`` in order of time.

        Each has so many sweeps, or as many as there are before it.
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
        """Return path and token of each key frame's sweep; arguments as in :meth:`samples`."""
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
        """Return the rows of a table."""
        return list(self._table(name).values())

    def __call__(self, name: str, token: str) -> Row:
        """Return the row of a table with a token."""
        table = self._table(name)
        if token not in table:
            raise FileFormatError(
                f"{self.place / name}.json has no row with the token {token!r}, which another "
                "table names: the tables are of different versions, or one is cut short"
            )
        return table[token]

    def sweep(self, sample: str) -> Row:
        """Return the row of ``sample_data`` with a sample's LiDAR key frame."""
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
        """Return the annotations of a sample."""
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
    """Row of a table; a field that is missing is an error that names both."""

    __slots__ = ("path",)

    def __init__(self, values: Row, path: Path) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise FileFormatError(f"{self.path}: the row {self['token']!r} has no field {name!r}")


def _key_frames_of(tables: NuscenesTables, scene: Row) -> Iterator[tuple[Path, str, Row]]:
    """Give the path of each sweep, the token of its sample, and its row of ``sample_data``."""
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
    """Return the pose of the scanner in the vehicle, and of the vehicle in the world."""
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
    """Return a sample's boxes of detection classes, and its bicycle racks.

    The boxes stand upright in the scanner's frame, and in the world's, where the racks are.
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
    """Return the velocity [3] in the world: the difference of the neighbors in time, or NaN."""
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
    """See :class:`voxax.io.layout.Layout`; names are those of scenes, such as ``scene-0061``.

    The folder is as for :class:`NuscenesTables`, and `sweeps` are those of each key frame.
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
        """Return the development kit's name of a split."""
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
"""The 16 classes of the challenge, in its order."""

SURFACES = {
    "flat.driveable_surface": "driveable_surface",
    "flat.other": "other_flat",
    "flat.sidewalk": "sidewalk",
    "flat.terrain": "terrain",
    "static.manmade": "manmade",
    "static.vegetation": "vegetation",
}


@dataclass(frozen=True)
class LidarsegScan:
    """Task that reads one sweep, in the 16 classes; others are unknown, -1.

    `token` is that of its row in ``sample_data``. `classes` has the class of each index in the file
    of labels, -1 for those that do not count.
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

    def __str__(self) -> str:
        return self.points


class NuscenesLidarseg(Nuscenes):
    """See :class:`voxax.io.layout.Layout`; names are those of scenes, such as ``scene-0061``."""

    task = "segment"
    marks = ()  # those of nuScenes: what the folder is for must be said
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
        """The class of each index of a category, -1 for those that do not count."""
        place = {name: number for number, name in enumerate(LIDARSEG_CLASSES)}
        known = CATEGORIES | SURFACES
        by_index = {row["index"]: row["name"] for row in self.tables.rows("category")}
        if not all(isinstance(k, int) and 0 <= k < 256 for k in by_index):
            raise FileFormatError(
                f"{self.tables.place / 'category.json'} has indices that are no numbers below 256"
            )
        names = [by_index.get(index, "") for index in range(max(by_index, default=-1) + 1)]
        return tuple(place[known[name]] if name in known else -1 for name in names)
