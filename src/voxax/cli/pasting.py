"""Augmentation of detector training: cut objects out of scans and paste them into other scans.

Source: Yan, Mao and Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxax._atomic_file import replacing
from voxax._bounded_file import MEBIBYTE
from voxax.cli.scenes import Change
from voxax.detection.augmentation import CutOut, ObjectBank
from voxax.detection.objects import Objects
from voxax.errors import InputError
from voxax.io.annotated import AnnotatedScan
from voxax.io.examples import attribute_columns
from voxax.io.point_cloud import PointCloud

FOLDER = "paste-objects"
_NAMES = re.compile(r"[0-9a-f]{32}-(points|boxes)\.npy")
MIN_POINTS = 5
# Largest size of the objects of all classes together, in memory while cutting and then on disk.
MOST_BYTES = 1024 * MEBIBYTE
# Version of the files: increase it when their layout changes.
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class CutObjects:
    """Task (picklable callable) that cuts objects of `classes` out of a scan.

    `scan` is the task that reads the scan. A call returns ``{class name: objects}``. Each object
    has a box, and its points as ``float32[n, 3 + columns]``: positions, then `attributes`.
    """

    scan: Any
    classes: tuple[str, ...]
    attributes: tuple[str, ...]

    def __call__(self) -> dict[str, list[CutOut]]:
        scan = self.scan()
        bank, own = ObjectBank(MIN_POINTS), scan.objects
        chosen = np.isin(own.classes, self.classes)
        bank.add(_table(scan.cloud, self.attributes), own.boxes[chosen], own.classes[chosen])
        return {
            name: [CutOut(one.box, one.points.astype(np.float32)) for one in stock]
            for name, stock in bank.objects.items()
        }


class _Stock:
    """Collection of cut-out objects of one class, whose points have at most `most` bytes.

    If more objects are added, a random part of all of them is kept. `seed` seeds the choice.
    """

    def __init__(self, most: float, seed: int) -> None:
        self.objects: list[CutOut] = []
        self._most, self._rng = most, np.random.default_rng(seed)
        self._bytes, self._share = 0, 1.0

    def add(self, one: CutOut) -> None:
        if self._rng.random() >= self._share:
            return
        self.objects.append(one)
        self._bytes += one.points.nbytes
        while self._bytes > self._most:
            # Earlier and later objects are kept with the same probability.
            self._share /= 2
            self.objects = [kept for kept in self.objects if self._rng.random() < 0.5]
            self._bytes = sum(kept.points.nbytes for kept in self.objects)


def _state(path: str) -> list[Any]:
    """Return ``[path, size, modification time]`` of a file, which changes if the file is changed.

    The result is ``[path]`` if the file cannot be found.
    """
    try:
        found = os.stat(path)
    except OSError:  # the task that reads the file raises it
        return [path]
    return [path, found.st_size, found.st_mtime_ns]


@dataclasses.dataclass(frozen=True)
class KeptObjects:
    """Objects of the training scans, stored in two files that all worker processes read.

    Attributes:
      folder: folder of the files.
      key: hash of the scans and settings; the names of the files begin with it.
      classes: names of the classes of the stored objects.
      attributes: names of the point attributes, such as intensity, that are stored with the points.
    """

    folder: str
    key: str
    classes: tuple[str, ...]
    attributes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        folder: Path,
        scans: Sequence[Any],
        classes: Iterable[str],
        attributes: tuple[str, ...],
        **settings: Any,
    ) -> KeptObjects:
        """Return the :class:`KeptObjects` for these scans, without reading the scans.

        Args:
          folder: folder of the files.
          scans: tasks that read the scans. The key depends on the ``str`` of each task, and on the
            sizes and modification times of its ``files``, if it has this attribute.
          classes: names of the classes.
          attributes: names of the point attributes to keep.
          settings: other settings that change the scans, as JSON values; the key depends on them.
        """
        names = tuple(sorted(classes))
        files = dict.fromkeys(path for scan in scans for path in getattr(scan, "files", ()))
        told = [_VERSION, MIN_POINTS, names, attributes, settings, [str(scan) for scan in scans]]
        told += [_state(path) for path in files]
        key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]
        return cls(str(folder), key, names, attributes)

    def tasks(self, scans: Sequence[Any]) -> list[CutObjects]:
        """Return one task for each scan, which cuts the objects out of it."""
        return [CutObjects(scan, self.classes, self.attributes) for scan in scans]

    def is_there(self) -> bool:
        """Return whether the two files for this `key` can be read and contain objects."""
        try:
            return bool(self.bank().objects)
        except (OSError, EOFError, ValueError, IndexError):
            return False

    def write(self, found: Iterable[dict[str, list[CutOut]]]) -> None:
        """Write objects to the two files, and remove the files of other keys from the folder.

        `found` has the results of calling the tasks of :meth:`tasks`, one for each scan. If the
        objects of a class need too much space, a random part of them is written.
        """
        most = MOST_BYTES / len(self.classes)
        stocks = {name: _Stock(most, seed) for seed, name in enumerate(self.classes)}
        for objects in found:
            for name, own in objects.items():
                for one in own:
                    stocks[name].add(one)
        if not any(stock.objects for stock in stocks.values()):
            raise InputError(
                f"augment.paste has {', '.join(self.classes)}, but the training scans have none "
                f"with {MIN_POINTS} points or more: leave it out"
            )
        every = [(number, one) for number, s in enumerate(stocks.values()) for one in s.objects]
        ends = np.cumsum([len(one.points) for _, one in every])
        rows = [[*one.box, number] for number, one in every]
        try:
            place = Path(self.folder)
            place.mkdir(parents=True, exist_ok=True)
            # If the process is killed between the two files, the first one is ignored later.
            with replacing(self._points) as file:
                shape = int(ends[-1]), every[0][1].points.shape[1]
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for _, one in every:
                    file.write(one.points.astype("<f4").tobytes())
            with replacing(self._rows) as file:
                np.save(file, np.column_stack([rows, ends]))
        except OSError as error:
            raise InputError(
                f"the objects for augment.paste cannot be written to {self.folder} "
                f"({error.strerror}): free some space, or give another folder by --out"
            ) from error
        self.bank.cache_clear()
        remove_others(place, self.key)

    @functools.lru_cache(maxsize=1)  # noqa: B019 - equal ones share it, and workers have one
    def bank(self) -> ObjectBank:
        """Return the stored objects; points are memory-mapped, so that workers share the pages.

        Raises:
          OSError, EOFError, ValueError, IndexError: the files are missing or broken.
        """
        rows = np.load(self._rows, mmap_mode="r", allow_pickle=False)
        points = np.load(self._points, mmap_mode="r", allow_pickle=False)
        fine = rows.dtype == np.float64 and points.dtype == np.float32
        fine = fine and rows.ndim == points.ndim == 2 and rows.shape[1] in (9, 11) and len(rows)
        if fine:
            fine = (np.diff(rows[:, -1], prepend=0) >= MIN_POINTS).all()
            fine = fine and len(points) == rows[-1, -1]
        if not fine:
            raise ValueError(f"{self._rows} and {self._points} do not belong together")
        bank, first = ObjectBank(MIN_POINTS), 0
        for *box, number, end in rows.tolist():
            one = CutOut(np.array(box), points[first : int(end)])
            bank.objects.setdefault(self.classes[int(number)], []).append(one)
            first = int(end)
        return bank

    @property
    def _points(self) -> Path:
        return Path(self.folder) / f"{self.key}-points.npy"

    @property
    def _rows(self) -> Path:
        return Path(self.folder) / f"{self.key}-boxes.npy"


def remove_others(folder: Path, key: str = "") -> None:
    """Remove the files of :class:`KeptObjects` in a folder, except for those with this key.

    Without a key, remove the files of all keys.
    """
    for path in folder.glob("*.npy"):
        if _NAMES.fullmatch(path.name) and not (key and path.name.startswith(key)):
            with contextlib.suppress(OSError):
                path.unlink()


@dataclasses.dataclass(frozen=True)
class Pasted:
    """Augmentation: paste stored objects into a scan, where their boxes overlap no other box.

    The scan has annotations. Its points within the pasted boxes are removed, and so are point
    attributes that are not stored with the objects.

    Attributes:
      objects: the objects to choose from.
      counts: largest number of objects in a scan after pasting, by class name.
      after: augmentation that is applied to the scan after the pasting.
    """

    objects: KeptObjects
    counts: Mapping[str, int]
    after: Change

    def __call__(self, scan: AnnotatedScan, rng: np.random.Generator) -> AnnotatedScan:
        bank, own = self.objects.bank(), scan.objects
        boxes = own.boxes
        if not len(boxes):
            boxes = np.zeros((0, len(next(iter(bank.objects.values()))[0].box)))
        names = self.objects.attributes
        table = _table(scan.cloud, names)
        points, boxes, classes = bank.fill(table, boxes, own.classes, rng, self.counts)
        cloud = _cloud(points, scan.cloud, names)
        return self.after(AnnotatedScan(cloud, Objects(boxes, classes), scan.about), rng)


def _table(cloud: PointCloud, names: Sequence[str]) -> np.ndarray:
    """Return the positions of a cloud's N points and the attributes `names` in one array.

    Its shape is ``float64[N, 3 + columns]``, where an attribute has one or more columns.
    """
    columns = [cloud.positions]
    for name in names:
        attribute_columns(cloud, name)  # raises if it is missing, or has other columns
        values = cloud.attributes[name]
        columns.append(values[:, None] if values.ndim == 1 else values)
    return np.concatenate(columns, axis=1)


def _cloud(table: np.ndarray, like: PointCloud, names: Sequence[str]) -> PointCloud:
    """Return the unlabeled cloud of a table of points, as the inverse of :func:`_table`.

    `names` are the attributes in the table. `like` is a cloud with the same attributes, which
    decide the dtypes and the numbers of columns of the result's attributes.
    """
    attributes, first = {}, 3
    for name in names:
        own = like.attributes[name]
        last = first + (own.shape[1] if own.ndim == 2 else 1)
        values = table[:, first:last].astype(own.dtype)
        attributes[name], first = values.reshape(-1, *own.shape[1:]), last
    return PointCloud(table[:, :3], attributes, None, like.source)
