"""``voxax train``: train a MinkUNet on folders of labelled scans."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from voxax.errors import InputError, VoxaxError
from voxax.io import PointCloud

if TYPE_CHECKING:
    from voxax.cli.train_config import Augment, TrainConfig
    from voxax.io.augment import Transform
    from voxax.io.dataset import Dataset


def train(
    config: Annotated[Path, tyro.conf.Positional],
    resume: bool = False,
    out: Path | None = None,
    devices: int | None = None,
) -> int:
    """Train a MinkUNet that segments scans, on folders of them, as a file configures it.

    Writes a checkpoint that `voxax segment` takes, the loss of every step and, with the mIoU of
    the validation scans, metrics.json. Ctrl-C stops early and leaves a usable checkpoint.

    Args:
        config: The configuration, a TOML file.
        resume: Continue from the checkpoint in the folder of the results.
        out: Folder for the results, instead of the file's.
        devices: Devices that a step is spread over, instead of the file's.
    """
    from voxax.cli.process import keep_heap, use_devices
    from voxax.cli.train_config import read_config

    keep_heap()
    read = read_config(config)
    if devices is not None:
        read = dataclasses.replace(read, devices=devices)
    asked = f"{config}: devices =" if devices is None else "--devices"
    use_devices(read.devices, asked)  # before anything starts JAX
    return _Run(read, read.place(read.out) if out is None else out, resume)()


@dataclasses.dataclass(frozen=True)
class Near:
    """Task: the scan of another task, without points farther from the origin than ``radius``."""

    scan: Any
    radius: float

    def __call__(self) -> PointCloud:
        cloud = self.scan()
        return cloud.select(np.hypot(*cloud.positions[:, :2].T) < self.radius)


def dataset_of(config: TrainConfig) -> Dataset:
    """The scans that a configuration names.

    Raises:
      InputError, FileFormatError: see :func:`voxax.io.dataset.dataset`; with the file's name.
    """
    from voxax.io.dataset import dataset

    data = config.data
    try:
        found = dataset(
            data.format,
            config.place(data.folder),
            config.split("train"),
            config.split("validation"),
            config.classes(),
        )
    except VoxaxError as error:
        if str(error).startswith(str(config.path)):
            raise
        raise type(error)(f"{config.path}: data: {error}") from error
    if not data.radius:
        return found
    near = (tuple(Near(scan, data.radius) for scan in s) for s in (found.train, found.validation))
    return dataclasses.replace(found, train=next(near), validation=next(near))


def transform_of(augment: Augment) -> Transform:
    """What the table ``[augment]`` asks for, in one transform.

    Raises:
      InputError: scales in the wrong order.
    """
    from voxax.io.augment import compose, crop, drop, flip, jitter, rotate_z, scale

    low, high = augment.scale
    if low > high:
        raise InputError(f"augment.scale = [{low}, {high}]: the smallest factor comes first")
    steps: list[Transform] = []
    if augment.crop:
        # Whole columns: what is above and below a place belongs to it.
        steps.append(functools.partial(crop, size=(augment.crop, augment.crop, np.inf)))
    if augment.drop:
        steps.append(functools.partial(drop, probability=augment.drop))
    if augment.rotate:
        steps.append(rotate_z)
    steps.append(functools.partial(scale, low=low, high=high))
    if augment.flip:
        steps.append(flip)
    if augment.jitter:
        # Noise of a normal distribution is within four standard deviations.
        steps.append(functools.partial(jitter, sigma=augment.jitter, limit=4 * augment.jitter))
    return compose(steps)


class _Run:
    def __init__(self, config: TrainConfig, out: Path, resume: bool) -> None:
        self.config, self.out, self.resume = config, out, resume
        self.seconds: dict[str, float] = {}
        self.validations: list[tuple[int, float]] = []
        self.transform = transform_of(config.augment)
        self.scans = dataset_of(config)
        self._check_out()

    def _check_out(self) -> None:
        from voxax.models.checkpoint import load_description

        if self.resume:
            load_description(self.out / "checkpoint")  # raises where there is none
        elif (self.out / "checkpoint" / "voxax.json").exists():
            raise InputError(
                f"{self.out} holds a checkpoint already: give --resume to go on from it, or "
                "another folder"
            )

    def __call__(self) -> int:
        training = self.config.training
        begin = time.perf_counter()
        print(
            f"{len(self.scans.train)} scans to train on, {len(self.scans.validation)} to validate "
            f"with, {len(self.scans.class_names)} classes",
            flush=True,
        )
        with self._pipeline() as pipeline:
            with self._phase("simulate"):
                # One scan of the validation too: what it lacks had better show now than at the end.
                held_out, *samples = pipeline([self.scans.validation[0], *self._sample()])
            with self._phase("plan"):
                self._prepare(samples, held_out)
            with self._phase("compile"):
                self.learning.compile(samples)
            del samples, held_out
            self.out.mkdir(parents=True, exist_ok=True)
            with self._phase("train"):
                interrupted = self.learning.train(
                    pipeline,
                    self.scans.train,
                    training.steps,
                    save_every=training.checkpoint_every,
                    after_save=functools.partial(self._after_save, pipeline),
                )
            with self._phase("checkpoint"):
                self.learning.save()
            if interrupted:
                step, checkpoint = self.learning.trainer.steps, self.learning.checkpoint
                print(f"interrupted at step {step}; checkpoint: {checkpoint}")
                print(f"continue with: voxax train {self.config.path} --resume --out {self.out}")
                return 130
            with self._phase("validate"):
                matrix, _ = self.learning.validate(pipeline, self.scans.validation)
        self.seconds["total"] = time.perf_counter() - begin
        self._report(matrix)
        return 0

    def _pipeline(self) -> Any:
        from voxax.cli.scenes import run as run_task
        from voxax.io.pipeline import GrainPipeline, Pipeline

        kind = GrainPipeline if self.config.data.loader == "grain" else Pipeline
        return kind(run_task, workers=self.config.data.workers)

    def _phase(self, name: str) -> Any:
        from voxax.cli.progress import Phase

        return Phase(name, self.seconds)

    def _sample(self) -> list[Any]:
        """Training scans, evenly from all of them: neighbours in time are alike."""
        scans, number = self.scans.train, self.config.training.samples
        chosen = np.linspace(0, len(scans) - 1, min(number, len(scans))).round().astype(int)
        return [scans[i] for i in chosen]

    def _prepare(self, samples: list[PointCloud], held_out: PointCloud) -> None:
        from voxax.cli.learning import Learning, NetworkConfig, class_weights, resumed

        config, training = self.config, self.config.training
        names = self.scans.class_names
        network = NetworkConfig(
            names,
            config.model.voxel_size,
            config.model.width,
            training.learning_rate,
            training.steps,
            class_weights(samples, len(names)) if training.class_weights else None,
            config.model.name,
            config.data.attributes,
            training.weight_decay,
        )
        if self.resume:
            network = resumed(self.out, network)
        self.learning = Learning(
            network,
            self.out,
            seed=config.seed,
            devices=config.devices,
            batch_size=training.batch_size or config.devices,
            resume=self.resume,
            transform=self.transform,
        )
        self.learning.fit([*samples, held_out])

    def _after_save(self, pipeline: Any) -> str:
        """Validates where it is time to; says how it went."""
        from voxax.models.metrics import mean_iou

        training, step = self.config.training, self.learning.trainer.steps
        if not training.validate_every:
            return ""
        if step // training.checkpoint_every % training.validate_every:
            return ""
        matrix, _ = self.learning.validate(pipeline, self.scans.validation)
        self.validations.append((step, mean_iou(matrix)))
        return f", validation mIoU {mean_iou(matrix):.3f}"

    def _report(self, matrix: np.ndarray) -> None:
        import jax

        import voxax
        from voxax.cli.progress import result_table
        from voxax.hardware import describe, peak_memory
        from voxax.models.metrics import iou_table, mean_iou

        learning = self.learning
        metrics = {
            "val_miou": mean_iou(matrix),
            "val_iou": iou_table(matrix, self.scans.class_names),
            "val_points": int(matrix.sum()),
            "validations": self.validations,
            "train_loss": float(np.mean(learning.losses[-20:])) if learning.losses else None,
            "steps": learning.trainer.steps,
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "peak_memory_bytes": peak_memory(),
            "programs_compiled": learning.trainer.programs,
            "voxels_dropped": learning.dropped,
            "devices": learning.devices,
            "batch_size": learning.batch_size,
            "device": describe().to_json(),
            "versions": {"voxax": voxax.__version__, "jax": jax.__version__},
        }
        path = self.out / "metrics.json"
        temporary = path.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(metrics, indent=2))
        os.replace(temporary, path)
        result_table(metrics, self.out)
