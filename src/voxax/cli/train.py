"""``voxax train`` trains a network on folders of labeled scans."""

from __future__ import annotations

import functools
import math
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

if TYPE_CHECKING:
    from voxax.cli.scenes import Mixing
    from voxax.cli.task import Task
    from voxax.cli.train_config import TrainConfig
    from voxax.models.writers import TensorBoardWriter, WandbWriter


def train(
    config: Annotated[Path, tyro.conf.Positional],
    resume: bool = False,
    overwrite: bool = False,
    out: Path | None = None,
    devices: int | Literal["all"] | None = None,
    deterministic: bool = False,
) -> int:
    """Train a network on folders of labeled scans, as a file configures it.

    It learns a class for each point, boxes of objects, or a class for each cloud. Writes a
    checkpoint that `voxax segment` or `voxax detect` takes, the loss of every step and, with the
    score of the validation scans, metrics.json. Ctrl-C stops early and leaves a usable checkpoint.

    Args:
      config: The configuration, a TOML file.
      resume: Continue from the checkpoint in the folder of the results.
      overwrite: Delete the run that the folder of the results holds.
      out: Folder for the results, instead of the file's.
      devices: Devices that a step is distributed over, instead of the file's; `all` for every
          one of this host. Where the file has none either, all TPUs or GPUs of this host, as far
          as they can share a step's scenes; on a CPU one.
      deterministic: On a CPU, give the same bits for any number of cores: XLA takes four threads,
          and algorithms are the defaults.
    """
    from voxax.cli.process import (
        be_deterministic,
        keep_heap,
        refuse_other_hosts,
        use_devices,
    )
    from voxax.cli.train_config import read_config
    from voxax.hardware import keep_programs

    keep_heap()
    keep_programs()
    if deterministic:
        be_deterministic()
    read = read_config(config)
    if devices is not None:
        read = read.model_copy(update={"devices": devices})
    asked = f"{config}: devices =" if devices is None else "--devices"
    if isinstance(read.devices, int):
        use_devices(read.devices, asked)  # before anything starts JAX
    refuse_other_hosts("train")
    place = read.place(read.out) if out is None else out
    return _Run(read, place, resume, overwrite, devices, deterministic)()


def devices_of(config: TrainConfig) -> int:
    """The number of devices; for `all` and `auto` those of this host, see ``devices_for``."""
    from voxax.cli.process import devices_for
    from voxax.cli.tasks import TASKS

    equal = TASKS[config.task].shares_equally(config.model.name)
    return devices_for(config.devices, config.training.batch_size or None, equal)


def width_of(config: TrainConfig, resumed: Path | None) -> float:
    """The factor on channels; for `auto` the checkpoint's, or what this host carries."""
    from voxax.cli.demo_kinds import width_for
    from voxax.cli.tasks import task_of
    from voxax.hardware import describe

    width = config.model.width
    if width != "auto":
        return width
    width = width_for(describe()) if resumed is None else task_of(resumed).width
    print(f"model.width = 'auto': {width}", flush=True)
    return width


def _log_of(config: TrainConfig, out: Path) -> TensorBoardWriter | WandbWriter | None:
    """Return the writer of losses and scores that ``training.log`` names."""
    from voxax.models.writers import TensorBoardWriter, WandbWriter

    if not config.training.log:
        return None
    if config.training.log == "tensorboard":
        return TensorBoardWriter(out / "tensorboard")
    return WandbWriter(project="voxax", dir=str(out), name=config.path.stem)


class _Run:
    def __init__(
        self,
        config: TrainConfig,
        out: Path,
        resume: bool,
        overwrite: bool = False,
        asked_devices: int | str | None = None,
        deterministic: bool = False,
    ) -> None:
        from voxax.cli.progress import phase
        from voxax.cli.run_folder import CHECKPOINT, claim_folder
        from voxax.cli.starting_weights import starting_network
        from voxax.models.checkpoint import newest_step

        self.config, self.out, self.overwrite, self.source = config, out, overwrite, ""
        self.asked_devices, self.deterministic = asked_devices, deterministic
        self.seconds: dict[str, float] = {}
        self._phase = functools.partial(phase, seconds=self.seconds)
        self.devices = devices_of(config)
        self.validations: list[tuple[int, float]] = []
        self.batch_size = config.training.batch_size or self.devices
        self.transform = config.transform()
        self.late: Any = None
        checkpoint = out / CHECKPOINT
        self.resume = resume and newest_step(checkpoint) is not None
        self.width = width_of(config, checkpoint if self.resume else None)
        self.scans: Any = None
        # Where only the folder has them, a network of any number of classes is checked.
        names = config.class_names()
        self.names = names or ("class",)
        self._check(checkpoint)
        self.start: Any = None
        if names and not self.resume:
            self.start, self.source = starting_network(config, self._task())
        self.scans = config.dataset()
        self.names = self.scans.class_names
        claim_folder(out, resume=resume, overwrite=overwrite)
        if not names and not self.resume:
            self.start, self.source = starting_network(config, self._task())

    def _check(self, checkpoint: Path) -> None:
        """Raise :class:`voxax.InputError` for what is wrong with the file, before data are read."""
        from voxax.cli.learning import check_batch, check_order
        from voxax.cli.starting_weights import check_parts_of, check_place_of_weights
        from voxax.cli.tasks import check_network, resumed
        from voxax.errors import import_extra

        config, log = self.config, self.config.training.log
        check_place_of_weights(config)
        with config.errors_of("model"):
            task = self._task()
        with config.errors_of("training"):
            check_batch(task, self.batch_size, self.devices)
            if log:
                import_extra(f"log = {log!r}", log, {"tensorboard": "tensorboardX"}.get(log, log))
        if config.data.loader == "grain":
            with config.errors_of("data"):
                import_extra("loader = 'grain'", "grain", "grain")
        with config.errors_of("model"):
            check_network(task)
        check_parts_of(config, task)
        if self.resume:
            check_order(checkpoint, seed=config.seed, batch_size=self.batch_size)
            if config.class_names():
                resumed(self.out, task)

    def __call__(self) -> int:
        from voxax.cli.run_folder import BEST
        from voxax.cli.scenes import run as run_task
        from voxax.io.pipeline import GrainPipeline, Pipeline

        training, data = self.config.training, self.config.data
        kind = GrainPipeline if data.loader == "grain" else Pipeline
        begin = time.perf_counter()
        print(
            f"{len(self.scans.train)} scans to train on, {len(self.scans.validation)} to validate "
            f"with, {len(self.scans.class_names)} classes",
            flush=True,
        )
        with kind(run_task, workers=data.workers) as pipeline:
            with self._phase("simulate"):
                # One scan of the validation too: what it lacks had better show now than at the end.
                held_out, *samples = pipeline([self.scans.validation[0], *self._sample()])
            self._paste(pipeline)
            with self._phase("plan"):
                self._prepare(samples, held_out)
            with self._phase("compile"):
                self.learning.compile(samples)
            del samples, held_out
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
                words = [
                    "voxax",
                    "train",
                    str(self.config.path),
                    "--resume",
                    "--out",
                    str(self.out),
                ]
                if self.asked_devices is not None:
                    words += ["--devices", str(self.asked_devices)]
                if self.deterministic:
                    words.append("--deterministic")
                return self.learning.say_interrupted(shlex.join(words))
            with self._phase("validate"):
                score, _ = self.learning.validate(pipeline, self.scans.validation)
            if training.validate_every:
                self.learning.keep_best(score.value())
            if self._log is not None:
                final = {f"validation {score.figure}": score.value()}
                self._log.write(self.learning.trainer.steps, final)
                self._log.close()
        self.seconds["total"] = time.perf_counter() - begin
        best = self.learning.best
        kept = {} if best is None else {"best": {"score": best[0], "step": best[1]}}
        self.learning.report(score, self.seconds, validations=self.validations, **kept)
        if best is not None:
            print(f"{'best':>10}  {self.out / BEST}, step {best[1]}, {score.figure} {best[0]:.3f}")
        return 0

    def _sample(self) -> list[Any]:
        """Choose training scans evenly from all of them: neighbors in time are alike."""
        scans, number = self.scans.train, self.config.training.samples
        chosen = np.linspace(0, len(scans) - 1, min(number, len(scans))).round().astype(int)
        return [scans[i] for i in chosen]

    def _mixing(self) -> Mixing | None:
        """How the scenes of a step are mixed; None where they are not."""
        from voxax.cli.scenes import Mixing

        own = self.config.augment
        if not own.mix3d and not own.polarmix:
            return None
        sweeps = self.config.data.format in ("semantic_kitti", "nuscenes_lidarseg")
        return Mixing(own.mix3d, not sweeps, tuple(map(self.names.index, own.polarmix)))

    def _paste(self, pipeline: Any) -> None:
        """Let the augmentation paste objects of the training scans; cut them out unless kept."""
        from voxax.cli.pasting import FOLDER, MIN_POINTS, KeptObjects, Pasted, remove_others
        from voxax.io.mean_features import POSITION, ZERO

        counts = {name: count for name, count in self.config.augment.paste.items() if count}
        if not counts:
            if self.overwrite:
                remove_others(self.out / FOLDER)
            return
        data, scans = self.config.data, self.scans.train
        names = data.inputs or data.attributes
        objects = KeptObjects.of(
            self.out / FOLDER,
            scans,
            counts,
            tuple(name for name in names if name not in (POSITION, ZERO)),
            radius=data.radius,
            sweeps=data.sweeps,
        )
        if not objects.is_there():
            with self._phase("objects"):
                objects.write(pipeline(objects.tasks(scans)))
        absent = sorted(counts.keys() - objects.bank().objects.keys())
        if absent:
            counts = {name: count for name, count in counts.items() if name not in absent}
            print(f"none with {MIN_POINTS} points to paste: {', '.join(absent)}", flush=True)
        until = self.config.augment.paste_until
        if until < 1:
            self.late = int(until * self.config.training.steps), self.transform
        self.transform = Pasted(objects, counts, self.transform)

    def _task(self, samples: list[Any] | None = None) -> Task:
        """Settings of the network; without samples, classes have no weights yet."""
        from voxax.cli.classification_task import Classification, cloud_weights
        from voxax.cli.folder_detection import FolderDetection
        from voxax.cli.segmentation_task import Segmentation, class_weights
        from voxax.models.registry import NUSCENES

        config, training = self.config, self.config.training
        names, weighs = self.names, training.class_weights and samples is not None
        common: dict[str, Any] = {
            "class_names": names,
            "voxel_size": config.model.voxel_size,
            "width": self.width,
            "learning_rate": training.learning_rate,
            "steps": training.steps,
            "network": config.model.name,
            "options": config.model.options,
            "attributes": config.data.attributes,
            "weight_decay": training.weight_decay,
            "dtype": training.precision,
            "inputs": config.data.inputs,
            "signed_colors": config.data.signed_colors,
            "source": self.source,
            "part_rates": training.part_learning_rates,
            "frozen": training.frozen,
            "ema": training.ema,
            "accumulate": training.accumulate,
        }
        if config.task == "classify":
            labels = [scan.label for scan in self.scans.train] if weighs else []
            weights = cloud_weights(labels, len(names)) if weighs else None
            return Classification(class_weights=weights, **common)
        if config.task == "detect":
            layout = config.data.format
            groups = NUSCENES if config.model.name.endswith("-nuscenes") else None
            return FolderDetection(bounds=config.bounds, metric=layout, groups=groups, **common)
        weights = class_weights(samples or [], len(names)) if weighs else None
        return Segmentation(class_weights=weights, lovasz=training.lovasz, **common)

    def _prepare(self, samples: list[Any], held_out: Any) -> None:
        from voxax.cli.learning import Learning
        from voxax.cli.tasks import resumed

        config, training = self.config, self.config.training
        task = self._task(samples)
        if self.resume:
            task = resumed(self.out, task)
        self.learning = Learning(
            task,
            self.out,
            seed=config.seed,
            devices=self.devices,
            batch_size=self.batch_size,
            resume=self.resume,
            overwrite=self.overwrite,
            transform=self.transform,
            mixing=self._mixing(),
            late=self.late,
            start=self.start,
            keeps_best=training.validate_every > 0,
        )
        self.start = None
        self._log = self.learning.trainer.on_metrics = _log_of(config, self.out)
        self.learning.fit([*samples, held_out])

    def _after_save(self, pipeline: Any) -> str:
        """Validate if the step is one to validate at; return a remark for the progress bar."""
        training, step = self.config.training, self.learning.trainer.steps
        every = training.validate_every
        if not every or step // training.checkpoint_every % every:
            return ""
        score, _ = self.learning.validate(pipeline, self.scans.validation)
        self.validations.append((step, score.value()))
        if self._log is not None:
            self._log.write(step, {f"validation {score.figure}": score.value()})
        remark = f", validation {score.figure} {score.value():.3f}"
        if self.learning.keep_best(score.value()):
            return f"{remark}, the best"
        assert self.learning.best is not None
        if (step - self.learning.best[1]) // (every * training.checkpoint_every) >= (
            training.patience or math.inf
        ):
            self.learning.stops = True
            return f"{remark}; no better than step {self.learning.best[1]}, so training stops"
        return remark
