"""What a network is trained for: the base of each task, with its settings."""

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

# Values of a checkpoint's description by the type of their field.
_CONVERT: dict[str, Callable[[Any], Any]] = {"float": float, "int": int, "str": str}


class Score(abc.ABC):
    """Result of a validation, added up scene by scene."""

    figure: ClassVar[str]  # name of the main one

    @abc.abstractmethod
    def add(self, truth: Any, prediction: Any) -> None:
        """Count one scene: both as of :meth:`Task.scenes`."""

    @abc.abstractmethod
    def value(self) -> float:
        """The main figure."""

    @abc.abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Entries of metrics.json, for JSON."""

    @abc.abstractmethod
    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Names of the columns, and rows of text: what is printed in the end."""


class ListedScore(Score):
    """Score that is computed in the end, of what each scene has and what was found in it."""

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = class_names
        self.truth: list[Any] = []
        self.found: list[Any] = []

    def add(self, truth: Any, prediction: Any) -> None:
        self.truth.append(truth)
        self.found.append(prediction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """Settings of one training, and what differs between tasks; JSON in the checkpoint.

    An example, which :meth:`preparation` makes of a scene, has ``voxels``, and ``labels`` that a
    training step takes: an array with a value for each voxel, or a :class:`SceneExample`'s.

    Attributes:
      task: name of the task, in files and options.
      title: name of the network for titles.
      voxel_size: edge length of a voxel, or those of x, y and z.
      network: name of the network; those of the task are ``networks()``.
      attributes: attributes of points that it reads beside their positions.
      dtype: what its layers compute in; parameters are float32.
      inputs: channels of the input in the order of published weights; () for our own.
      signed_colors: colors among ``inputs`` are from -1 to 1.
      source: the codebase whose weights it began with, which decides what a file of weights does
        not hold; empty for ours.
      part_rates: factors on the learning rate of parts of the network.
      frozen: parts that keep their weights.
      ema: decay of the averaged weights that validations take; 0 for none.
      accumulate: steps whose gradients make one update.
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
        """Check the numbers, which a checkpoint of a stranger may give too."""
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
        """The longest edge of a voxel."""
        return max(self._edges)

    @classmethod
    @abc.abstractmethod
    def networks(cls) -> Sequence[str]:
        """Names of the networks that there are for the task."""

    @classmethod
    def shares_equally(cls, network: str) -> bool:
        """Whether all devices of a step need equally many scenes, for a network by name."""
        del network
        return False

    @abc.abstractmethod
    def preparation(self) -> Any:
        """A picklable function from scenes to examples, a dataclass.

        Its fields ``plan`` and ``min_capacity`` are replaced once they are known, see
        :class:`voxax.io.examples.Preparation`.
        """

    @abc.abstractmethod
    def augmentation(self) -> Callable[[Any, Any], Any]:
        """The usual random changes of a scene: a picklable function of it and a generator."""

    @abc.abstractmethod
    def model(self) -> nnx.Module:
        """Build a network with fresh weights."""

    @abc.abstractmethod
    def trainer(self, devices: int = 1) -> StepTrainer:
        """Build a network with fresh weights and its optimizer, on the first ``devices``."""

    @abc.abstractmethod
    def tracker(self) -> Callable[[Any, Any], str]:
        """A function of a step's ``(labels, prediction)`` that tells how training goes."""

    @abc.abstractmethod
    def scenes(self, trainer: Any, example: Any) -> Iterable[tuple[Any, Any]]:
        """Truth and prediction of each scene in an example or batch."""

    @abc.abstractmethod
    def score(self) -> Score:
        """A score without scenes."""

    @property
    def computes_in(self) -> dict[str, Any]:
        """The arguments of the network's class that say what its layers compute in."""
        return {} if self.dtype == "float32" else {"dtype": jnp.dtype(self.dtype)}

    def as_its_source(self, model: Model) -> Model:
        """Return the network with the settings of the codebase whose weights it began with."""
        if self.source:
            set_up(model, self.source)
        return model

    def optimizer(self) -> optax.GradientTransformation:
        """AdamW on a one-cycle schedule, with the rates of parts, and an average of the weights."""

        def adamw(factor: float = 1.0) -> optax.GradientTransformation:
            schedule = optax.cosine_onecycle_schedule(
                max(self.steps // self.accumulate, 2), self.learning_rate * factor, pct_start=0.2
            )
            # Flattened, the update is a few kernels, not several per parameter: less to compile.
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
        """Return a trainer of a fresh network: of a class for one device, or for the first few."""
        parts = self.model(), self.optimizer()
        if devices == 1:
            return alone(*parts, *looked, **options)
        mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        return shared(*parts, mesh, *looked, **options)

    def to_json(self) -> dict[str, Any]:
        """The settings, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls: type[Own], values: dict[str, Any]) -> Own:
        """Read the settings of a checkpoint's description."""
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
    """Raise :class:`voxax.InputError` unless there are so many finite numbers, none below 0."""
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
