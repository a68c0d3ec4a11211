"""Scenes that ``voxax demo`` and ``voxax train`` learn from, and the tasks that prepare them.

Tasks are picklable and run in worker processes; nothing here imports flax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from voxax.coords import bucket_capacity
from voxax.errors import CapacityError, InputError
from voxax.geometry import Voxels
from voxax.io import PointCloud, read
from voxax.io.annotated import AnnotatedScan
from voxax.io.augment import mix3d, polarmix
from voxax.io.simulator import CLASS_NAMES, simulate_objects, simulate_sweep
from voxax.io.split import split_blocks

# Random change of a scene, of any kind, with a generator.
Change = Callable[[Any, np.random.Generator], Any]
# Training and validation streets come from disjoint seeds.
TRAIN_SEEDS, VALIDATION_SEEDS = 10_000, 500
RADIUS = 40.0  # meters; beyond it a 32-beam sweep is a few scattered rings


def run(task: Any) -> Any:
    """Call ``task`` in a worker process."""
    return task()


@dataclasses.dataclass(frozen=True)
class Simulate:
    """Task: one simulated sweep, cropped to ``RADIUS``."""

    seed: int
    sensor: str

    def __call__(self) -> PointCloud:
        cloud = simulate_sweep(self.seed, sensor=self.sensor)
        return _near(cloud, RADIUS)


# Fewer points leave open where a vehicle's center is.
MIN_POINTS = 10


@dataclasses.dataclass(frozen=True)
class SimulateObjects:
    """Task: one simulated sweep with its boxes, cropped to ``RADIUS``."""

    seed: int
    sensor: str

    def __call__(self) -> AnnotatedScan:
        scan = simulate_objects(self.seed, sensor=self.sensor, min_points=MIN_POINTS)
        return dataclasses.replace(scan, cloud=_near(scan.cloud, RADIUS))


@dataclasses.dataclass(frozen=True)
class Near:
    """Task: the scan of another task, without points farther from the origin than ``radius``."""

    scan: Any
    radius: float

    def __call__(self) -> PointCloud | AnnotatedScan:
        scan = self.scan()
        if isinstance(scan, AnnotatedScan):
            return dataclasses.replace(scan, cloud=_near(scan.cloud, self.radius))
        return _near(scan, self.radius)

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the other task."""
        return getattr(self.scan, "files", ())

    def __str__(self) -> str:
        return str(self.scan)


def _near(cloud: PointCloud, radius: float) -> PointCloud:
    return cloud.select(np.hypot(*cloud.positions[:, :2].T) < radius)


@dataclasses.dataclass(frozen=True, eq=False)
class Prepare:
    """Task: a scene, or another task's, as an example with its maps.

    It is augmented by ``transform``, unless ``seed`` is None.
    """

    scene: Any
    preparation: Any
    seed: int | None = None
    transform: Change | None = None

    def __call__(self) -> Any:
        scene: Any = self.scene() if callable(self.scene) else self.scene
        if self.seed is not None and self.transform is not None:
            scene = self.transform(scene, np.random.default_rng(self.seed))
        return self.preparation(scene)


@dataclasses.dataclass(frozen=True, eq=False)
class SceneExample:
    """One scene for a network that predicts something about the whole scene, in NumPy.

    Labels are arrays ``[1, ...]`` in any containers, of the same shapes for all scenes. In batches
    with fewer scenes than places, integers are -1 and other numbers 0 for those that lack. `truth`
    is what a validation compares with.
    """

    voxels: Voxels
    labels: Any
    truth: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Scenes:
    """Clouds, or the tasks that make them, with the classes they are labeled in."""

    train: list[Any]
    validation: list[Any]
    class_names: tuple[str, ...]
    title: str


def near_origin(positions: np.ndarray) -> np.ndarray:
    """Positions of a survey moved to the origin; those within 10 km of it stay."""
    return positions - (positions.min(0) if np.abs(positions).max(initial=0) > 1e4 else 0.0)


def simulated(train: int, validation: int, sensor: str, seed: int) -> Scenes:
    """Simulated streets of disjoint seeds, to train on and to validate with."""
    first = TRAIN_SEEDS + 1000 * seed
    return Scenes(
        [Simulate(first + i, sensor) for i in range(train)],
        [Simulate(VALIDATION_SEEDS + i, sensor) for i in range(validation)],
        CLASS_NAMES,
        "simulated street, a scene the network never saw",
    )


def simulated_objects(
    train: int, validation: int, sensor: str, seed: int, class_names: tuple[str, ...]
) -> Scenes:
    """The streets of :func:`simulated`, with the boxes of their objects."""
    streets = simulated(train, validation, sensor, seed)
    boxed = (
        [SimulateObjects(street.seed, sensor) for street in part]
        for part in (streets.train, streets.validation)
    )
    train_boxed, validation_boxed = boxed
    return Scenes(train_boxed, validation_boxed, class_names, streets.title)


def from_file(
    path: Path,
    labels: Path | None,
    label_field: str | None = None,
    columns: str | None = None,
    item: int | None = None,
) -> Scenes:
    """Cut a labeled scan into alternating 10 m blocks for training and validation.

    Points of negative labels are unknown; the others' classes are numbered from 0.
    """
    cloud = read(path, labels, label_field=label_field, columns=columns, item=item)
    if cloud.labels is None or not (cloud.labels >= 0).any():
        raise InputError(
            f"{path} has no labels to learn from: give --labels FILE (.label, .npy or .npz), "
            "--label-field NAME for a column of another name, or label it with `voxax segment`"
        )
    ids = np.unique(cloud.labels[cloud.labels >= 0])
    cloud = cloud.with_labels(np.where(cloud.labels < 0, -1, np.searchsorted(ids, cloud.labels)))
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
    """Task: a cloud in memory."""

    cloud: PointCloud

    def __call__(self) -> PointCloud:
        return self.cloud


# Where levels do not fit, shards grow by a step at a time, at most so often.
_GROWTHS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """One training step's input, with what is known of each scene.

    Attributes:
      voxels: planned voxels with arrays ``[shards, ...]``; without that axis where there is one
        shard only.
      labels: labels of voxels ``int32[shards, capacity]`` or ``int32[capacity]``, -1 where
        padding or unlabeled; of scenes ``[shards, scenes, ...]`` or ``[scenes, ...]``.
      rows: for each scene ``int[N]``, each point's row among all rows of all shards; empty for
        labels of scenes.
      truths: for each scene ``int32[N]`` labels of points or None; for labels of scenes theirs.
      places: for each scene its shard, and its place in the shard.
    """

    voxels: Voxels
    labels: Any
    rows: tuple[np.ndarray, ...]
    truths: tuple[Any, ...]
    places: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Random change of a step's labeled clouds together.

    After their augmentation pairs are joined with the probability `mix3d`. Before it PolarMix
    pastes objects with the labels in `pasted`; () for none.
    """

    mix3d: float = 0.0
    centered: bool = True
    pasted: tuple[int, ...] = ()

    def before(self, clouds: Sequence[PointCloud], seed: int) -> list[PointCloud]:
        """The clouds, each with parts of the next one."""
        if not self.pasted:
            return list(clouds)
        rng = np.random.default_rng((seed, 1))
        following = [*clouds[1:], clouds[0]]
        return [
            polarmix(cloud, other, rng, pasted=self.pasted)
            for cloud, other in zip(clouds, following, strict=True)
        ]

    def after(self, clouds: Sequence[PointCloud], seed: int) -> list[PointCloud]:
        """The clouds, or their pairs; an odd one stays alone."""
        if np.random.default_rng((seed, 2)).random() >= self.mix3d:
            return list(clouds)
        pairs = [clouds[i : i + 2] for i in range(0, len(clouds), 2)]
        return [
            mix3d(*pair, centered=self.centered) if len(pair) == 2 else pair[0] for pair in pairs
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class PrepareBatch:
    """Task: scenes, packed by their voxels into shards of one capacity, with the plan's maps.

    Attributes:
      scenes: clouds or other scenes, or the tasks that make them.
      seeds: seed of each scene's augmentation; None leaves the scene unchanged.
      preparation: its plan and ``min_capacity`` are those of a shard.
      shards: number of devices.
      most: scenes of a shard, at most: the static batch size of every shard, so that shapes do
        not depend on the packing.
      transform: see :class:`voxax.cli.scenes.Prepare`.
      mixing: changes scenes that have seeds together; None does not.
    """

    scenes: tuple[Any, ...]
    seeds: tuple[int | None, ...]
    preparation: Any
    shards: int
    most: int
    transform: Change | None = None
    mixing: Mixing | None = None

    def _examples(self, preparation: Any) -> list[Any]:
        """The prepared scenes; fewer where pairs are joined."""
        first = self.seeds[0]
        scenes, mixing = self.scenes, self.mixing
        if first is None or mixing is None:
            return [
                Prepare(scene, preparation, seed, self.transform)()
                for scene, seed in zip(scenes, self.seeds, strict=True)
            ]
        clouds: list[Any] = [scene() if callable(scene) else scene for scene in scenes]
        clouds = mixing.before(clouds, first)
        clouds = [
            Prepare(cloud, _same, seed, self.transform)()
            for cloud, seed in zip(clouds, self.seeds, strict=True)
        ]
        return [preparation(cloud) for cloud in mixing.after(clouds, first)]

    def __call__(self) -> Batch:
        from voxax.parallel import pack_scenes, shard_scenes  # needs flax

        bare = dataclasses.replace(self.preparation, plan=None, min_capacity=0)
        examples = self._examples(bare)
        counts = [int(e.voxels.count) for e in examples]
        packing = pack_scenes(counts, self.shards, most=self.most)
        by_scene = isinstance(examples[0], SceneExample)
        plan = self.preparation.plan
        choose = bucket_capacity if plan is None else plan.capacity
        capacity = choose(max(*packing.loads, self.preparation.min_capacity))
        for growth in range(_GROWTHS + 1):
            packing = dataclasses.replace(packing, capacity=capacity, scenes_per_shard=self.most)
            try:
                voxels, labels = shard_scenes(
                    [e.voxels for e in examples],
                    packing,
                    labels=None if by_scene else [e.labels for e in examples],
                    plan=plan,
                )
                break
            except CapacityError:
                if growth == _GROWTHS:
                    raise
                capacity = choose(capacity + 1)
        if by_scene:
            labels = _labels_of_scenes(examples, packing.scenes, self.most)
        starts, places = np.zeros(len(examples), np.int64), [(0, 0)] * len(examples)
        for shard, indices in enumerate(packing.scenes):
            row = shard * capacity
            for place, index in enumerate(indices):
                starts[index], places[index] = row, (shard, place)
                row += counts[index]
        if self.shards == 1:
            voxels, labels = jax.tree.map(lambda x: x[0], (voxels, labels))
        if by_scene:
            return Batch(voxels, labels, (), tuple(e.truth for e in examples), tuple(places))
        return Batch(
            voxels,
            labels,
            tuple(start + e.inverse for start, e in zip(starts, examples, strict=True)),
            tuple(e.point_labels for e in examples),
            tuple(places),
        )


def _same(scene: Any) -> Any:
    return scene


def _labels_of_scenes(
    examples: Sequence[SceneExample], shards: Sequence[Sequence[int]], most: int
) -> Any:
    """Labels of all scenes, ``[shards, most, ...]``, in the order of the shards' scenes."""

    def stacked(*arrays: np.ndarray) -> np.ndarray:
        first = arrays[0]
        empty = -1 if np.issubdtype(first.dtype, np.signedinteger) else 0
        whole = np.full((len(shards), most, *first.shape[1:]), empty, first.dtype)
        for shard, indices in enumerate(shards):
            for place, index in enumerate(indices):
                whole[shard, place] = arrays[index][0]
        return whole

    return jax.tree.map(stacked, *(e.labels for e in examples))


@dataclasses.dataclass(frozen=True, eq=False)
class MakeTask:
    """Function from a step's scenes and seeds to the task that prepares them; picklable.

    With ``equal`` every shard has as many scenes. ``late`` augments in place of ``transform`` from
    the step on whose scenes have ``late_seed``. The other fields are as of :class:`PrepareBatch`.
    """

    preparation: Any
    batch_size: int
    shards: int
    transform: Change | None = None
    equal: bool = False
    mixing: Mixing | None = None
    late: Change | None = None
    late_seed: int = 0

    def __call__(self, scenes: Sequence[Any], seeds: Sequence[int | None]) -> Any:
        transform, first = self.transform, seeds[0]
        if self.late is not None and first is not None and first >= self.late_seed:
            transform = self.late
        if self.batch_size == 1:
            return Prepare(scenes[0], self.preparation, seeds[0], transform)
        return PrepareBatch(
            tuple(scenes),
            tuple(seeds),
            self.preparation,
            self.shards,
            self.batch_size // self.shards if self.equal else self.batch_size,
            transform,
            self.mixing,
        )
