"""Base classes of what networks are trained for: :class:`Task` (settings) and :class:`Score`."""

from __future__ import annotations

import abc
import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from voxax import _limits
from voxax.errors import FileFormatError, InputError, listed
from voxax.interop.sources import set_up
from voxax.models.fine_tuning import averaged, by_part
from voxax.models.training import StepTrainer

Own = TypeVar("Own", bound="Task")
Model = TypeVar("Model", bound=nnx.Module)

# Conversion of the values in a checkpoint's description, by the type of the field.
_CONVERT: dict[str, Callable[[Any], Any]] = {"float": float, "int": int, "str": str}


class Score(abc.ABC):
    """Base class of scores, to which a validation adds the prediction of one scene at a time.

    `figure` is the name of the number that :meth:`value` returns, such as ``mIoU``.
    """

    figure: ClassVar[str]  # name of the number that `value` returns, such as "mIoU"

    @abc.abstractmethod
    def add(self, truth: Any, prediction: Any) -> None:
        """Add the truth and the prediction of one scene, as :meth:`Task.scenes` yields them."""

    @abc.abstractmethod
    def value(self) -> float:
        """Return the main number of the score; higher is better."""

    @abc.abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Return all numbers of the score as entries of metrics.json."""

    @abc.abstractmethod
    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the column names and the rows of the table that is printed at the end."""


class ListedScore(Score):
    """Score that keeps the truths and predictions of all scenes, and is computed at the end."""

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = class_names
        self.truth: list[Any] = []
        self.found: list[Any] = []

    def add(self, truth: Any, prediction: Any) -> None:
        self.truth.append(truth)
        self.found.append(prediction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """Base class of what a network is trained for: settings, and methods that differ between tasks.

    A checkpoint stores the settings as JSON. The function of :meth:`preparation` makes an example
    from a scene. An example has ``voxels`` and ``labels``. The labels are an array with a value for
    each voxel, or those of a :class:`SceneExample`.

    Attributes:
      task: name of the task in files and options: ``segment``, ``detect`` or ``classify``.
      title: name of the network for titles of pictures.
      class_names: names of the classes.
      voxel_size: edge length of a voxel: one number for all axes, or three numbers.
      width: factor on all channels of the network.
      learning_rate: peak of the one-cycle schedule.
      steps: number of training steps in total.
      network: name of the network, one of ``networks()``.
      attributes: attributes of points that the network reads in addition to the positions.
      weight_decay: weight decay of AdamW.
      dtype: name of the dtype in which layers compute; parameters are float32.
      inputs: names of the input channels in the order of published weights, see
        :class:`voxax.io.mean_features.MeanFeatures`; () for the channels of `attributes`.
      signed_colors: whether colors among ``inputs`` are from -1 to 1 instead of 0 to 1.
      source: codebase of the weights that the training began with, such as ``pointcept``; empty for
        voxax. It decides settings, such as epsilons, that a file of weights does not contain.
      part_rates: factor on the learning rate, by name of a part of the network.
      frozen: names of parts of the network that keep their weights.
      ema: decay of the averaged weights that validations use; 0 for no average.
      accumulate: number of steps whose gradients are averaged for one update.
    """

    task: ClassVar[str]
    title: ClassVar[str]

    class_names: tuple[str, ...]
    voxel_size: float | tuple[float, ...]
    width: float
    learning_rate: float
    steps: int
    network: str = "small"
    attributes: tuple[str, ...] = ()
    weight_decay: float = 0.01
    dtype: str = "float32"
    inputs: tuple[str, ...] = ()
    signed_colors: bool = False
    source: str = ""
    part_rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    ema: float = 0.0
    accumulate: int = 1

    def __post_init__(self) -> None:
        """Raise InputError for an invalid setting, which an untrusted checkpoint may have."""
        if not all(isinstance(name, str) for name in self.class_names):
            raise InputError(f"class_names={listed(self.class_names)} must be strings")
        _limits.CLASSES.check("the number of classes", len(self.class_names))
        _limits.STEPS.check("steps", self.steps)
        _limits.WIDTH.check("width", self.width, 0.01)
        for edge in self._edges:
            _limits.VOXEL_SIZE.check("voxel_size", edge, _limits.LEAST_VOXEL_SIZE)
        if len(self._edges) not in (1, 3):
            raise InputError(f"voxel_size = {listed(self._edges)}: give one edge, or three")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate = {self.learning_rate} must be positive and finite")
        check_factors("weight_decay", (self.weight_decay,), 1)
        check_factors("part_rates", tuple(self.part_rates.values()), len(self.part_rates))
        _limits.STEPS.check("accumulate", self.accumulate)

    @property
    def _edges(self) -> tuple[float, ...]:
        return self.voxel_size if isinstance(self.voxel_size, tuple) else (self.voxel_size,)

    @property
    def longest_edge(self) -> float:
        """Longest edge of a voxel."""
        return max(self._edges)

    @classmethod
    @abc.abstractmethod
    def networks(cls) -> Sequence[str]:
        """Return the names of the networks that the task can train."""

    @classmethod
    def shares_equally(cls, network: str) -> bool:
        """Return whether the network needs the same number of scenes on every device."""
        del network
        return False

    @abc.abstractmethod
    def preparation(self) -> Any:
        """Return a picklable function from a scene to an example.

        The function is a dataclass, such as :class:`voxax.io.examples.Preparation`. The caller may
        replace its fields ``plan`` and ``min_capacity``.
        """

    @abc.abstractmethod
    def augmentation(self) -> Callable[[Any, Any], Any]:
        """Return the default augmentation, a picklable function of ``(scene, NumPy generator)``."""

    @abc.abstractmethod
    def model(self) -> nnx.Module:
        """Return the network with random weights."""

    @abc.abstractmethod
    def trainer(self, devices: int = 1) -> StepTrainer:
        """Return a trainer of :meth:`model`, on the first `devices` of JAX's devices."""

    @abc.abstractmethod
    def tracker(self) -> Callable[[Any, Any], str]:
        """Return a function ``(labels, prediction) -> text``; the progress bar shows the text."""

    @abc.abstractmethod
    def scenes(self, trainer: Any, example: Any) -> Iterable[tuple[Any, Any]]:
        """Predict an example or batch by `trainer`; yield ``(truth, prediction)`` of each scene.

        Both are in the form that :meth:`Score.add` of the task's score takes, such as labels or
        boxes.
        """

    @abc.abstractmethod
    def score(self) -> Score:
        """Return a new score, to which predictions of scenes can be added."""

    @property
    def computes_in(self) -> dict[str, Any]:
        """Keyword arguments with the network's ``dtype``; empty for float32, the default."""
        return {} if self.dtype == "float32" else {"dtype": jnp.dtype(self.dtype)}

    def as_its_source(self, model: Model) -> Model:
        """Give `model` the settings of the codebase `source`, such as epsilons, and return it.

        If `source` is empty, `model` is unchanged.
        """
        if self.source:
            set_up(model, self.source)
        return model

    def optimizer(self) -> optax.GradientTransformation:
        """Return AdamW on a one-cycle schedule, with gradients clipped to a global norm of 1.

        The fields `steps`, `learning_rate`, `weight_decay`, `part_rates`, `frozen`, `ema` and
        `accumulate` of the task set its properties.
        """

        def adamw(factor: float = 1.0) -> optax.GradientTransformation:
            schedule = optax.cosine_onecycle_schedule(
                max(self.steps // self.accumulate, 2), self.learning_rate * factor, pct_start=0.2
            )
            # A flattened update is a few kernels instead of several per parameter, and compiles
            # faster.
            return optax.flatten(optax.adamw(schedule, weight_decay=self.weight_decay))

        parts = {part: adamw(factor) for part, factor in self.part_rates.items()}
        parts |= dict.fromkeys(self.frozen, optax.set_to_zero())
        chosen = by_part(parts, adamw()) if parts else adamw()
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), chosen)
        if self.ema:
            optimizer = averaged(optimizer, self.ema)
        if self.accumulate > 1:
            optimizer = optax.MultiSteps(optimizer, self.accumulate).gradient_transformation()
        return optimizer

    def trained_on(
        self, devices: int, alone: Any, shared: Any, *looked: Any, **options: Any
    ) -> Any:
        """Return a trainer of :meth:`model`; the methods :meth:`trainer` of subclasses call this.

        Args:
          devices: number of devices.
          alone: class of the trainer for one device.
          shared: class of the trainer for several devices, which also takes a mesh of the devices.
          looked: further positional arguments of the class.
          options: further keyword arguments of the class.
        """
        parts = self.model(), self.optimizer()
        if devices == 1:
            return alone(*parts, *looked, **options)
        mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        return shared(*parts, mesh, *looked, **options)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls: type[Own], values: dict[str, Any]) -> Own:
        """Return the task with the settings `values`, which :meth:`to_json` returned.

        Raises:
          FileFormatError: a setting is missing or invalid.
        """
        found = {}
        try:
            for field in dataclasses.fields(cls):
                if field.name not in values and not _is_required(field):
                    continue
                value, kind = values[field.name], str(field.type)
                if isinstance(value, list) and "tuple" in kind:
                    value = _as_tuple(value)
                found[field.name] = _CONVERT[kind](value) if kind in _CONVERT else value
            if found.get("network", cls.network) not in cls.networks():
                known = ", ".join(cls.networks())
                raise ValueError(f"network {found['network']!r} is none of {known}")
            return cls(**found)
        except InputError as error:
            raise FileFormatError(f"the checkpoint's description: {error}") from error
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"the checkpoint's description lacks a field: {error!r}"
            ) from error


def check_factors(name: str, values: Any, number: int) -> None:
    """Raise :class:`voxax.InputError` unless `values` has `number` finite numbers of at least 0."""
    numbers = [v for v in values if isinstance(v, int | float) and 0 <= v <= sys.float_info.max]
    if len(numbers) != len(values) or len(values) != number:
        raise InputError(
            f"{name} = {listed(values)}: give finite numbers of at least 0, as many as {number}"
        )


def _as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(_as_tuple(v) if isinstance(v, list) else v for v in values)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing
