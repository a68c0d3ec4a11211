"""Configuration file of ``voxax train``: TOML, each key with its type, limits and meaning."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import operator
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from voxax import _limits, models
from voxax._bounded_file import MEBIBYTE, bounded_text
from voxax.cli.folder_detection import box_transform
from voxax.cli.scenes import Near
from voxax.cli.tasks import TASKS
from voxax.errors import FileFormatError, InputError, VoxaxError
from voxax.io import augment
from voxax.io.annotated import AnnotatedScan
from voxax.io.augment import Transform
from voxax.io.dataset import FORMATS, Dataset, dataset

LOADERS = ("plain", "grain")
LOGS = ("tensorboard", "wandb")
_WORKERS, _WIDTH, _STEPS = _limits.WORKERS.most, _limits.WIDTH.most, _limits.STEPS.most
_SCENES, _VOXEL_SIZE = _limits.STEP_SCENES.most, _limits.VOXEL_SIZE.most
# A configuration has some thousand bytes, a list of a million scans 64 MiB.
_MOST_BYTES = 64 * MEBIBYTE

_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    int | Literal["all", "auto"]: "a whole number, 'all' or 'auto'",
    float | Literal["auto"]: "a number or 'auto'",
    tuple[str, ...]: "a list of strings",
    tuple[float, float]: "a list of two numbers",
    tuple[float, ...]: "a list of six numbers, or none",
    tuple[str, ...] | str: "a list of strings, or a string",
    tuple[str, ...] | int: "a list of strings, or a whole number",
    Mapping[str, str] | None: "a table of strings",
    Mapping[str, Any] | None: "a table",
}
# Words and test of each limit of a number.
_LIMITS = {
    "low": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "high": ("at most", operator.le),
}


def _key(meaning: str, default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """Declare a key, required if without a default; ``low`` to ``of`` limit its values."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, **limits})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Table ``[data]``."""

    format: str = _key("the folder's layout", of=tuple(FORMATS))
    folder: str = _key("where the scans are; relative to the configuration file")
    train: tuple[str, ...] | str = _key(
        "sequences, scenes or patterns of files; or a text file that names one on each line", ()
    )
    validation: tuple[str, ...] | str = _key("the same, of scans that are not learned from", ())
    classes: Mapping[str, str] | None = _key(
        "of `files`: the ids that count, with their names", None
    )
    label_field: str = _key("of `files`: the column with the labels; empty: a usual name", "")
    columns: tuple[str, ...] | int = _key(
        "of `files` without names, such as .bin: names or number of the columns", ()
    )
    attributes: tuple[str, ...] = _key(
        "attributes of points as input, such as `intensity` or `rgb`", ()
    )
    radius: float = _key(
        "points farther from the origin in x and y are left out; 0: none", 0, low=0
    )
    workers: int = _key(
        "processes that read, augment, voxelize and build maps", 1, low=0, high=_WORKERS
    )
    loader: str = _key(
        "what runs the workers; `grain` needs the extra `grain`", "plain", of=LOADERS
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augment:
    """Table ``[augment]``."""

    rotate: bool = _key("turn around the vertical by any angle", True)
    flip: bool = _key("mirror x and y, each with probability 1/2", True)
    scale: tuple[float, float] = _key(
        "smallest and largest factor", (0.95, 1.05), above=0, high=1e6
    )
    jitter: float = _key("standard deviation of noise on positions", 0, low=0, high=1e9)
    drop: float = _key("probability of leaving out a point", 0, low=0, high=1)
    crop: float = _key("edge of a square in x and y around a random point; 0: no crop", 0, low=0)

    def transform(self) -> Transform:
        """All augmentations of the table in one transform.

        Raises:
          InputError: scales in the wrong order.
        """
        low, high = self._scales()
        steps: list[Transform] = []
        if self.crop:
            # Whole columns: what is above and below a place belongs to it.
            size = (self.crop, self.crop, math.inf)
            steps.append(functools.partial(augment.crop, size=size))
        if self.drop:
            steps.append(functools.partial(augment.drop, probability=self.drop))
        if self.rotate:
            steps.append(augment.rotate_z)
        steps.append(functools.partial(augment.scale, low=low, high=high))
        if self.flip:
            steps.append(augment.flip)
        steps += self._noise()
        return augment.compose(steps)

    def box_transform(self, layout: str) -> Callable[[AnnotatedScan, Any], AnnotatedScan]:
        """The augmentations of scans with boxes.

        Args:
          layout: of the data set, see :func:`voxax.cli.folder_detection.box_transform`.

        Raises:
          InputError: scales in the wrong order, or a crop, which would cut boxes.
        """
        if self.crop:
            raise InputError(f"augment.crop = {self.crop} would cut boxes: leave it out")
        steps: list[Transform] = []
        if self.drop:
            steps.append(functools.partial(augment.drop, probability=self.drop))
        steps += self._noise()
        points = augment.compose(steps) if steps else None
        return box_transform(
            layout, rotate=self.rotate, flip=self.flip, scales=self._scales(), points=points
        )

    def _scales(self) -> tuple[float, float]:
        low, high = self.scale
        if low > high:
            raise InputError(f"augment.scale = [{low}, {high}]: the smallest factor comes first")
        return low, high

    def _noise(self) -> list[Transform]:
        if not self.jitter:
            return []
        # Noise of a normal distribution is within four standard deviations.
        limit = 4 * self.jitter
        return [functools.partial(augment.jitter, sigma=self.jitter, limit=limit)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """Table ``[model]``."""

    name: str = _key(
        "the network; `small` is MinkUNet14 with few channels",
        "small",
        of=tuple(dict.fromkeys(name for task in TASKS.values() for name in task.networks())),
    )
    width: float | Literal["auto"] = _key(
        "factor on all channels; `auto`: fitted to the machine", 1, above=0, high=_WIDTH
    )
    voxel_size: float = _key(
        "edge of a voxel, in the positions' unit", low=_limits.LEAST_VOXEL_SIZE, high=_VOXEL_SIZE
    )
    region: tuple[float, ...] = _key(
        "of `detect`: lower and upper x, y, z; empty: those of the layout", ()
    )
    options: Mapping[str, Any] | None = _key("arguments of the network's class", None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Table ``[training]``."""

    steps: int = _key("optimizer steps", low=1, high=_STEPS)
    batch_size: int = _key("scenes of a step; 0: one for each device", 0, low=0, high=_SCENES)
    learning_rate: float = _key("peak of the one-cycle schedule", 6e-3, above=0)
    weight_decay: float = _key("of AdamW", 0.01, low=0)
    class_weights: bool = _key("weight each class by 1 / sqrt(its share)", True)
    samples: int = _key(
        "training scans from which sizes and class weights are computed", 16, low=1, high=_STEPS
    )
    checkpoint_every: int = _key("steps between checkpoints", 200, low=1, high=_STEPS)
    log: str = _key("where losses and scores are also written", "", of=("", *LOGS))
    validate_every: int = _key(
        "checkpoints between validations; 0: at the end only", 0, low=0, high=_STEPS
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All tables and keys of the file at ``path``."""

    path: Path
    task: str = _key("what the network learns", "segment", of=tuple(TASKS))
    out: str = _key("folder for the results; relative to the configuration file", "voxax-train")
    seed: int = _key(
        "decides the order of scans and the augmentation", 0, low=0, high=_limits.SEED.most
    )
    devices: int | Literal["all", "auto"] = _key(
        "devices that share a step's scenes; `all`: every device of this host; `auto`: all of its "
        "TPUs or GPUs that the scenes can be shared by, on a CPU one",
        "auto",
        low=1,
        high=_limits.DEVICES.most,
    )
    data: Data
    augment: Augment
    model: Model
    training: Training

    def place(self, given: str) -> Path:
        """A path of the file, relative to its folder."""
        return self.path.parent / Path(given).expanduser()

    def split(self, name: str) -> tuple[str, ...] | None:
        """The names in ``data.train`` or ``data.validation``; None without any.

        Raises:
          InputError: the text file is missing, or names nothing.
        """
        given = getattr(self.data, name)
        if isinstance(given, tuple):
            return given or None
        path = self.place(given)
        if not path.is_file():
            raise InputError(
                f"{self.path}: data.{name} = {given!r} names a list, but there is no file {path}: "
                "give its place, or a list of names"
            )
        listed = bounded_text(path, _MOST_BYTES)
        lines = tuple(line.strip() for line in listed.splitlines() if line.strip())
        if not lines:
            raise InputError(f"{self.path}: {path}, which data.{name} names, is empty")
        return lines

    def classes(self) -> dict[int, str] | None:
        """The names in ``data.classes`` by their ids as numbers; None without any.

        Raises:
          InputError: an id is no whole number.
        """
        if self.data.classes is None:
            return None
        for key in self.data.classes:
            if not key.lstrip("-").isdecimal():
                raise InputError(
                    f"{self.path}: data.classes has the key {key!r}: ids are whole numbers, such "
                    'as 2 = "ground"'
                )
        return {int(key): name for key, name in self.data.classes.items()}

    def transform(self) -> Callable[[Any, Any], Any]:
        """The augmentations of the file, for the task's scenes.

        Raises:
          InputError: see :class:`Augment`.
        """
        own = self.augment
        return own.box_transform(self.data.format) if self.task == "detect" else own.transform()

    def dataset(self) -> Dataset:
        """The scans that the file names.

        Raises:
          InputError, FileFormatError: see :func:`voxax.io.dataset.dataset`; with the file's name.
        """
        data = self.data
        names = self.split("train"), self.split("validation"), self.classes()
        try:
            found = dataset(
                data.format,
                self.place(data.folder),
                *names,
                columns=data.columns or None,
                label_field=data.label_field or None,
            )
        except VoxaxError as error:
            if str(error).startswith(str(self.path)):
                raise
            raise type(error)(f"{self.path}: data: {error}") from error
        if not data.radius:
            return found
        train, validation = (
            tuple(Near(scan, data.radius) for scan in scans)
            for scans in (found.train, found.validation)
        )
        return dataclasses.replace(found, train=train, validation=validation)


def _check_task(config: TrainConfig) -> None:
    """Raise :class:`voxax.InputError` for a layout or a network of another task."""
    task, form, name = config.task, config.data.format, config.model.name
    if FORMATS[form] != task:
        raise InputError(
            f"{config.path}: data.format = {form!r} is for task = {FORMATS[form]!r}, the task is "
            f"{task!r}: its formats are {', '.join(f for f, t in FORMATS.items() if t == task)}"
        )
    known = TASKS[task].networks()
    if name not in known:
        raise InputError(
            f"{config.path}: model.name = {name!r} is not for task = {task!r}: its networks are "
            f"{', '.join(known)}"
        )
    if config.model.width != 1 and name in models.list():
        raise InputError(
            f"{config.path}: model.width = {config.model.width} is for small and MinkUNet14 to "
            f"MinkUNet34: give the sizes of {name} in [model.options]"
        )
    if task == "classify" and config.data.radius:
        raise InputError(
            f"{config.path}: data.radius = {config.data.radius} is for scans: clouds that are "
            "classified are taken whole"
        )


TABLES = {"data": Data, "augment": Augment, "model": Model, "training": Training}


def read_config(path: Path) -> TrainConfig:
    """Read and check a configuration file.

    Raises:
      InputError: the file is missing or no TOML; a key is unknown, missing, or has a value of
        another type or beyond its limits. Names the key, the value, and what is allowed.
    """
    try:
        values = tomllib.loads(bounded_text(path, _MOST_BYTES))
    except FileFormatError as error:
        raise InputError(str(error)) from error
    # An integer of thousands of digits is a ValueError.
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no valid TOML: {error}") from error
    given = {name: values.pop(name, {}) for name in TABLES}
    whole = _checked(path, "", TrainConfig, values)
    tables = {}
    for name, table in given.items():
        if not isinstance(table, dict):
            raise InputError(f"{path}: {name} = {table!r} must be a table: write [{name}]")
        tables[name] = TABLES[name](**_checked(path, name, TABLES[name], table))
    config = TrainConfig(path=path, **whole, **tables)
    _check_task(config)
    return config


def keys_of(kind: type) -> list[dataclasses.Field[Any]]:
    """The fields of a table that are keys of the file."""
    return [field for field in dataclasses.fields(kind) if "meaning" in field.metadata]


def _checked(path: Path, table: str, kind: type, values: dict[str, Any]) -> dict[str, Any]:
    keys, hints = {field.name: field for field in keys_of(kind)}, get_type_hints(kind)
    dot = f"{table}." if table else ""
    known = [*keys, *(TABLES if not table else ())]
    for name in values:
        if name not in keys:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                f"{path}: there is no key {dot}{name}: {hint}Known are {', '.join(known)}"
            )
    checked = {}
    for name, field in keys.items():
        where = f"{path}: {dot}{name}"
        if name in values:
            found = checked[name] = _converted(hints[name], values[name])
            if found is None or not _within(field, found):
                allowed = _allowed(field, hints[name])
                raise InputError(f"{where} = {values[name]!r}: it must be {allowed}")
        elif field.default is dataclasses.MISSING:
            raise InputError(
                f"{where} is missing: {field.metadata['meaning']}; {_allowed(field, hints[name])}"
            )
    return checked


def _converted(kind: Any, value: Any) -> Any:
    """Convert ``value`` to the type of a key; None if it has another type."""
    if kind is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):  # to Python, True is a number
        return None
    if kind in (int | Literal["all", "auto"], float | Literal["auto"]):
        number, words = get_args(kind)
        return value if value in get_args(words) else _converted(number, value)
    if kind is float:
        # An integer of TOML may be beyond every float.
        fine = isinstance(value, int | float) and abs(value) <= sys.float_info.max
        return float(value) if fine else None
    if kind == Mapping[str, str] | None:
        fine = isinstance(value, dict) and value and all(isinstance(v, str) for v in value.values())
        return value if fine else None
    if kind == Mapping[str, Any] | None:
        return value if isinstance(value, dict) and value else None
    if kind in (tuple[float, float], tuple[float, ...]):
        lengths = (2,) if kind == tuple[float, float] else (0, 6)
        fine = isinstance(value, list) and len(value) in lengths
        numbers = [_converted(float, v) for v in value] if fine else [None]
        return None if None in numbers else tuple(numbers)
    if isinstance(value, list):
        fine = kind in (tuple[str, ...], tuple[str, ...] | str, tuple[str, ...] | int)
        return tuple(value) if fine and all(isinstance(v, str) for v in value) else None
    if kind == tuple[str, ...] | str:
        return value if isinstance(value, str) else None
    if kind == tuple[str, ...] | int:
        return value if isinstance(value, int) else None
    return value if kind in (int, str) and isinstance(value, kind) else None


def _within(field: dataclasses.Field[Any], value: Any) -> bool:
    limits = field.metadata
    if "of" in limits:
        return value in limits["of"]
    if isinstance(value, str):  # instead of a number
        return True
    numbers = value if isinstance(value, tuple) else (value,)
    kept = [(test, limits[name]) for name, (_, test) in _LIMITS.items() if name in limits]
    return all(test(number, limit) for test, limit in kept for number in numbers)


def _allowed(field: dataclasses.Field[Any], kind: Any) -> str:
    limits = field.metadata
    if "of" in limits:
        return f"one of {', '.join(limits['of'])}"
    words = [f"{word} {limits[name]}" for name, (word, _) in _LIMITS.items() if name in limits]
    return ", ".join([_KINDS[kind], *words])
