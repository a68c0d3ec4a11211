"""Tasks that read or simulate scenes and prepare them for training, in worker processes.

A task is a picklable callable without arguments. This module does not import flax.
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

# Function from a scene and a random generator to a changed scene.
Change = Callable[[Any, np.random.Generator], Any]
# Training and validation streets come from disjoint seeds.
TRAIN_SEEDS, VALIDATION_SEEDS = 10_000, 500
RADIUS = 40.0  # meters; beyond it a 32-beam sweep is a few scattered rings


def run(task: Any) -> Any:
    """Call ``task`` and return its result; pipelines run this function in worker processes."""
    return task()


# An object with fewer points gets no box, because its center is not clear.
MIN_POINTS = 10


@dataclasses.dataclass(frozen=True)
class Simulate:
    """Task (picklable callable): simulate a LiDAR sweep of a street, with a label for each point.

    If `boxed` is True, vehicles, poles and persons also have boxes. `seed` determines the street,
    and `sensor` names the beam pattern. Points ``RADIUS`` meters or more from the origin in x and y
    are dropped.
    """

    seed: int
    sensor: str
    boxed: bool = False

    def __call__(self) -> Any:
        if self.boxed:
            scan = simulate_objects(self.seed, sensor=self.sensor, min_points=MIN_POINTS)
            return _near(scan, RADIUS)
        return _near(simulate_sweep(self.seed, sensor=self.sensor), RADIUS)


@dataclasses.dataclass(frozen=True)
class Near:
    """Task (picklable callable): read a scan, and drop the points far from the origin in x and y.

    `scan` is the task that reads the scan. Points with a distance of at least `radius` are dropped.
    """

    scan: Any
    radius: float

    def __call__(self) -> PointCloud | AnnotatedScan:
        return _near(self.scan(), self.radius)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that the task `scan` reads; () if it does not name them."""
        return getattr(self.scan, "files", ())

    def __str__(self) -> str:
        return str(self.scan)


def _near(scan: Any, radius: float) -> Any:
    if isinstance(scan, AnnotatedScan):
        return dataclasses.replace(scan, cloud=_near(scan.cloud, radius))
    return scan.select(np.hypot(*scan.positions[:, :2].T) < radius)


@dataclasses.dataclass(frozen=True, eq=False)
class Prepare:
    """Task (picklable callable): augment one scene, and turn it into an example for a network.

    Attributes:
      scene: a scene, or the task that makes it.
      preparation: function from a scene to an example, such as :class:`Preparation`.
      seed: seed of the augmentation; None omits the augmentation.
      transform: augmentation, a function of ``(scene, NumPy generator)``; None for no augmentation.
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
    """Training example of one scene with labels of the whole scene, such as its class or boxes.

    Attributes:
      voxels: voxels of the scene.
      labels: pytree of NumPy arrays ``[1, ...]``, with the same shapes for all scenes. A batch has
        a fixed number of rows, one for each scene; unused rows have -1 in signed integers and 0 in
        other arrays.
      truth: value that a validation compares the prediction with.
    """

    voxels: Voxels
    labels: Any
    truth: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Scenes:
    """Scenes for training and for validation.

    Attributes:
      train, validation: tasks that make the scenes.
      class_names: names of the classes.
      title: text for the title of a picture of a validation scene.
    """

    train: list[Any]
    validation: list[Any]
    class_names: tuple[str, ...]
    title: str


def near_origin(positions: np.ndarray) -> np.ndarray:
    """Return the positions ``[N, 3]``, moved to the origin if they are far from it.

    Far means that the magnitude of a coordinate exceeds 10,000. The minimum of each axis is then
    subtracted.
    """
    return positions - (positions.min(0) if np.abs(positions).max(initial=0) > 1e4 else 0.0)


def simulated(
    train: int, validation: int, sensor: str, seed: int, boxed: tuple[str, ...] = ()
) -> Scenes:
    """Return tasks that simulate `train` and `validation` labeled streets, with disjoint seeds.

    `seed` selects the training streets. The validation streets are always the same. `boxed` names
    the classes of the objects that get boxes; if it is empty, the streets have no boxes.
    """
    first = TRAIN_SEEDS + 1000 * seed
    return Scenes(
        [Simulate(first + i, sensor, bool(boxed)) for i in range(train)],
        [Simulate(VALIDATION_SEEDS + i, sensor, bool(boxed)) for i in range(validation)],
        boxed or CLASS_NAMES,
        "simulated street, a scene the network never saw",
    )


def from_file(
    path: Path,
    labels: Path | None,
    label_field: str | None = None,
    columns: str | None = None,
    item: int | None = None,
) -> Scenes:
    """Read a labeled scan, and cut it into alternating 10 m blocks for training and validation.

    The arguments are those of :func:`voxax.io.read`. Negative labels become -1, which means
    unknown. The other labels are renumbered from 0.
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
    """Task (picklable callable) that returns `cloud`, a point cloud that is in memory already."""

    cloud: PointCloud

    def __call__(self) -> PointCloud:
        return self.cloud


# How often a batch may raise the capacity of its shards by one step if a level does not fit.
_GROWTHS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Input of one training step: scenes that are packed into shards, one shard per device.

    With one shard, the arrays of voxels and labels do not have the axis ``shards``.

    Attributes:
      voxels: voxels with kernel maps, whose arrays are ``[shards, ...]``.
      labels: labels of voxels, ``int32[shards, capacity]``, -1 for padding and unlabeled voxels; or
        labels of scenes, ``[shards, scenes, ...]``, if examples are :class:`SceneExample`.
      rows: for each scene, ``int[N]``, the voxel row of each of its N points. Row ``r`` of shard
        ``s`` has the number ``s * capacity + r``. Empty if labels belong to scenes.
      truths: for each scene, ``int32[N]``, the labels of its points, or None. If examples are
        :class:`SceneExample`, their `truth`.
      places: for each scene, its shard and its index in this shard.
    """

    voxels: Voxels
    labels: Any
    rows: tuple[np.ndarray, ...]
    truths: tuple[Any, ...]
    places: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Augmentation that mixes the labeled clouds of one training step: PolarMix and Mix3D.

    Attributes:
      mix3d: probability of joining the clouds in pairs, after the augmentation of each cloud.
      centered: whether the second cloud of a pair moves to the middle of the first, see
        :func:`voxax.io.augment.mix3d`.
      pasted: labels of the points that PolarMix pastes before the augmentation; () for no PolarMix.
    """

    mix3d: float = 0.0
    centered: bool = True
    pasted: tuple[int, ...] = ()

    def before(self, clouds: Sequence[PointCloud], seed: int) -> list[PointCloud]:
        """Return the clouds before their augmentation, mixed by PolarMix unless `pasted` is empty.

        PolarMix adds parts of the next cloud to each cloud, and parts of the first to the last.
        `seed` is the seed of its random choices.
        """
        if not self.pasted:
            return list(clouds)
        rng = np.random.default_rng((seed, 1))
        following = [*clouds[1:], clouds[0]]
        return [
            polarmix(cloud, other, rng, pasted=self.pasted)
            for cloud, other in zip(clouds, following, strict=True)
        ]

    def after(self, clouds: Sequence[PointCloud], seed: int) -> list[PointCloud]:
        """Return the augmented clouds, joined in pairs by Mix3D with probability `mix3d`.

        One random number, which `seed` determines, decides for all clouds of the step. An unpaired
        last cloud is unchanged.
        """
        if np.random.default_rng((seed, 2)).random() >= self.mix3d:
            return list(clouds)
        pairs = [clouds[i : i + 2] for i in range(0, len(clouds), 2)]
        return [
            mix3d(*pair, centered=self.centered) if len(pair) == 2 else pair[0] for pair in pairs
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class PrepareBatch:
    """Task (picklable callable): pack scenes into one :class:`Batch`, in shards of equal capacity.

    Attributes:
      scenes: scenes, or the tasks that make them.
      seeds: seed of the augmentation of each scene; None omits the augmentation.
      preparation: function from a scene to an example. Its fields ``plan`` (the kernel maps to
        attach) and ``min_capacity`` are applied to whole shards.
      shards: number of shards, one for each device.
      most: largest number of scenes in a shard. It is the static batch size of every shard, so that
        shapes do not depend on the packing.
      transform: augmentation of each scene; None for no augmentation.
      mixing: augmentation of all scenes together, omitted if `seeds` are None; None for none.
    """

    scenes: tuple[Any, ...]
    seeds: tuple[int | None, ...]
    preparation: Any
    shards: int
    most: int
    transform: Change | None = None
    mixing: Mixing | None = None

    def _examples(self, preparation: Any) -> list[Any]:
        """Return the training examples that `preparation` makes of the augmented scenes.

        There is one for each scene, or fewer if :attr:`mixing` joins pairs of scenes.
        """
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
            Prepare(cloud, lambda scene: scene, seed, self.transform)()
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


def _labels_of_scenes(
    examples: Sequence[SceneExample], shards: Sequence[Sequence[int]], most: int
) -> Any:
    """Return the labels of all scenes, a pytree of arrays ``[number of shards, most, ...]``.

    `shards` has, for each shard, the indices of its scenes in `examples`. A shard with fewer than
    `most` scenes is padded with -1 in arrays of signed integers and with 0 in other arrays.
    """

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
    """Picklable function of ``(scenes, seeds)`` that returns the task to prepare one training step.

    Attributes:
      preparation, shards, transform, mixing: see :class:`PrepareBatch`.
      batch_size: number of scenes in a step.
      equal: whether every shard must have the same number of scenes.
      late: augmentation that replaces `transform` for seeds from `late_seed` on; None for none.
      late_seed: seed of the first scene of the step from which `late` is used.
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
