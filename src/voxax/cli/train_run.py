"""One run of ``voxax train``: load weights and scans, set up augmentation, train and validate.

A run may begin with the weights of a file, or of another run's checkpoint.
"""

from __future__ import annotations

import functools
import math
import shlex
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from voxax.cli.classification_task import Classification
from voxax.cli.demo_kinds import width_for
from voxax.cli.folder_detection import FolderDetection
from voxax.cli.learning import Learning, check_batch, check_order
from voxax.cli.pasting import FOLDER, MIN_POINTS, KeptObjects, Pasted, remove_others
from voxax.cli.process import devices_for
from voxax.cli.progress import phase
from voxax.cli.run_folder import BEST, CHECKPOINT, claim_folder
from voxax.cli.scenes import Mixing
from voxax.cli.scenes import run as run_task
from voxax.cli.segmentation_task import Segmentation, class_weights, weights_of
from voxax.cli.task import Task
from voxax.cli.tasks import TASKS, check_network, check_weights, restore, resumed, task_of
from voxax.cli.train_config import TrainConfig
from voxax.errors import FileFormatError, InputError, VoxaxError, import_extra, listed
from voxax.hardware import describe
from voxax.interop.checkpoint_file import check_place
from voxax.interop.sources import load_weights, load_weights_part
from voxax.io.mean_features import POSITION, ZERO
from voxax.io.pipeline import GrainPipeline, Pipeline
from voxax.models.checkpoint import has_description, newest_step
from voxax.models.fine_tuning import check_parts
from voxax.models.registry import NUSCENES
from voxax.models.writers import TensorBoardWriter, WandbWriter


def devices_of(config: TrainConfig) -> int:
    """Return the number of devices for a configuration, see :func:`devices_for`."""
    equal = TASKS[config.task].shares_equally(config.model.name)
    return devices_for(config.devices, config.training.batch_size or None, equal)


def width_of(config: TrainConfig, resumed: Path | None) -> float:
    """Return the factor on the network's channels, ``model.width``.

    For ``"auto"``, take the width of the checkpoint in the folder `resumed`; without one, choose it
    from the cores and memory of this machine.
    """
    width = config.model.width
    if width != "auto":
        return width
    width = width_for(describe()) if resumed is None else task_of(resumed).width
    print(f"model.width = 'auto': {width}", flush=True)
    return width


def _log_of(config: TrainConfig, out: Path) -> TensorBoardWriter | WandbWriter | None:
    """Return the writer that logs losses and scores, to TensorBoard or to Weights & Biases.

    ``training.log`` names it; without this key, the result is None. `out` is the run's folder.
    """
    if not config.training.log:
        return None
    if config.training.log == "tensorboard":
        return TensorBoardWriter(out / "tensorboard")
    return WandbWriter(project="voxax", dir=str(out), name=config.path.stem)


class Run:
    """One training run with the settings of a configuration file.

    The constructor checks the configuration; a call trains and returns the exit status.

    Args:
      config: the configuration.
      out: folder for the results.
      resume: continue from the checkpoint in `out`.
      overwrite: delete the run in `out`.
      asked_devices: value of ``--devices``, for the printed command that resumes the run.
      deterministic: value of ``--deterministic``, for the printed command that resumes the run.
    """

    def __init__(
        self,
        config: TrainConfig,
        out: Path,
        resume: bool,
        overwrite: bool = False,
        asked_devices: int | str | None = None,
        deterministic: bool = False,
    ) -> None:
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
        # If only the data's folder has the class names, a network with one class is checked.
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
        """Raise InputError if the configuration is invalid or does not match the `checkpoint`."""
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
                # Read one validation scan too, so that its faults show now and not at the end.
                held_out, *samples = pipeline([self.scans.validation[0], *self._sample()])
            self._check_samples(samples)
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
                where = str(self.config.path), "--resume", "--out", str(self.out)
                words = ["voxax", "train", *where]
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
        """Return ``training.samples`` training scans, spread evenly over the list of all scans."""
        scans, number = self.scans.train, self.config.training.samples
        chosen = np.linspace(0, len(scans) - 1, min(number, len(scans))).round().astype(int)
        return [scans[i] for i in chosen]

    def _check_samples(self, samples: list[Any]) -> None:
        """Raise InputError if the sample scans have no points, or no points of a known class."""
        config, scan = self.config, self.scans.train[0]
        clouds = [getattr(sample, "cloud", sample) for sample in samples]
        told = f"{config.path}: data: no point of {len(samples)} of the training scans"
        if not any(len(cloud) for cloud in clouds):
            raise InputError(f"{told} is left: radius = {config.data.radius}")
        if config.task == "detect" or any(
            cloud.labels is not None and np.any(cloud.labels >= 0) for cloud in clouds
        ):
            return
        found = getattr(getattr(scan, "scan", scan), "labels_found", None)
        labels = f"{scan} has the labels {listed(found(), 20)}" if found else "all are unknown"
        raise InputError(
            f"{told} has a class of {listed(self.names)}: {labels}. If only few scans have labels, "
            "raise training.samples"
        )

    def _mixing(self) -> Mixing | None:
        """Return the augmentation that mixes the scenes of a training step; None if none is set."""
        own = self.config.augment
        if not own.mix3d and not own.polarmix:
            return None
        sweeps = self.config.data.format in ("semantic_kitti", "nuscenes_lidarseg")
        return Mixing(own.mix3d, not sweeps, tuple(map(self.names.index, own.polarmix)))

    def _paste(self, pipeline: Any) -> None:
        """Make the augmentation paste objects into scans, if ``augment.paste`` names classes.

        The objects are read from the run's folder. If they are not there, `pipeline` runs tasks
        that cut them out of the training scans first.
        """
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
        """Return the configured task; without `samples`, all classes have the same loss weight.

        `samples` are training scans. With them, ``training.class_weights`` gives rare classes a
        higher weight, except in detection.
        """
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
            weights = None
            if weighs:
                labels = np.asarray([scan.label for scan in self.scans.train], np.int64)
                weights = weights_of(np.bincount(labels, minlength=len(names)))
            return Classification(class_weights=weights, **common)
        if config.task == "detect":
            layout = config.data.format
            groups = NUSCENES if config.model.name.endswith("-nuscenes") else None
            return FolderDetection(bounds=config.bounds, metric=layout, groups=groups, **common)
        weights = class_weights(samples or [], len(names)) if weighs else None
        return Segmentation(class_weights=weights, lovasz=training.lovasz, **common)

    def _prepare(self, samples: list[Any], held_out: Any) -> None:
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
        """Validate after every ``training.validate_every``-th checkpoint; return a remark to print.

        `pipeline` loads the validation scans. If the score is the best yet, the network is saved.
        After ``training.patience`` validations without a better score, the training stops. The
        remark is empty if there is no validation after this checkpoint.
        """
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
        waited = (step - self.learning.best[1]) // (every * training.checkpoint_every)
        if waited >= (training.patience or math.inf):
            self.learning.stops = True
            return f"{remark}; no better than step {self.learning.best[1]}, so training stops"
        return remark


def check_parts_of(config: TrainConfig, task: Task) -> None:
    """Raise InputError if ``frozen`` or ``part_learning_rates`` names an unknown network part."""
    training = config.training
    named = {"part_learning_rates": training.part_learning_rates, "frozen": training.frozen}
    for key, parts in named.items():
        if parts:
            with config.errors_of(f"training.{key}"):
                check_parts(nnx.eval_shape(task.model), parts)


def check_place_of_weights(config: TrainConfig) -> None:
    """Raise InputError if there are no weights where the configuration says.

    The key ``model.weights`` or ``model.weights_part`` gives the path of a file or of a checkpoint,
    or a place such as ``hf://owner/name/file``. There is no error if neither key is set.
    """
    key, given = _given(config)
    place = _place(config, given)
    if not given or (isinstance(place, Path) and has_description(place)):
        return
    try:
        check_place(place)
    except FileNotFoundError as error:
        raise InputError(
            f"{config.path}: model.{key} = {given!r}: there is no {place}: give the path of a file "
            "with weights, a folder with a checkpoint, or hf://owner/name/file"
        ) from error
    except FileFormatError as error:
        raise InputError(f"{config.path}: model.{key} = {given!r}: {error}") from error


def starting_network(config: TrainConfig, task: Task) -> tuple[nnx.Module | None, str]:
    """Return ``(network, codebase that wrote its weights)`` for the weights in the configuration.

    It prints which weights were loaded. If the configuration names no weights, the result is
    ``(None, "")``.
    """
    key, given = _given(config)
    if not given:
        return None, ""
    place, whole, chosen = _place(config, given), key == "weights", config.model.source
    said = f"model.{key} = {given!r}"
    try:
        model = task.model()
        kinds = jax.tree.map(lambda x: x.dtype, nnx.state(model))
        if isinstance(place, Path) and has_description(place):
            if chosen:
                raise InputError(f"model.source = {chosen!r} is of files, leave it out")
            source = _from_run(model, place, whole, said)
        elif whole:
            source = load_weights(model, place, source=chosen or None)
            print(f"{said}: all weights taken, as {source} has them", flush=True)
        else:
            source, report = load_weights_part(model, place, source=chosen or None)
            _tell(f"{said}: as {source} has them", report.taken, report.kept, report.left)
    except VoxaxError as error:
        hint = ""
        if whole and isinstance(error, InputError):
            hint = f". weights_part = {given!r} leaves out what does not fit"
        raise type(error)(f"{config.path}: {said}: {error}{hint}") from error
    # The weights of a file may have half precision: convert them back to the network's dtypes.
    nnx.update(model, jax.tree.map(lambda x, kind: x.astype(kind), nnx.state(model), kinds))
    return model, source


def _given(config: TrainConfig) -> tuple[str, str]:
    key = "weights_part" if config.model.weights_part else "weights"
    return key, getattr(config.model, key)


def _place(config: TrainConfig, given: str) -> Path | str:
    return given if given.startswith("hf:") else config.place(given)


def _from_run(model: nnx.Module, folder: Path, whole: bool, said: str) -> str:
    """Copy the weights of a run's checkpoint into `model`.

    Return the `source` of that run: the codebase whose public weights it began with, or "".

    Args:
      model: network to change.
      folder: folder of the checkpoint.
      whole: whether all arrays must have the same paths and shapes. If False, only arrays with
        equal path and shape are copied.
      said: beginning of the printed lines: key and value of the configuration.
    """
    before = task_of(folder)
    check_weights(folder, before)
    theirs, own = (
        dict(nnx.to_flat_state(nnx.state(m, nnx.Any(nnx.Param, nnx.BatchStat))))
        for m in (restore(folder, before.trainer()).model(), model)
    )
    fits = [
        p for p, v in own.items() if p in theirs and np.shape(v[...]) == np.shape(theirs[p][...])
    ]
    kept = [f"{_name(p)} {_shape(own[p])}" for p in own if p not in fits]
    left = [f"{_name(p)} {_shape(theirs[p])}" for p in theirs if p not in fits]
    if not fits or (whole and (kept or left)):
        raise InputError(
            f"the checkpoint is of another network: here are {listed(kept)}, there {listed(left)}"
        )
    for path in fits:
        own[path].set_value(theirs[path][...])
    if whole:
        print(f"{said}: all weights taken", flush=True)
    else:
        _tell(said, len(fits), kept, left)
    return before.source


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _shape(variable: Any) -> list[int]:
    return list(np.shape(variable[...]))


def _tell(said: str, taken: int, kept: Any, left: Any) -> None:
    print(f"{said}: {taken} taken", flush=True)
    for title, names in (("begin with random weights", kept), ("left out of the file", left)):
        for name in names:
            print(f"  {title}: {name}", flush=True)
