"""The TOML configuration file of ``voxax train``: its keys, their types and limits, its reader."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, PrivateAttr, ValidationError
from pydantic_core import core_schema

from voxax import _limits, models
from voxax._bounded_file import MEBIBYTE, bounded_text
from voxax.cli.folder_detection import REGIONS, box_transform
from voxax.cli.scenes import Near
from voxax.cli.tasks import TASKS
from voxax.detection import Region
from voxax.errors import FileFormatError, InputError, VoxaxError, listed
from voxax.io import augment
from voxax.io.annotated import AnnotatedScan
from voxax.io.augment import Transform
from voxax.io.dataset import FORMATS, LAYOUTS, Dataset, dataset
from voxax.io.mean_features import POSITION, RGB, ZERO
from voxax.io.nuscenes import MOST_SWEEPS

_WORKERS, _WIDTH, _STEPS = _limits.WORKERS.most, _limits.WIDTH.most, _limits.STEPS.most
# A configuration has a few thousand bytes; a list of a million scans has 64 MiB.
_MOST_BYTES = 64 * MEBIBYTE
_MOST_FAULTS = 6
# Arguments of networks that must not be in model.options, and what determines them.
_FOLLOWING = {
    "grid": "model.region and model.voxel_size",
    "in_channels": "[data]",
    "num_classes": "[data]",
    "rngs": "the seed of all networks",
}
# Input channels that are computed and need no attribute.
_COMPUTED = ("inputs", POSITION), ("inputs", ZERO)
_NETWORKS = dict.fromkeys(name for task in TASKS.values() for name in task.networks())


def _one_of(names: Iterable[str]) -> Any:
    return GetPydanticSchema(lambda *_: core_schema.literal_schema([*names]))


# TOML has lists but no tuples, and strict tuples refuse lists.
_LIST = Field(strict=False)
Names = Annotated[tuple[str, ...], Field(strict=False, fail_fast=True)]
Number = Annotated[float, Field(gt=0, le=1e6)]
Share = Annotated[float, Field(ge=0, le=1)]
Pair = Annotated[tuple[Number, Number], _LIST]
Count = Annotated[int, Field(ge=0, le=1000)]
Side = Annotated[float, Field(ge=_limits.LEAST_VOXEL_SIZE, le=_limits.VOXEL_SIZE.most)]


def _key(meaning: str, default: Any = ..., **limits: float) -> Any:
    """Return the pydantic field of a key of a table.

    Args:
      meaning: description of the key, for the documentation and messages.
      default: default value; without one the key is required.
      limits: limits of the values, ``ge``, ``gt``, ``le`` or ``lt``.
    """
    return Field(default, description=meaning, **limits)  # type: ignore[arg-type]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Data(_Table):
    """Keys of the table ``[data]``, which names the scans."""

    format: Annotated[str, _one_of(FORMATS)] = _key("the folder's layout")
    folder: str = _key("where the scans are; relative to the configuration file")
    train: Names | str = _key(
        "sequences, scenes or patterns of files; or a text file that names one on each line", ()
    )
    validation: Names | str = _key("the same, of scans that are not learned from", ())
    classes: dict[str, str] = _key("of `files`: the ids that count, with their names", {})
    label_field: str = _key("of `files`: the column with the labels; empty: a usual name", "")
    columns: Names | int = _key(
        "of `files` without names, such as .bin: names or number of the columns", ()
    )
    attributes: Names = _key("attributes of points as input, such as `intensity` or `rgb`", ())
    sweeps: int = _key(
        "of `nuscenes`: sweeps of a scan; earlier ones get the attribute `time`, their age",
        1,
        ge=1,
        le=MOST_SWEEPS,
    )
    inputs: Names = _key(
        "of published weights: their channels, means of `xyz`, `zero`, attributes; empty: voxax's",
        (),
    )
    signed_colors: bool = _key("colors of `inputs` from -1 to 1, as Pointcept has them", False)
    radius: float = _key("points farther from the origin in x and y are left out; 0: none", 0, ge=0)
    workers: int = _key(
        "processes that read, augment, voxelize and build maps", 1, ge=0, le=_WORKERS
    )
    loader: Literal["plain", "grain"] = _key(
        "what runs the workers; `grain` needs the extra `grain`", "plain"
    )


class Augment(_Table):
    """Keys of the table ``[augment]``, which changes training scans at random."""

    rotate: bool = _key("turn around the vertical by any angle", True)
    flip: bool = _key("mirror x and y, each with probability 1/2", True)
    scale: Pair = _key("smallest and largest factor", (0.95, 1.05))
    jitter: float = _key("standard deviation of noise on positions", 0, ge=0, le=1e9)
    drop: float = _key("probability of leaving out each point", 0, ge=0, lt=1)
    crop: float = _key("edge of a square in x and y around a random point; 0: no crop", 0, ge=0)
    dropout: Annotated[tuple[Share, Share], _LIST] = _key(
        "share of a scan's points to leave out, and the probability of doing so", (0, 0)
    )
    tilt: float = _key(
        "largest turn around x and y in degrees, each with probability 1/2", 0, ge=0, le=180
    )
    elastic_distortion: Annotated[tuple[Pair, ...], _LIST] = _key(
        "granularity and magnitude of each distortion, in the positions' unit", ()
    )
    auto_contrast: Share = _key("probability of stretching the colors to their range", 0)
    chromatic_translation: Share = _key(
        "largest shift of a color channel, as a share of its range", 0
    )
    chromatic_jitter: Share = _key(
        "standard deviation of noise on colors, as a share of their range", 0
    )
    drop_color: Annotated[tuple[Share, Share], _LIST] = _key(
        "share of the points that lose their color, and its probability", (0, 0)
    )
    mix3d: Share = _key("of `segment`: probability of joining the scenes of a step in pairs", 0)
    polarmix: Names = _key(
        "of `segment`, for LiDAR sweeps: classes whose points PolarMix pastes; empty: none", ()
    )
    paste: dict[str, Count] = _key(
        "of `detect`: objects of each class that a scan has after pasting, at most", {}
    )
    paste_until: Share = _key("share of the steps after which nothing is pasted any more", 1)

    def transform(self) -> Transform:
        """Return all augmentations of the table as one function of ``(cloud, NumPy generator)``."""
        low, high = self.scale
        steps: list[Transform] = []
        if self.crop:
            # The crop has no limit in z, so that it keeps whole columns.
            size = (self.crop, self.crop, math.inf)
            steps.append(functools.partial(augment.crop, size=size))
        steps += self._left_out()
        if self.rotate:
            steps.append(augment.rotate_z)
        if self.tilt:
            steps.append(functools.partial(augment.tilt, max_angle=math.radians(self.tilt)))
        steps.append(functools.partial(augment.scale, low=low, high=high))
        if self.flip:
            steps.append(augment.flip)
        steps += self._noise()
        if self.elastic_distortion:
            pairs = self.elastic_distortion
            steps.append(functools.partial(augment.elastic_distortion, pairs=pairs))
        steps += self._colors()
        return augment.compose(steps)

    def box_transform(self, layout: str) -> Callable[[AnnotatedScan, Any], AnnotatedScan]:
        """Return the table's augmentations as one function of ``(annotated scan, generator)``.

        The generator is NumPy's. `layout` is the name of the data set's layout, which limits how
        far scans are turned.
        """
        steps = [*self._left_out(), *self._noise(), *self._colors()]
        points = augment.compose(steps) if steps else None
        return box_transform(
            layout, rotate=self.rotate, flip=self.flip, scales=self.scale, points=points
        )

    @property
    def of_colors(self) -> list[str]:
        """Names of those keys of the table that change colors and are set."""
        given = {
            "auto_contrast": self.auto_contrast,
            "chromatic_translation": self.chromatic_translation,
            "chromatic_jitter": self.chromatic_jitter,
            "drop_color": all(self.drop_color),
        }
        return [name for name, value in given.items() if value]

    def _left_out(self) -> list[Transform]:
        steps: list[Transform] = []
        if self.drop:
            steps.append(functools.partial(augment.drop, probability=self.drop))
        ratio, probability = self.dropout
        if ratio:
            dropout = functools.partial(augment.dropout, ratio=ratio, probability=probability)
            steps.append(dropout)
        return steps

    def _colors(self) -> list[Transform]:
        ratio, probability = self.drop_color
        changes: dict[str, Transform] = {
            "auto_contrast": functools.partial(
                augment.auto_contrast, probability=self.auto_contrast
            ),
            "chromatic_translation": functools.partial(
                augment.chromatic_translation, ratio=self.chromatic_translation
            ),
            "chromatic_jitter": functools.partial(
                augment.chromatic_jitter, sigma=self.chromatic_jitter
            ),
            "drop_color": functools.partial(
                augment.drop_color, ratio=ratio, probability=probability
            ),
        }
        return [changes[name] for name in self.of_colors]

    def _noise(self) -> list[Transform]:
        if not self.jitter:
            return []
        # Noise beyond four standard deviations is cut off.
        limit = 4 * self.jitter
        return [functools.partial(augment.jitter, sigma=self.jitter, limit=limit)]


class Model(_Table):
    """Keys of the table ``[model]``, which sets the network."""

    name: Annotated[str, _one_of(_NETWORKS)] = _key(
        "the network; `small` is MinkUNet14 with few channels", "small"
    )
    width: Annotated[float, Field(gt=0, le=_WIDTH)] | Literal["auto"] = _key(
        "factor on all channels; `auto`: fitted to the machine", 1
    )
    voxel_size: Side | Annotated[tuple[Side, Side, Side], _LIST] = _key(
        "edge of a voxel, or its three sides, in the positions' unit"
    )
    region: (
        Annotated[tuple[float, float, float, float, float, float], _LIST]
        | Annotated[tuple[()], _LIST]
    ) = _key("of `detect`: lower and upper x, y, z; empty: those of the layout", ())
    options: dict[str, Any] = _key("arguments of the network's class", {})
    weights: str = _key("begin with all weights of a file, or of a folder with a checkpoint", "")
    weights_part: str = _key("the same, without layers that do not fit, such as another head", "")
    source: str = _key("codebase that wrote the weights; empty: found by their names", "")


class Training(_Table):
    """Keys of the table ``[training]``, which sets the optimizer and the validations."""

    steps: int = _key("optimizer steps", ge=1, le=_STEPS)
    batch_size: int = _key(
        "scenes of a step; 0: one for each device", 0, ge=0, le=_limits.STEP_SCENES.most
    )
    learning_rate: float = _key("peak of the one-cycle schedule", 6e-3, gt=0)
    weight_decay: float = _key("of AdamW", 0.01, ge=0)
    lovasz: float = _key(
        "of `segment`: weight of the Lovász loss beside the cross entropy; 0: none", 0, ge=0, le=1e6
    )
    part_learning_rates: dict[str, Number] = _key(
        "factors on the learning rate of parts of the network", {}
    )
    frozen: Names = _key("parts of the network that keep their weights", ())
    ema: float = _key(
        "decay of averaged weights, which are validated and applied; 0: none", 0, ge=0, le=0.99999
    )
    accumulate: int = _key("steps whose gradients make one update", 1, ge=1, le=_STEPS)
    precision: Literal["float32", "bfloat16"] = _key("what layers compute in", "float32")
    class_weights: bool = _key("weight each class by 1 / sqrt(its share)", True)
    samples: int = _key(
        "training scans from which sizes and class weights are computed", 16, ge=1, le=_STEPS
    )
    checkpoint_every: int = _key("steps between checkpoints", 200, ge=1, le=_STEPS)
    log: Literal["", "tensorboard", "wandb"] = _key("where losses and scores are also written", "")
    validate_every: int = _key(
        "checkpoints between validations; 0: at the end only", 0, ge=0, le=_STEPS
    )
    patience: int = _key(
        "validations without a better one before training stops; 0: never", 0, ge=0, le=_STEPS
    )


class TrainConfig(_Table):
    """Content of a configuration file of ``voxax train``: its top-level keys and four tables."""

    _path: Path = PrivateAttr()
    task: Annotated[str, _one_of(TASKS)] = _key("what the network learns", "segment")
    out: str = _key("folder for the results; relative to the configuration file", "voxax-train")
    seed: int = _key(
        "decides the order of scans and the augmentation", 0, ge=0, le=_limits.SEED.most
    )
    devices: Annotated[int, Field(ge=1, le=_limits.DEVICES.most)] | Literal["all", "auto"] = _key(
        "devices that share a step's scenes; `all`: every device of this host; `auto`: all of its "
        "TPUs or GPUs that the scenes can be shared by, on a CPU one",
        "auto",
    )
    data: Data
    augment: Augment
    model: Model
    training: Training

    @property
    def bounds(self) -> tuple[float, ...]:
        """Region of a detector, from the file or the layout: lower x, y, z, then upper x, y, z."""
        return self.model.region or REGIONS[self.data.format]

    @property
    def path(self) -> Path:
        """Path of the configuration file."""
        return self._path

    def place(self, given: str) -> Path:
        """Return `given` as a path; a relative path starts at the configuration file's folder."""
        return self.path.parent / Path(given).expanduser()

    def split(self, name: str) -> tuple[str, ...] | None:
        """Return the scan names that a key of the table ``[data]`` gives, or None if it is empty.

        `name` is the key, ``train`` or ``validation``. Its value is a list of names, or the path of
        a text file with one name on each line.
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
        text = bounded_text(path, _MOST_BYTES)
        lines = tuple(line.strip() for line in text.splitlines() if line.strip())
        if not lines:
            raise InputError(f"{self.path}: {path}, which data.{name} names, is empty")
        return lines

    def classes(self) -> dict[int, str] | None:
        """Return ``data.classes`` as class names by integer id, or None if it is empty."""
        return {int(key): name for key, name in self.data.classes.items()} or None

    def class_names(self) -> tuple[str, ...] | None:
        """Return the names of all classes, or None if only the data's folder contains them."""
        return tuple(dict.fromkeys(self.data.classes.values())) or getattr(
            LAYOUTS[self.data.format], "class_names", None
        )

    def transform(self) -> Callable[[Any, Any], Any]:
        """Return the augmentations of the file as one function of ``(scene, NumPy generator)``.

        A scene is an annotated scan if the task is ``detect``, and otherwise a cloud.
        """
        own = self.augment
        return own.box_transform(self.data.format) if self.task == "detect" else own.transform()

    @contextlib.contextmanager
    def errors_of(self, table: str) -> Iterator[None]:
        """Prefix voxax errors in the ``with`` block by the file's path and the name `table`."""
        try:
            yield
        except VoxaxError as error:
            if str(error).startswith(str(self.path)):
                raise
            raise type(error)(f"{self.path}: {table}: {error}") from error

    def dataset(self) -> Dataset:
        """Return the training and validation scans that the file names."""
        data = self.data
        train, validation = names = self.split("train"), self.split("validation")
        with self.errors_of("data"):
            if data.format == "files" and not all(names):
                raise InputError(
                    f"{'validation' if train else 'train'} is missing: name the scans, since "
                    "format 'files' has no split of its own"
                )
            if twice := sorted(set(train or ()) & set(validation or ())):
                raise InputError(
                    f"train and validation both have {listed(twice)}: a scan can be in one only"
                )
            found = dataset(
                data.format,
                self.place(data.folder),
                *names,
                self.classes(),
                columns=data.columns or None,
                label_field=data.label_field or None,
                sweeps=data.sweeps,
            )
        if not data.radius:
            return found
        train, validation = (
            tuple(Near(scan, data.radius) for scan in scans)
            for scans in (found.train, found.validation)
        )
        return dataclasses.replace(found, train=train, validation=validation)


TABLES = {"data": Data, "augment": Augment, "model": Model, "training": Training}


def read_config(path: Path) -> TrainConfig:
    """Read and check a configuration file of ``voxax train``.

    Raises:
      InputError: the file has invalid keys or values. The message names up to ``_MOST_FAULTS`` of
        them, with the values that are allowed.
    """
    try:
        values = tomllib.loads(bounded_text(path, _MOST_BYTES))
    except FileFormatError as error:
        raise InputError(str(error)) from error
    # tomllib raises ValueError for an integer of thousands of digits.
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no valid TOML: {error}") from error
    try:
        config = TrainConfig.model_validate({name: {} for name in TABLES} | values)
        config._path = path
        faults = _faults(config)
    except ValidationError as error:
        faults = _told(error, values)
    if faults:
        more = [f"and {len(faults) - _MOST_FAULTS} more"] * (len(faults) > _MOST_FAULTS)
        raise InputError(f"{path}: {'; '.join([*faults[:_MOST_FAULTS], *more])}")
    if config.task == "detect":
        given = values["model"]["voxel_size"]
        with config.errors_of(f"model.region = {[*config.bounds]}, model.voxel_size = {given}"):
            Region(config.bounds[:3], config.bounds[3:], config.model.voxel_size)
    return config


def _faults(config: TrainConfig) -> list[str]:
    """Return a message for each key whose value contradicts the value of another key."""
    task, data, model, training = config.task, config.data, config.model, config.training
    form, layout, name = data.format, LAYOUTS[data.format], model.name
    formats = ", ".join(f for f, t in FORMATS.items() if t == task)
    # Labels are int32, so an id has ten digits at most.
    ids = [key for key in data.classes if not (key.isdecimal() and len(key) <= 10)]
    numbers = [int(key) for key in data.classes if key not in ids]
    empty = [key for key in ("train", "validation") if key in data.model_fields_set]
    empty = [f"data.{key}" for key in empty if getattr(data, key) == ()]
    both = set(training.part_learning_rates) & set(training.frozen)
    known = (*(layout.attributes or ()), *(["time"] if data.sweeps > 1 else []))
    own, classes = config.augment, config.class_names() or ()
    mixed = own.mix3d or own.polarmix
    strangers = {
        key: [name for name in getattr(own, key) if name not in classes]
        for key in ("paste", "polarmix")
        if FORMATS[form] == task
    }
    asked = {"attributes": data.attributes, "inputs": data.inputs}
    unknown = {
        key: [n for n in names if n not in known and (key, n) not in _COMPUTED]
        for key, names in asked.items()
    }
    faults = {
        f"data.format = {form!r} is for task = {FORMATS[form]!r}, the task is {task!r}: its "
        f"formats are {formats}": FORMATS[form] != task,
        f"model.name = {name!r} is not for task = {task!r}: its networks are "
        f"{', '.join(TASKS[task].networks())}": name not in TASKS[task].networks(),
        f"model.width = {model.width} is for small and MinkUNet14 to MinkUNet34: give the sizes "
        f"of {name} in [model.options]": model.width != 1 and name in models.list(),
        **{
            f"model.options has {key}, which follows from {others}: leave it out": key
            in model.options
            for key, others in _FOLLOWING.items()
        },
        f"model.region = {list(model.region)} is of task = 'detect'": model.region
        and task != "detect",
        f"model.weights and model.weights_part = {model.weights_part!r} exclude each other: give "
        "one": model.weights and model.weights_part,
        f"model.source = {model.source!r} is of model.weights or model.weights_part: give one, or "
        "leave it out": model.source and not (model.weights or model.weights_part),
        f"data.classes has the key {listed(ids, 1)}: ids are whole numbers of at least 0, such as "
        '2 = "ground"; negative labels mean unknown': ids,
        f"data.classes has an id twice: {listed(numbers)}": len(set(numbers)) < len(numbers),
        f"{' and '.join(empty)} = [] names no scan: name some, or leave the key out for the "
        "layout's own split": empty,
        f"data.radius = {data.radius} is for scans: clouds that are classified are taken "
        "whole": task == "classify" and data.radius,
        f"data.inputs = {list(data.inputs)} lists all channels: leave data.attributes = "
        f"{list(data.attributes)} out": data.inputs and data.attributes,
        "data.inputs is of task = 'segment' and 'detect': give data.attributes": data.inputs
        and task == "classify",
        "data.signed_colors needs 'rgb' in data.inputs": data.signed_colors
        and RGB not in data.inputs,
        **{
            f"data.{key} = {list(asked[key])}: format {form!r} has no {listed(names)}: its "
            f"attributes are {listed(known)}": layout.attributes is not None and names
            for key, names in unknown.items()
        },
        f"augment.crop = {own.crop} would cut boxes: leave it out": task == "detect" and own.crop,
        **{
            f"augment.{key} would move points out of boxes: leave it out": task == "detect"
            and getattr(own, key)
            for key in ("tilt", "elastic_distortion")
        },
        f"augment.{', augment.'.join(own.of_colors)} would change colors, which the network does "
        "not see: give 'rgb' in data.attributes or data.inputs": own.of_colors
        and RGB not in (*data.attributes, *data.inputs),
        "augment.paste is of task = 'detect': leave it out": own.paste and task != "detect",
        "augment.mix3d and augment.polarmix are of task = 'segment': leave them out": mixed
        and task != "segment",
        "augment.mix3d and augment.polarmix mix the scenes of a step: give training.batch_size = 2 "
        "or more": mixed and training.batch_size < 2,
        **{
            f"augment.{key} has {listed(names)}: the classes are {listed(classes, 40)}": names
            for key, names in strangers.items()
        },
        "augment.dropout = [1, ...] leaves no point: give a smaller share": own.dropout[0] == 1
        and own.dropout[1] > 0,
        f"augment.scale = {list(own.scale)}: the smallest factor comes first": own.scale[0]
        > own.scale[1],
        f"training.lovasz = {training.lovasz} is of task = 'segment'": training.lovasz
        and task != "segment",
        f"training.patience = {training.patience} counts validations: give training.validate_every "
        "too": training.patience and not training.validate_every,
        f"training.accumulate = {training.accumulate} leaves no update in training.steps = "
        f"{training.steps}: give fewer": training.accumulate > training.steps,
        f"training.frozen and training.part_learning_rates both have {', '.join(sorted(both))}: "
        "give it in one": both,
    }
    return [message for message, is_true in faults.items() if is_true]


def _told(error: ValidationError, values: dict[str, Any]) -> list[str]:
    """Return a message for each invalid key that pydantic found, with unknown keys first.

    `error` is pydantic's error, and `values` are the tables and keys of the configuration file.
    """
    faults: dict[str, bool] = {}
    for found in error.errors(include_url=False):
        first, *rest = map(str, found["loc"])
        table, name = (first, rest[0]) if first in TABLES and rest else ("", first)
        kind, where = TABLES.get(table, TrainConfig), f"{table}.{name}" if table else name
        fields = kind.model_fields
        if found["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            faults[f"there is no key {where}: {hint}Known are {', '.join(fields)}"] = True
        elif where in TABLES:
            faults[f"{where} = {found['input']!r:.200} must be a table: write [{where}]"] = True
        else:
            own = kind.model_json_schema()["properties"][name]
            allowed = ", ".join(_words(own))
            given = values.get(table, {}) if table else values
            if name in given:
                message = f"{where} = {given[name]!r:.200}: it must be {allowed}"
            else:
                message = f"{where} is missing: {fields[name].description}; {allowed}"
            faults.setdefault(message, False)
    return sorted(faults, key=lambda message: not faults[message])


_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
    "array": "a list",
    "object": "a table",
}
_LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_COUNTS = {2: "two", 3: "three", 6: "six"}


def _words(schema: dict[str, Any]) -> list[str]:
    """Describe a JSON schema in words: its type, such as ``"a list of numbers"``, then limits."""
    if "anyOf" in schema:
        kinds = [_words(one) for one in schema["anyOf"]]
        *names, last = [n for own in kinds for n in own[0].removeprefix("one of ").split(", ")]
        return [
            f"{', '.join(names)} or {last}",
            *dict.fromkeys(limit for own in kinds for limit in own[1:]),
        ]
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if choices:
        return [f"one of {', '.join(map(repr, choices))}"]
    parts = schema.get("prefixItems", [schema.get("items", schema.get("additionalProperties"))])
    limits = [f"{word} {schema[key]}" for key, word in _LIMITS.items() if key in schema]
    if schema.get("maxItems") == 0:
        return ["an empty list"]
    if not isinstance(parts[0], dict):
        return [_KINDS[schema["type"]], *limits]
    inner, *own = _words(parts[0])
    count = f"{_COUNTS[len(parts)]} " if "prefixItems" in schema else ""
    noun, *more = inner.removeprefix("a ").partition(" of ")
    return [f"{_KINDS[schema['type']]} of {count}{noun}s{''.join(more)}", *own, *limits]
