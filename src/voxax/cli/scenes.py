"""What the demo learns from: simulated streets, or a labelled scan of the user's."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np

from voxax.errors import InputError
from voxax.io import PointCloud, read
from voxax.io.augment import Transform, compose, flip, rotate_z, scale
from voxax.io.examples import Example, Preparation
from voxax.io.simulator import CLASS_NAMES, simulate_sweep
from voxax.io.split import split_blocks

# Training and validation streets come from disjoint seeds.
TRAIN_SEEDS, VALIDATION_SEEDS = 10_000, 500
RADIUS = 40.0  # metres; beyond it a 32-beam sweep is a few scattered rings

_augment = compose([rotate_z, functools.partial(scale, low=0.95, high=1.05), flip])


def run(task: Any) -> Any:
    """Call ``task``: what a worker process does."""
    return task()


@dataclasses.dataclass(frozen=True)
class Simulate:
    """Task: one simulated sweep, cropped to ``RADIUS``."""

    seed: int
    sensor: str

    def __call__(self) -> PointCloud:
        cloud = simulate_sweep(self.seed, sensor=self.sensor)
        return cloud.select(np.hypot(*cloud.positions[:, :2].T) < RADIUS)


@dataclasses.dataclass(frozen=True, eq=False)
class Prepare:
    """Task: a cloud, augmented unless ``seed`` is None, as an example with its maps.

    The cloud may be a task that makes it. ``transform`` augments; None turns around the vertical,
    scales and mirrors.
    """

    cloud: Any
    preparation: Preparation
    seed: int | None = None
    transform: Transform | None = None

    def __call__(self) -> Example:
        cloud: Any = self.cloud() if callable(self.cloud) else self.cloud
        if self.seed is not None:
            transform = self.transform or _augment
            cloud = transform(cloud, np.random.default_rng(self.seed))
        return self.preparation(cloud)


@dataclasses.dataclass(frozen=True, eq=False)
class Scenes:
    """Clouds, or the tasks that make them, with the classes they are labelled in."""

    train: list[Any]
    validation: list[Any]
    class_names: tuple[str, ...]
    title: str


def simulated(train: int, validation: int, sensor: str, seed: int) -> Scenes:
    """Streets of disjoint seeds."""
    first = TRAIN_SEEDS + 1000 * seed
    return Scenes(
        [Simulate(first + i, sensor) for i in range(train)],
        [Simulate(VALIDATION_SEEDS + i, sensor) for i in range(validation)],
        CLASS_NAMES,
        "simulated street, a scene the network never saw",
    )


def from_file(path: Path, labels: Path | None) -> Scenes:
    """A labelled scan, cut into alternating 10 m blocks for training and validation."""
    cloud = read(path, labels)
    if cloud.labels is None:
        raise InputError(
            f"{path} has no labels to learn from: give --labels FILE (.label, .npy or .npz), or "
            "label it with `voxax segment`"
        )
    ids, compact = np.unique(cloud.labels, return_inverse=True)
    cloud = cloud.with_labels(compact.reshape(-1))
    train, validation = split_blocks(cloud.positions)
    if not train.any() or not validation.any():
        raise InputError(
            f"{path} spans {np.ptp(cloud.positions[:, :2], axis=0).round(1).tolist()}: too little "
            "to cut into 10 m blocks for training and validation"
        )
    names = tuple(f"class {i}" for i in ids.tolist())
    title = f"{path.name}, blocks left out of training"
    return Scenes([_Given(cloud.select(train))], [_Given(cloud.select(validation))], names, title)


@dataclasses.dataclass(frozen=True, eq=False)
class _Given:
    """Task: a cloud that is already here."""

    cloud: PointCloud

    def __call__(self) -> PointCloud:
        return self.cloud
