"""nuScenes: key-frame sweeps of the LiDAR, and boxes with velocities in its frame.

The layout is a folder of tables, ``v1.0-*/*.json``, beside ``samples/LIDAR_TOP/*.pcd.bin``. One
sweep is read for each key frame: the sweeps between key frames are not accumulated.

Source: Caesar et al., "nuScenes: A multimodal dataset for autonomous driving", CVPR 2020, and the
schema of its development kit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxax.detection.nuscenes_metric import NuscenesObjects
from voxax.errors import FileFormatError, InputError
from voxax.io.annotated import AnnotatedScan
from voxax.io.decoding import existing_file
from voxax.io.formats import read
from voxax.io.poses import Pose

NUSCENES_CLASSES = (
    "car",
    "truck",
    "construction_vehicle",
    "bus",
    "trailer",
    "barrier",
    "motorcycle",
    "bicycle",
    "pedestrian",
    "traffic_cone",
)
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

CHANNEL = "LIDAR_TOP"
# Annotations further apart tell no velocity, in seconds; twice as far with one between them.
LONGEST = 1.5
Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class NuscenesSample:
    """Task that reads the sweep of one key frame.

    Attributes:
        path: of the sweep.
        objects: boxes [M, 9] in the scanner's frame.
        vehicle: from the scanner's frame to the vehicle's, in which nuScenes evaluates.
    """

    path: str
    objects: NuscenesObjects
    vehicle: Pose

    def __call__(self) -> AnnotatedScan:
        return AnnotatedScan(read(self.path), self.objects, self)

    def __str__(self) -> str:
        return self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NuscenesSample) and self.path == other.path

    def in_vehicle(self, objects: NuscenesObjects) -> NuscenesObjects:
        """Return objects in the vehicle's frame, for :func:`voxax.detection.nuscenes_score`."""
        boxes = self.vehicle.boxes(objects.boxes) if len(objects) else objects.boxes
        return NuscenesObjects(
            boxes, objects.classes, objects.scores, objects.attributes, objects.num_points
        )


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

    Args:
        folder: that holds one ``v1.0-*`` and ``samples``; or that ``v1.0-*``, where there are
            several.

    Raises:
        FileFormatError: there are no tables.
        InputError: there are several versions.
    """

    def __init__(self, folder: Path) -> None:
        self.place = _tables_of(folder)
        self._rows: dict[str, dict[str, Row]] = {}
        self._sweeps: dict[str, Row] | None = None
        self._boxes: dict[str, list[Row]] | None = None

    def samples(self, scenes: Sequence[str]) -> list[NuscenesSample]:
        """Return the key frames of some scenes, in order of time.

        Args:
            scenes: names, such as ``scene-0061``.

        Raises:
            FileFormatError: a table, a row, a field of one or a sweep is missing, or a size is not
                positive; names the table and the row.
            InputError: an unknown scene.
        """
        by_name = {row["name"]: row for row in self.rows("scene")}
        for name in scenes:
            if name not in by_name:
                some = ", ".join(sorted(by_name)[:5])
                raise InputError(
                    f"{self.place / 'scene.json'} has no scene {name!r}; it has {len(by_name)}: "
                    f"{some}{', ...' * (len(by_name) > 5)}"
                )
        return [sample for name in scenes for sample in _samples_of(self, by_name[name])]

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


def _samples_of(tables: NuscenesTables, scene: Row) -> Iterator[NuscenesSample]:
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
        sensor = tables("calibrated_sensor", sweep["calibrated_sensor_token"])
        vehicle = _pose(sensor)
        world = vehicle.then(_pose(tables("ego_pose", sweep["ego_pose_token"])))
        yield NuscenesSample(str(path), _objects(tables, token, world.inverse()), vehicle)
        token = sample["next"]


def _pose(row: Row) -> Pose:
    try:
        return Pose.from_quaternion(row["rotation"], row["translation"])
    except InputError as error:
        path = row.path if isinstance(row, _Row) else ""
        raise FileFormatError(f"{path}: the row {row['token']!r}: {error}") from error


def _objects(tables: NuscenesTables, sample: str, scanner: Pose) -> NuscenesObjects:
    """Return a sample's boxes of detection classes in the scanner's frame."""
    boxes, classes, attributes, points = [], [], [], []
    for row in tables.boxes(sample):
        category = tables("category", tables("instance", row["instance_token"])["category_token"])
        if category["name"] not in CATEGORIES:
            continue
        pose = _pose(row).then(scanner)
        width, length, height = sizes = row["size"]
        if min(sizes) <= 0:
            raise FileFormatError(
                f"{tables.place / 'sample_annotation.json'}: the row {row['token']!r} has width, "
                f"length, height {sizes}: sizes must be positive, in meters"
            )
        heading = pose.rotation[:, 0]
        yaw = np.arctan2(heading[1], heading[0])
        velocity = scanner.vectors(_velocity(tables, row))[:2]
        boxes.append([*pose.translation, length, width, height, yaw, *velocity])
        classes.append(CATEGORIES[category["name"]])
        names = [tables("attribute", token)["name"] for token in row.get("attribute_tokens", ())]
        attributes.append(names[0] if names else "")
        points.append(row["num_lidar_pts"] + row["num_radar_pts"])
    return NuscenesObjects(
        np.array(boxes, np.float64).reshape(-1, 9),
        np.array(classes, dtype=object),
        None,
        np.array(attributes, dtype=object),
        np.array(points, np.int64),
    )


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
