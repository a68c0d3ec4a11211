"""Read ScanNet scenes: the points are the vertices of ``scans/SCENE/SCENE_vh_clean_2.ply``.

``SCENE_vh_clean_2.labels.ply`` is the same mesh with an id of NYU's 40 classes for each vertex. For
the 200 classes, ``SCENE_vh_clean_2.0.010000.segs.json`` has the segment of each vertex,
``SCENE.aggregation.json`` has each object's raw category and segments, and
``scannetv2-labels.combined.tsv`` has the ids of the raw categories.

Source: the data set's documentation (Dai et al., "ScanNet: Richly-annotated 3D Reconstructions of
Indoor Scenes", CVPR 2017); for the 200 classes Rozenberszki, Litany and Dai, "Language-Grounded
Indoor 3D Semantic Segmentation in the Wild", ECCV 2022, and the benchmark's list.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from voxax._bounded_file import MEBIBYTE, bounded_json, bounded_text
from voxax.errors import FileFormatError, InputError
from voxax.io.decoding import existing_file
from voxax.io.layout import Layout, PathTask, fold
from voxax.io.ply import read_ply_vertices
from voxax.io.point_cloud import PointCloud

_LIST = """\
1 wall, 2 chair, 3 floor, 4 table, 5 door, 6 couch, 7 cabinet, 8 shelf, 9 desk, 10 office chair,
11 bed, 13 pillow, 14 sink, 15 picture, 16 window, 17 toilet, 18 bookshelf, 19 monitor,
21 curtain, 22 book, 23 armchair, 24 coffee table, 26 box, 27 refrigerator, 28 lamp,
29 kitchen cabinet, 31 towel, 32 clothes, 33 tv, 34 nightstand, 35 counter, 36 dresser, 38 stool,
39 cushion, 40 plant, 41 ceiling, 42 bathtub, 44 end table, 45 dining table, 46 keyboard, 47 bag,
48 backpack, 49 toilet paper, 50 printer, 51 tv stand, 52 whiteboard, 54 blanket,
55 shower curtain, 56 trash can, 57 closet, 58 stairs, 59 microwave, 62 stove, 63 shoe,
64 computer tower, 65 bottle, 66 bin, 67 ottoman, 68 bench, 69 board, 70 washing machine,
71 mirror, 72 copier, 73 basket, 74 sofa chair, 75 file cabinet, 76 fan, 77 laptop, 78 shower,
79 paper, 80 person, 82 paper towel dispenser, 84 oven, 86 blinds, 87 rack, 88 plate,
89 blackboard, 90 piano, 93 suitcase, 95 rail, 96 radiator, 97 recycling bin, 98 container,
99 wardrobe, 100 soap dispenser, 101 telephone, 102 bucket, 103 clock, 104 stand, 105 light,
106 laundry basket, 107 pipe, 110 clothes dryer, 112 guitar, 115 toilet paper holder, 116 seat,
118 speaker, 120 column, 121 bicycle, 122 ladder, 125 bathroom stall, 128 shower wall, 130 cup,
131 jacket, 132 storage bin, 134 coffee maker, 136 dishwasher, 138 paper towel roll, 139 machine,
140 mat, 141 windowsill, 145 bar, 148 toaster, 154 bulletin board, 155 ironing board,
156 fireplace, 157 soap dish, 159 kitchen counter, 161 doorframe, 163 toilet paper dispenser,
165 mini fridge, 166 fire extinguisher, 168 ball, 169 hat, 170 shower curtain rod,
177 water cooler, 180 paper cutter, 185 tray, 188 shower door, 191 pillar, 193 ledge,
195 toaster oven, 202 mouse, 208 toilet seat cover dispenser, 213 furniture, 214 cart,
221 storage container, 229 scale, 230 tissue box, 232 light switch, 233 crate, 242 power outlet,
250 decoration, 261 sign, 264 projector, 276 closet door, 283 vacuum cleaner, 286 candle,
300 plunger, 304 stuffed animal, 312 headphones, 323 dish rack, 325 broom, 331 guitar case,
342 range hood, 356 dustpan, 370 hair dryer, 392 water bottle, 395 handicap bar, 399 purse,
408 vent, 417 shower floor, 488 water pitcher, 540 mailbox, 562 bowl, 570 paper bag,
572 alarm clock, 581 music stand, 609 projector screen, 748 divider, 776 laundry detergent,
1156 bathroom counter, 1163 object, 1164 bathroom vanity, 1165 closet wall, 1166 laundry hamper,
1167 bathroom stall door, 1168 ceiling light, 1169 trash bin, 1170 dumbbell, 1171 stair rail,
1172 tube, 1173 bathroom cabinet, 1174 cd case, 1175 closet rod, 1176 coffee kettle,
1178 structure, 1179 shower head, 1180 keyboard piano, 1181 case of water bottles,
1182 coat rack, 1183 storage organizer, 1184 folded chair, 1185 fire alarm, 1186 power strip,
1187 calendar, 1188 poster, 1189 potted plant, 1190 luggage, 1191 mattress
"""
SCANNET200_CLASSES = {
    int(number): name
    for number, _, name in (entry.strip().partition(" ") for entry in _LIST.split(","))
}
SCANNET200_CLASS_NAMES = tuple(SCANNET200_CLASSES.values())


SCANNET_CLASSES = {
    1: "wall", 2: "floor", 3: "cabinet", 4: "bed", 5: "chair", 6: "sofa", 7: "table", 8: "door",
    9: "window", 10: "bookshelf", 11: "picture", 12: "counter", 14: "desk", 16: "curtain",
    24: "refrigerator", 28: "shower curtain", 33: "toilet", 34: "sink", 36: "bathtub",
    39: "other furniture",
}  # fmt: skip
SCANNET_CLASS_NAMES = tuple(SCANNET_CLASSES.values())

MESH, LABELS = "_vh_clean_2.ply", "_vh_clean_2.labels.ply"


@dataclass(frozen=True)
class ScanNetScene(PathTask):
    """Callable that reads the vertices of one scene, with labels 0 to 19, or -1 for unknown.

    Attributes:
      mesh: the path of the mesh.
      labels: the path of the mesh with labels; None reads no labels.
    """

    mesh: str
    labels: Any

    def __call__(self) -> PointCloud:
        cloud = read_ply_vertices(existing_file(self.mesh))
        finite = np.isfinite(cloud.positions).all(axis=1)
        labels, more = (None, {}) if self.labels is None else self._labels(len(cloud))
        return replace(cloud, labels=labels, attributes=cloud.attributes | more).select(finite)

    def _labels(self, vertices: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the labels of the N mesh vertices, int32 [N], and further attributes by name.

        `vertices` is the number N.
        """
        labeled = read_ply_vertices(existing_file(self.labels))
        if labeled.labels is None:
            raise FileFormatError(f"the vertices of {self.labels} have no property label")
        self._check_same(self.labels, len(labeled), vertices)
        return fold(labeled.labels, tuple(SCANNET_CLASSES)), {}

    def _check_same(self, path: str | Path, found: int, vertices: int) -> None:
        if found != vertices:
            raise FileFormatError(
                f"{path} has {found} vertices, {self.mesh} has {vertices}: they are of different "
                "meshes"
            )


class ScanNet(Layout):
    """List the scenes in a ScanNet folder, with 20 classes; names are like ``scene0000_00``.

    Scenes are in the folder ``scans``, and scenes of the test set in ``scans_test``. The official
    splits are read from ``scannetv2_train.txt``, ``scannetv2_val.txt`` and ``scannetv2_test.txt``
    next to these folders or in ``meta_data``. If such a file is missing, :meth:`split` raises
    InputError; for ``test``, it returns the names of the scenes in ``scans_test``.
    """

    marks = ("scans/scene*", "scans_test/scene*")
    class_names = SCANNET_CLASS_NAMES

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[Any]:
        places = [p for p in (self.folder / "scans", self.folder / "scans_test") if p.is_dir()]
        if not places:
            raise FileFormatError(
                f"{self.folder} has no folder scans, which the layout of ScanNet has"
            )
        found = []
        for name in names:
            own = next((p / name for p in places if (p / name).is_dir()), places[0] / name)
            mesh, labels = own / f"{name}{MESH}", own / f"{name}{LABELS}"
            for path in (mesh, labels) if labeled else (mesh,):
                if not path.is_file():
                    there = sum(p.is_dir() for p in places[0].iterdir())
                    raise FileFormatError(
                        f"scene {name!r} has no file {path}; {places[0]} holds {there} scenes"
                    )
            found.append(ScanNetScene(str(mesh), str(labels) if labeled else None))
        return found

    def split(self, name: str) -> Sequence[str]:
        listed = f"scannetv2_{'val' if name == 'validation' else name}.txt"
        for path in (self.folder / listed, self.folder / "meta_data" / listed):
            if path.is_file():
                scenes = bounded_text(path, MEBIBYTE).split()
                if not scenes:
                    raise FileFormatError(f"{path} is empty: it should name a scene on each line")
                return scenes
        if name == "test":
            return sorted(p.name for p in self.folder.glob("scans_test/scene*") if p.is_dir())
        raise InputError(
            f"{name} is empty: name the scans of {self.folder} that are for it, or put the "
            f"official list {listed} there, from Tasks/Benchmark of github.com/ScanNet/ScanNet"
        )


LISTED = "scannetv2-labels.combined.tsv"
SEGMENTS, OBJECTS = (
    "_vh_clean_2.0.010000.segs.json",
    (".aggregation.json", "_vh_clean.aggregation.json"),
)
# Largest size of a file that is read, which is enough for a scene with a million vertices.
_MOST_BYTES = 256 * MEBIBYTE


@dataclass(frozen=True)
class ScanNet200Scene(ScanNetScene):
    """Callable that reads the vertices of one scene, with labels 0 to 199, or -1 for unknown.

    `labels` are the paths of three files: the segments, the objects, and the list of categories.
    None reads no labels. With labels, the attribute ``instance`` is the index of the object.
    """

    def _labels(self, vertices: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        segments, objects, listed = map(Path, self.labels)
        of_vertex = _parsed(segments, "segIndices")
        self._check_same(segments, len(of_vertex), vertices)
        ids = _category_ids(listed)
        classes = {number: place for place, number in enumerate(SCANNET200_CLASSES)}
        found: dict[int, int] = {}
        instance: dict[int, int] = {}
        for number, one in enumerate(_parsed(objects, "segGroups")):
            try:
                own = classes.get(ids.get(one["label"], -1), -1)
                for segment in one["segments"]:
                    found[int(segment)], instance[int(segment)] = own, number
            except (KeyError, TypeError, ValueError) as error:
                raise FileFormatError(
                    f"{objects}: segGroups[{number}] must have a label and segments: {error!r}"
                ) from error
        try:
            known, place = np.unique(np.asarray(of_vertex, np.int64), return_inverse=True)
        except (OverflowError, TypeError, ValueError) as error:
            raise FileFormatError(f"{segments}: segIndices must be whole numbers") from error
        labels = np.array([found.get(k, -1) for k in known.tolist()], np.int32)[place]
        instances = np.array([instance.get(k, -1) for k in known.tolist()], np.int32)[place]
        return labels, {"instance": instances}


def _parsed(path: Path, key: str) -> list[Any]:
    values = bounded_json(path, _MOST_BYTES, f" with a list {key}")
    if not isinstance(values, dict) or key not in values:
        raise FileFormatError(f"{path} is no JSON with a list {key}")
    found = values[key]
    if not isinstance(found, list):
        raise FileFormatError(f"{path}: {key} must be a list")
    return found


def _category_ids(path: Path) -> dict[str, int]:
    """Read ``scannetv2-labels.combined.tsv``; return the id of each raw category by its name."""
    rows = csv.DictReader(bounded_text(path, _MOST_BYTES).splitlines(), delimiter="\t")
    try:
        return {row["raw_category"]: int(row["id"]) for row in rows}
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise FileFormatError(
            f"{path} must have columns id and raw_category, with tabs between: {error!r}"
        ) from error


class ScanNet200(ScanNet):
    """List the scenes in a ScanNet folder as :class:`ScanNet`, but with labels of 200 classes."""

    marks = ()  # same folders as ScanNet, so the caller must name the layout
    class_names = SCANNET200_CLASS_NAMES

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[Any]:
        found: list[ScanNet200Scene] = []
        for scene in super().scans(names, labeled=False):
            mesh = Path(scene.mesh)
            if not labeled:
                found.append(ScanNet200Scene(scene.mesh, None))
                continue
            name = mesh.parent.name
            objects = [mesh.with_name(name + end) for end in OBJECTS]
            own = next((path for path in objects if path.is_file()), objects[0])
            paths = mesh.with_name(name + SEGMENTS), own, self.folder / LISTED
            for path in paths:
                if not path.is_file():
                    raise FileFormatError(f"scene {name!r} has no labels: {path} is missing")
            segments, group, listed = map(str, paths)
            found.append(ScanNet200Scene(scene.mesh, (segments, group, listed)))
        return found
