"""The training loop of ``voxax demo`` and ``voxax train``, with checkpoints and validation."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from voxax._atomic_file import write_atomically
from voxax._bounded_file import MEBIBYTE, bounded_text
from voxax._interrupts import mark_handled, uninterrupted
from voxax._version import __version__
from voxax.cli.progress import result_table, training_bar
from voxax.cli.run_folder import BEST, CHECKPOINT, check_space, remove_run
from voxax.cli.scenes import MakeTask, Mixing, Prepare
from voxax.cli.task import Score, Task
from voxax.cli.tasks import plan_of, restore
from voxax.errors import FileFormatError, InputError, VoxaxError, WorkerError
from voxax.geometry import Plan
from voxax.hardware import describe, peak_memory
from voxax.io.pipeline import GrainPipeline, Pipeline
from voxax.io.steps import Steps
from voxax.models.checkpoint import (
    load_description,
    newest_step,
    remove_steps_above,
    save_checkpoint,
)
from voxax.parallel import pack_scenes

AnyPipeline = Pipeline[Any, Any] | GrainPipeline[Any, Any]

# Largest size of losses.csv: ten million steps with 30 bytes each.
_MOST_BYTES = 300 * MEBIBYTE
# Number of random batches from which the sizes of shards are computed.
_PACKINGS = 64


class Trace(contextlib.ExitStack):
    """Context manager that traces training steps 2 to 6 with JAX's profiler; step 1 compiles.

    The trace is written to `folder`; None writes no trace.
    """

    FIRST, LAST = 2, 6

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.folder, self.steps = folder, 0

    def step(self) -> None:
        """Count the training step that is about to run; start the trace at step 2, stop after 6."""
        self.steps += 1
        if self.folder is not None and self.steps == self.FIRST:
            self.folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self.folder))
            self.callback(jax.profiler.stop_trace)
        elif self.steps > self.LAST:
            self.close()


def check_batch(task: Task, batch_size: int, devices: int) -> None:
    """Raise InputError if the devices cannot share the `batch_size` scenes of a step.

    Each device needs at least one scene. If the network of `task` has dense layers, all devices
    need the same number of scenes.
    """
    if batch_size < devices:
        raise InputError(
            f"a batch size of {batch_size} leaves {devices - batch_size} of {devices} devices "
            f"without a scene: give at least {devices}, or fewer devices"
        )
    if task.shares_equally(task.network) and batch_size % devices:
        raise InputError(
            f"a batch size of {batch_size} for {devices} devices: the dense layers of "
            f"{task.network} need as many scenes on each. Give a multiple of {devices}, or "
            "fewer devices"
        )


def check_order(checkpoint: Path, **order: int) -> None:
    """Raise InputError if the seed or batch size differs from the one that a checkpoint stores.

    `order` has both by name. They determine the order of the training scenes. `checkpoint` is the
    folder of the checkpoint.
    """
    before = load_description(checkpoint).get("order", {})
    if not isinstance(before, dict):
        raise FileFormatError(
            f"the description of the checkpoint in {checkpoint} has order = {before!r:.80}, which "
            "is no table of the seed and the batch size"
        )
    for name, value in order.items():
        if before.get(name, value) != value:
            raise InputError(
                f"the checkpoint in {checkpoint} was trained with {name} {before[name]}, now it is "
                f"{value}: with another one its steps would take other scenes"
            )


class Learning:
    """One training run: prepares scenes, makes the training steps and writes the checkpoints.

    A step's scenes and their random augmentation depend only on the seed and the number of the
    step. They are therefore the same in a resumed run, and in a run on more devices.

    Args:
      task: settings of the network and its training.
      folder: folder of the run. It gets the folder ``checkpoint``, and the loss of each step in
        ``losses.csv``.
      seed: seed of the order of scenes and of the augmentation.
      devices: number of devices that share the scenes of a step.
      batch_size: number of scenes in a step.
      resume: continue from the newest complete step of the checkpoint.
      overwrite: delete the run that is in the folder, when :meth:`train` begins.
      transform: augmentation, a function of ``(scene, NumPy generator)``; None takes the task's.
      mixing: random change of all scenes of a step together; None for no change.
      late: ``(step, augmentation)`` that replaces `transform` from that step on; None for none.
      start: network with the weights that a new run begins with; None begins with random weights.
      keeps_best: whether :meth:`keep_best` will be called, which needs more disk space.

    Attributes:
      best: ``(score, step)`` of the best checkpoint, or None.
      stops: whether training ends after the checkpoint just saved. `after_save` of :meth:`train`
        may set it.
    """

    def __init__(
        self,
        task: Task,
        folder: Path,
        *,
        seed: int,
        devices: int = 1,
        batch_size: int = 1,
        resume: bool = False,
        overwrite: bool = False,
        transform: Callable[[Any, Any], Any] | None = None,
        mixing: Mixing | None = None,
        late: tuple[int, Callable[[Any, Any], Any]] | None = None,
        start: nnx.Module | None = None,
        keeps_best: bool = False,
    ) -> None:
        check_batch(task, batch_size, devices)
        self._equal = task.shares_equally(task.network)
        self.task, self.folder, self.seed = task, folder, seed
        self.devices, self.batch_size = devices, batch_size
        self.transform, self._late = transform or task.augmentation(), late
        self._mixing = mixing
        self.checkpoint = folder / CHECKPOINT
        self._overwrites = overwrite
        self.preparation = task.preparation()
        self.trainer = task.trainer(devices)
        if start is not None and not resume:
            self.trainer.start_from(start)
        if task.frozen:
            self.trainer.freeze(task.frozen)
        self._fitted_for: Any = None
        if resume:
            self._fitted_for = load_description(self.checkpoint).get("devices")
            check_order(self.checkpoint, **self._order())
            restore(self.checkpoint, self.trainer)
            remove_steps_above(self.checkpoint, self.trainer.steps)
        check_space(folder, self.trainer.tree(), kinds=2 if keeps_best else 1)
        self.stops = False
        self.best = self._best_before() if keeps_best and not overwrite else None
        self.begin = self.trainer.steps
        self._saved = self.begin  # before a step there is nothing to save
        self.losses: list[float] = []
        self.dropped = 0

    def _best_before(self) -> tuple[float, int] | None:
        """Return ``(score, step)`` of the best checkpoint on disk, or None if there is none.

        Best checkpoints that are newer than the step where this run resumes are deleted, and do not
        count.
        """
        folder = self.folder / BEST
        remove_steps_above(folder, self.trainer.steps)
        if newest_step(folder) is None:
            return None
        kept = load_description(folder)
        score, step = kept.get("score"), kept.get("step")
        if isinstance(score, int | float) and isinstance(step, int):
            return float(score), step
        raise FileFormatError(
            f"the description of the checkpoint in {folder} has no score and step: move it away"
        )

    def keep_best(self, score: float) -> bool:
        """Save the network to the folder ``best`` if `score` is the best yet; return True if so."""
        if self.best is not None and not score > self.best[0]:
            return False
        step = self.trainer.steps
        folder = self.folder / BEST
        with uninterrupted():
            self._write(folder, {**self._description(), "score": score})
        self.best = score, step
        return True

    def _order(self) -> dict[str, int]:
        return {"seed": self.seed, "batch_size": self.batch_size}

    def fit(self, scenes: Sequence[Any]) -> None:
        """Choose the array capacities of all levels of the network, large enough for sample scenes.

        `scenes` are the samples. They are augmented and packed into batches as in training. The
        margin is 30 %, because a step that exceeds a capacity costs another compilation. A resumed
        run on the same number of devices takes the capacities of its checkpoint instead, so that it
        gives the same bits.
        """
        if self._fitted_for == self.devices:
            draft = Prepare(scenes[0], self.preparation)()
            plan = plan_of(self.task.model(), draft.voxels, self.checkpoint)
            if plan.fit is not None:
                self._prepare_with(plan)
                return
        drafts = [
            Prepare(scene, self.preparation, seed, self.transform)()
            for seed in range(4)
            for scene in scenes
        ]
        plan = Plan.record(self.task.model(), drafts[0].voxels)
        rows = [np.asarray(d.voxels.coords)[: int(d.voxels.count)] for d in drafts]
        loads = [[len(level) for level in plan.level_rows(own)] for own in rows]
        if self.batch_size > 1:
            most = self.batch_size // self.devices if self._equal else None
            loads = _packed(loads, self.batch_size, self.devices, self.seed, most)
        plan = plan.fitted(loads, margin=1.3)
        if plan.fit is not None and not plan.on_ladder:  # one program for scenes of all sizes
            largest = max(levels[0] for levels in loads)
            plan = plan.with_fit(dataclasses.replace(plan.fit, least=int(1.05 * largest)))
        self._prepare_with(plan)

    def _prepare_with(self, plan: Plan) -> None:
        self.preparation = dataclasses.replace(self.preparation, plan=plan)

    def compile(self, scenes: Sequence[Any]) -> None:
        """Compile the training step for a batch of these scenes, without training."""
        if self.trainer.steps >= self.task.steps:
            return
        chosen = list(itertools.islice(itertools.cycle(scenes), self.batch_size))
        # Seed 0, as for a sample in `fit`: another augmentation may exceed the capacities.
        example = self._make(chosen, (0,) * self.batch_size)()
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
        """Train until ``steps`` steps are made, and return whether Ctrl-C interrupted the training.

        Args:
          pipeline: pipeline of :func:`voxax.cli.scenes.run`, which prepares the scenes.
          scenes: all training scenes, or tasks that make them.
          steps: number of steps in total, including those before a run was resumed.
          save_every: number of steps between two checkpoints.
          profile: folder for a trace of a few steps; None for no trace.
          after_save: function that is called after each checkpoint and returns a remark to print.
        """
        if self._overwrites:
            with uninterrupted():  # Ctrl-C would leave half a run
                remove_run(self.folder)
        tell = self.task.tracker()
        taken = Steps(scenes, self._make, self.batch_size, steps, self.seed, self.begin)
        if self._late is not None:
            step, change = self._late
            make = dataclasses.replace(self._make, late=change, late_seed=taken.first_seed(step))
            taken = dataclasses.replace(taken, make=make)
        bar = training_bar(steps, self.trainer.steps, self.batch_size)
        try:
            with bar, Trace(profile) as trace:
                for example in pipeline(taken, prefetch=4):
                    trace.step()
                    labels = example.labels
                    with uninterrupted():  # parameters are donated in a step
                        loss, prediction, dropped = self.trainer.step(example.voxels, labels)
                        self._note(float(loss))
                    self.dropped += int(dropped)
                    mean = float(np.mean(self.losses[-20:]))
                    bar.update(mean, tell(labels, prediction), self.trainer.programs)
                    if self.trainer.steps % save_every == 0 and self.trainer.steps < steps:
                        self.save()
                        if after_save is not None:
                            told = after_save()
                            bar.tell(f"step {self.trainer.steps}: loss {mean:.3f}{told}")
                        if self.stops:
                            return False
        except KeyboardInterrupt:
            mark_handled()
            return True
        except WorkerError:
            if self.trainer.steps > self.begin:
                self.save()
            raise
        return False

    def _note(self, loss: float) -> None:
        if not np.isfinite(loss):
            raise InputError(
                f"the loss of step {self.trainer.steps} is {loss}, so nothing of it is kept: give "
                f"a lower learning rate than {self.task.learning_rate}, or look for broken "
                "values in the scans' attributes"
            )
        self.losses.append(loss)

    @property
    def _make(self) -> MakeTask:
        preparation, transform = self.preparation, self.transform
        return MakeTask(
            preparation, self.batch_size, self.devices, transform, self._equal, self._mixing
        )

    def save(self) -> None:
        """Write the checkpoint and the loss of every step so far, unless already written."""
        if self._saved != self.trainer.steps:
            with uninterrupted():
                self._save()

    def _save(self) -> None:
        # Make the folder first: if the run is killed from here on, `--resume` needs it.
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        path = self.folder / "losses.csv"
        lines = ["step,loss"]
        if self.begin > 0 and path.exists():
            lines += _losses_before(path, self.begin)
        lines += [f"{step},{loss!r}" for step, loss in enumerate(self.losses, self.begin)]
        self._write(self.checkpoint, self._description(), path, "\n".join(lines) + "\n")
        self._saved = self.trainer.steps

    def _description(self) -> dict[str, Any]:
        step = self.trainer.steps
        description = {"task": self.task.task, "network": self.task.to_json(), "step": step}
        description["order"] = self._order()
        plan = self.preparation.plan
        if plan is not None and plan.fit is not None:
            description["devices"] = self.devices
            description["capacities"] = plan.fit.to_json()
        return description

    def _write(
        self, folder: Path, description: dict[str, Any], beside: Path | None = None, text: str = ""
    ) -> None:
        """Write a checkpoint of the present step, with the metadata `description`, to `folder`.

        If `beside` is a path, `text` is written to this file before the checkpoint is written.
        """
        step = self.trainer.steps
        try:
            if beside is not None:
                write_atomically(beside, text)
            save_checkpoint(folder, self.trainer.tree(), description, step)
        except VoxaxError:
            raise
        except (OSError, ValueError) as error:  # tensorstore raises ValueError for a full disk
            raise InputError(
                f"step {step} was not saved to {folder}, which keeps the steps before: "
                f"{_cause(error)}. Free some space, and go on with --resume"
            ) from error

    def say_interrupted(self, command: str) -> int:
        """Print where the run stopped and the command that continues it; return the exit status."""
        if self.trainer.steps == 0:
            print("interrupted before the first step, so nothing was saved")
        else:
            print(f"interrupted at step {self.trainer.steps}; checkpoint: {self.checkpoint}")
            print(f"continue with: {command}")
        return 130

    def report(self, score: Score, seconds: dict[str, float], **more: Any) -> None:
        """Write metrics.json with the results of the run, and print the most important ones.

        `seconds` is the time of each phase by name, and `more` are further entries of the file.
        """
        metrics = {
            "task": self.task.task,
            **score.metrics(),
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
        title = f"validation {score.figure} {score.value():.3f}"
        result_table(title, *score.table(), metrics, self.folder)

    def validate(self, pipeline: AnyPipeline, scenes: Sequence[Any]) -> tuple[Score, Any]:
        """Return the network's score on `scenes`, and its prediction for the first scene.

        `pipeline` prepares the scenes. Without any scene, the prediction is None.
        """
        size = self.batch_size
        groups = [scenes[i : i + size] for i in range(0, len(scenes), size)]
        tasks = (self._make(group, (None,) * len(group)) for group in groups)
        score, predictions = self.task.score(), []
        for example in pipeline(tasks, prefetch=4):
            for truth, prediction in self.task.scenes(self.trainer, example):
                score.add(truth, prediction)
                predictions = predictions or [prediction]
        return score, predictions[0] if predictions else None


def _losses_before(path: Path, step: int) -> list[str]:
    """Return the lines of losses.csv for the steps before `step`; [] if the file is invalid."""
    try:
        lines = bounded_text(path, _MOST_BYTES).splitlines()
    except FileFormatError:
        return []
    found = [re.fullmatch(r"(\d{1,10}),\S+", line) for line in lines]
    return [line[0] for line in found if line is not None and int(line[1]) < step]


def _cause(error: Exception) -> str:
    """Return why a file was not written: a message such as ``No space left on device``.

    This is the operating system's message if `error` has an error number, otherwise the first line
    of the text of `error`.
    """
    found = re.search(r"os_error_code='(\d+)'", str(error))
    number = error.errno if isinstance(error, OSError) else found and int(found[1])
    return os.strerror(number) if number else f"{str(error).splitlines()[0]:.200}"


def _packed(
    loads: list[list[int]], batch_size: int, shards: int, seed: int, most: int | None
) -> list[list[int]]:
    """Return the number of rows on each network level, for the shards of random batches of scenes.

    `loads` has a list for each sample scene: the scene's number of rows on each network level. The
    result has such a list, summed over the scenes of a shard, for each nonempty shard of each
    batch. A batch has `batch_size` scenes, drawn at random with `seed`, and is packed into at most
    `shards` shards. A shard has at most `most` scenes (None: any number).
    """
    rng = np.random.default_rng(seed)
    packed = []
    for _ in range(_PACKINGS):
        chosen = [loads[i] for i in rng.integers(len(loads), size=batch_size)]
        packing = pack_scenes([levels[0] for levels in chosen], shards, most=most)
        packed += [
            np.sum([chosen[i] for i in shard], axis=0).tolist() for shard in packing.scenes if shard
        ]
    return packed
