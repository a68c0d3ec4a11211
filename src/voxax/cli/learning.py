"""The network of the command line, and the training loop of ``voxax demo`` and ``voxax train``."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from voxax import models
from voxax._atomic_file import write_atomically
from voxax._version import __version__
from voxax.cli.progress import result_table, training_bar
from voxax.cli.scenes import Batch, MakeTask, Prepare
from voxax.errors import FileFormatError, InputError
from voxax.geometry import Plan
from voxax.hardware import HardwareInfo, describe, peak_memory
from voxax.io import PointCloud
from voxax.io.augment import Transform
from voxax.io.examples import Preparation
from voxax.io.pipeline import GrainPipeline, Pipeline
from voxax.io.steps import Steps
from voxax.models.checkpoint import load_arrays, load_description, save_checkpoint
from voxax.models.metrics import confusion, iou_table, mean_iou
from voxax.models.training import Trainer
from voxax.parallel import DataParallelTrainer, pack_scenes

# Narrow: a step over 10k voxels takes a third of a second on two CPU cores.
PLANES, STEM = (24, 32, 48, 64, 48, 48, 32, 32), 16
# ``small`` is MinkUNet14 with these channels, the others have those of the paper.
NETWORKS = ("small", "MinkUNet14", "MinkUNet18", "MinkUNet34")

# The width is chosen between these, in quarters.
NARROWEST, WIDEST = 0.5, 4.0
# On two cores the network of width 1 is trained in about two minutes.
CORES_AT_WIDTH_1 = 2
# At width 1 the demo peaks at 1.4 GB (AMD EPYC, JAX 0.10.2); the rest is left to others.
BYTES_PER_WIDTH = 2 << 30


def width_for(info: HardwareInfo) -> float:
    """The network's width for a machine: as wide as its cores and memory carry.

    | machine | width |
    |---|---|
    | CPU | ``sqrt(cores / 2)``: a step's arithmetic grows with the square of the width |
    | accelerator | 2 |
    | any | at most 1 for each 2 GiB of free memory; from 0.5 to 4, in steps of 0.25 |
    """
    width = math.sqrt(info.cpu_cores / CORES_AT_WIDTH_1) if info.platform == "cpu" else 2.0
    if info.memory_free is not None:
        width = min(width, info.memory_free / BYTES_PER_WIDTH)
    return min(max(math.floor(4 * width) / 4, NARROWEST), WIDEST)


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Settings that rebuild the network; JSON in the checkpoint.

    Attributes:
      network: one of ``NETWORKS``.
      attributes: attributes of points that it reads beside their positions.
    """

    class_names: tuple[str, ...]
    voxel_size: float
    width: float
    learning_rate: float
    steps: int
    class_weights: tuple[float, ...] | None = None
    network: str = "small"
    attributes: tuple[str, ...] = ()
    weight_decay: float = 0.01

    def preparation(self) -> Preparation:
        """The preparation of clouds as this network's input."""
        return Preparation(self.voxel_size, self.attributes)

    def model(self) -> nnx.Module:
        """Build a network with fresh weights."""
        small = self.network == "small"
        channels = {"planes": PLANES, "stem": STEM} if small else {}
        build = models.MinkUNet14 if small else getattr(models, self.network)
        inputs, classes = self.preparation().num_channels, len(self.class_names)
        return build(inputs, classes, width=self.width, **channels)

    def trainer(self, devices: int = 1) -> Trainer:
        """Build a network with fresh weights and its optimizer, on the first ``devices``."""
        schedule = optax.cosine_onecycle_schedule(
            max(self.steps, 2), self.learning_rate, pct_start=0.2
        )
        # Flattened, the update is a few kernels instead of several per parameter: less to compile.
        optimizer = optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.flatten(optax.adamw(schedule, weight_decay=self.weight_decay)),
        )
        weights = None if self.class_weights is None else np.asarray(self.class_weights)
        if devices == 1:
            return Trainer(self.model(), optimizer, weights)
        mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        return DataParallelTrainer(self.model(), optimizer, mesh, class_weights=weights)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> NetworkConfig:
        """Read the settings of a checkpoint's description.

        Raises:
          FileFormatError: a field is missing or has a wrong value.
        """
        try:
            weights = values.get("class_weights")
            network = values.get("network", "small")
            if network not in NETWORKS:
                raise ValueError(f"network {network!r} is none of {', '.join(NETWORKS)}")
            return cls(
                tuple(values["class_names"]),
                float(values["voxel_size"]),
                float(values["width"]),
                float(values["learning_rate"]),
                int(values["steps"]),
                None if weights is None else tuple(weights),
                network,
                tuple(values.get("attributes", ())),
                float(values.get("weight_decay", 0.01)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"the checkpoint's description lacks a field: {error!r}"
            ) from error


def restore(folder: Path, trainer: Trainer) -> Trainer:
    """Load the newest step of ``folder`` into ``trainer``."""
    trainer.load_tree(load_arrays(folder, trainer.tree()))
    return trainer


def config_of(folder: Path) -> NetworkConfig:
    """The configuration stored in a checkpoint."""
    return NetworkConfig.from_json(load_description(folder)["network"])


class Trace(contextlib.ExitStack):
    """Profile of the second to sixth step: the first compiles, and a trace of all is too large."""

    FIRST, LAST = 2, 6

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.folder, self.steps = folder, 0

    def step(self) -> None:
        """Note that a step begins."""
        self.steps += 1
        if self.folder is not None and self.steps == self.FIRST:
            self.folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self.folder))
            self.callback(jax.profiler.stop_trace)
        elif self.steps > self.LAST:
            self.close()


AnyPipeline = Pipeline[Any, Any] | GrainPipeline[Any, Any]

# Random steps that shards' sizes are fitted to.
_PACKINGS = 64


class Learning:
    """A network in training, with its preparation of scenes and its checkpoint.

    The order of scenes and the numbers that augment them depend only on the seed and a step's
    number, so an interrupted run, or one on more devices, takes the same scenes in each step.

    Args:
      config: settings of the network.
      folder: the checkpoint is ``folder/checkpoint``, the loss of each step in ``losses.csv``.
      seed: for order and augmentation.
      devices: number of devices that share a step.
      batch_size: scenes of a step.
      resume: continue from the checkpoint.
      transform: see :class:`voxax.cli.scenes.Prepare`.

    Raises:
      InputError: fewer scenes in a step than devices, or not below the checkpoint's options.
      FileFormatError: there is no checkpoint to resume from.
    """

    def __init__(
        self,
        config: NetworkConfig,
        folder: Path,
        *,
        seed: int,
        devices: int = 1,
        batch_size: int = 1,
        resume: bool = False,
        transform: Transform | None = None,
    ) -> None:
        if batch_size < devices:
            raise InputError(
                f"a batch size of {batch_size} leaves {devices - batch_size} of {devices} devices "
                f"without a scene: give at least {devices}, or fewer devices"
            )
        self.config, self.folder, self.seed = config, folder, seed
        self.devices, self.batch_size, self.transform = devices, batch_size, transform
        self.checkpoint = folder / "checkpoint"
        self.preparation = config.preparation()
        self.trainer = config.trainer(devices)
        if resume:
            before = load_description(self.checkpoint).get("order", {})
            for name, value in self._order().items():
                if before.get(name, value) != value:
                    raise InputError(
                        f"the checkpoint in {self.checkpoint} was trained with {name} "
                        f"{before[name]}, now it is {value}: with another one its steps would take "
                        "other scenes"
                    )
            restore(self.checkpoint, self.trainer)
        self.begin = self.trainer.steps
        self._saved = self.begin if resume else None
        self.losses: list[float] = []
        self.dropped = 0

    def _order(self) -> dict[str, int]:
        return {"seed": self.seed, "batch_size": self.batch_size}

    def fit(self, clouds: Sequence[PointCloud]) -> None:
        """Fit the capacities of all levels to samples, packed as steps will be.

        Augmentation turns and scales the scenes, so that is what levels are fitted to. The margin
        is generous: a scene that outgrows its bucket costs another compilation.
        """
        drafts = [
            Prepare(cloud, self.preparation, seed, self.transform)()
            for seed in range(4)
            for cloud in clouds
        ]
        plan = Plan.record(self.config.model(), drafts[0].voxels)
        rows = [np.asarray(d.voxels.coords)[: int(d.voxels.count)] for d in drafts]
        loads = [[len(level) for level in plan.level_rows(own)] for own in rows]
        if self.batch_size > 1:
            loads = _packed(loads, self.batch_size, self.devices, self.seed)
        largest = max(levels[0] for levels in loads)
        self.preparation = dataclasses.replace(
            self.preparation,
            plan=plan.fitted(loads, margin=1.3),
            min_capacity=int(1.05 * largest),
        )

    def compile(self, clouds: Sequence[PointCloud]) -> None:
        """Compile the training step for scenes like these, without making a step."""
        if self.trainer.steps >= self.config.steps:
            return
        chosen = list(itertools.islice(itertools.cycle(clouds), self.batch_size))
        example = self._task(chosen, (None,) * self.batch_size)()
        self.trainer.compile(example.voxels, example.labels)

    def train(
        self,
        pipeline: AnyPipeline,
        scenes: Sequence[Any],
        steps: int,
        *,
        save_every: int,
        profile: Path | None = None,
        after_save: Callable[[], str] | None = None,
    ) -> bool:
        """Train up to step ``steps``; True if interrupted.

        Args:
          pipeline: runs :func:`voxax.cli.scenes.run`.
          scenes: clouds, or tasks that make them.
          steps: number of steps in all, including those before an interruption.
          save_every: steps between checkpoints.
          profile: a folder for a trace of a few steps.
          after_save: called after each of these checkpoints; returns a remark to print.

        Raises:
          InputError: the loss is no longer a number.
        """
        classes = len(self.config.class_names)
        matrix = np.zeros((classes, classes))
        taken = Steps(scenes, self._task, self.batch_size, steps, self.seed, self.begin)
        bar = training_bar(steps, self.trainer.steps, self.batch_size)
        try:
            with bar, Trace(profile) as trace:
                for example in pipeline(taken, prefetch=4):
                    trace.step()
                    labels = example.labels
                    loss, prediction, dropped = self.trainer.step(example.voxels, labels)
                    self._note(float(loss))
                    self.dropped += int(dropped)
                    matrix = 0.95 * matrix + confusion(labels, np.asarray(prediction), classes)
                    mean = float(np.mean(self.losses[-20:]))
                    bar.update(mean, mean_iou(matrix), self.trainer.programs)
                    if self.trainer.steps % save_every == 0 and self.trainer.steps < steps:
                        self.save()
                        if after_save is not None:
                            told = after_save()
                            bar.tell(f"step {self.trainer.steps}: loss {mean:.3f}{told}")
        except KeyboardInterrupt:
            return True
        return False

    def _note(self, loss: float) -> None:
        if not np.isfinite(loss):
            raise InputError(
                f"the loss of step {self.trainer.steps} is {loss}, so nothing of it is kept: give "
                f"a lower learning rate than {self.config.learning_rate}, or look for broken "
                "values in the scans' attributes"
            )
        self.losses.append(loss)

    @property
    def _task(self) -> MakeTask:
        preparation, transform = self.preparation, self.transform
        return MakeTask(preparation, self.batch_size, self.devices, transform)

    def save(self) -> None:
        """Write the checkpoint and the loss of every step so far, unless already written."""
        if self._saved == self.trainer.steps:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "losses.csv"
        lines = ["step,loss"]
        if self.begin > 0 and path.exists():
            before = path.read_text().splitlines()[1:]
            lines += [line for line in before if int(line.split(",")[0]) < self.begin]
        lines += [f"{step},{loss!r}" for step, loss in enumerate(self.losses, self.begin)]
        write_atomically(path, "\n".join(lines) + "\n")
        network, step = dataclasses.asdict(self.config), self.trainer.steps
        description = {"network": network, "step": step, "order": self._order()}
        save_checkpoint(self.checkpoint, self.trainer.tree(), description, step)
        self._saved = step

    def say_interrupted(self, command: str) -> int:
        """Print where the run stopped and the command that continues it; return the exit status."""
        print(f"interrupted at step {self.trainer.steps}; checkpoint: {self.checkpoint}")
        print(f"continue with: {command}")
        return 130

    def report(self, matrix: np.ndarray, seconds: dict[str, float], **more: Any) -> None:
        """Write metrics.json, and print its main figures.

        Args:
          matrix: confusion of all points of the validation scenes.
          seconds: by phase.
          more: further entries of the file.
        """
        metrics = {
            "val_miou": mean_iou(matrix),
            "val_iou": iou_table(matrix, self.config.class_names),
            "val_points": int(matrix.sum()),
            **more,
            "train_loss": float(np.mean(self.losses[-20:])) if self.losses else None,
            "steps": self.trainer.steps,
            "seconds": {name: round(value, 2) for name, value in seconds.items()},
            "peak_memory_bytes": peak_memory(),
            "programs_compiled": self.trainer.programs,
            "voxels_dropped": self.dropped,
            "devices": self.devices,
            "batch_size": self.batch_size,
            "device": describe().to_json(),
            "versions": {"voxax": __version__, "jax": jax.__version__},
        }
        write_atomically(self.folder / "metrics.json", json.dumps(metrics, indent=2))
        result_table(metrics, self.folder)

    def validate(
        self, pipeline: AnyPipeline, scenes: Sequence[Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """``(confusion int64[classes, classes] over all points, the first scene's prediction)``."""
        classes, size = len(self.config.class_names), self.batch_size
        groups = [scenes[i : i + size] for i in range(0, len(scenes), size)]
        tasks = (self._task(group, (None,) * len(group)) for group in groups)
        matrix = np.zeros((classes, classes), np.int64)
        first = None
        for example in pipeline(tasks, prefetch=4):
            rows = self.trainer.logits(example.voxels).argmax(-1).reshape(-1)
            batched = isinstance(example, Batch)
            points = example.rows if batched else (example.inverse,)
            truths = example.point_labels if batched else (example.point_labels,)
            for own, truth in zip(points, truths, strict=True):
                prediction = rows[own]
                matrix += confusion(truth, prediction, classes)
                first = prediction if first is None else first
        return matrix, np.zeros(0, np.int64) if first is None else first


def resumed(folder: Path, config: NetworkConfig) -> NetworkConfig:
    """``config`` with the class weights of the checkpoint in ``folder``.

    Raises:
      InputError: the checkpoint's network, or what it learned from, is another one.
      FileFormatError: there is none.
    """
    before = config_of(folder / "checkpoint")
    for field in dataclasses.fields(config):
        # A run may be made longer, which stretches the schedule.
        if field.name in ("class_weights", "steps"):
            continue
        old, new = getattr(before, field.name), getattr(config, field.name)
        if old != new:
            raise InputError(
                f"the checkpoint in {folder / 'checkpoint'} has {field.name} = {old}, the "
                f"configuration {new}: to change it begin anew, in another folder"
            )
    return dataclasses.replace(config, class_weights=before.class_weights)


def class_weights(clouds: Sequence[PointCloud], classes: int) -> tuple[float, ...]:
    """Inverse square root of each class's share, mean 1: rare classes count, none dominates."""
    counts = np.zeros(classes)
    for cloud in clouds:
        if cloud.labels is not None:
            counts += np.bincount(cloud.labels[cloud.labels >= 0], minlength=classes)[:classes]
    weights = 1 / np.sqrt(np.maximum(counts / max(counts.sum(), 1), 1e-3))
    return tuple((weights / weights.mean()).round(4).tolist())


def _packed(loads: list[list[int]], batch_size: int, shards: int, seed: int) -> list[list[int]]:
    """Rows by level of the shards of random batches."""
    rng = np.random.default_rng(seed)
    packed = []
    for _ in range(_PACKINGS):
        chosen = [loads[i] for i in rng.integers(len(loads), size=batch_size)]
        packing = pack_scenes([levels[0] for levels in chosen], shards)
        packed += [
            np.sum([chosen[i] for i in shard], axis=0).tolist() for shard in packing.scenes if shard
        ]
    return packed
