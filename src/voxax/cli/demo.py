"""``voxax demo`` trains a small MinkUNet and draws what it learned."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any, Literal

from voxax.errors import InputError

SAVE_EVERY = 100  # steps


def demo(
    out: Path = Path("voxax-out"),
    steps: int = 160,
    input: Path | None = None,
    labels: Path | None = None,
    label_field: str | None = None,
    columns: str | None = None,
    item: int | None = None,
    voxel_size: float = 0.3,
    width: float | None = None,
    learning_rate: float = 6e-3,
    sensor: Literal["lidar32", "lidar64", "lidar128"] = "lidar32",
    scenes: int = 48,
    workers: int = 1,
    seed: int = 0,
    resume: bool = False,
    profile: Path | None = None,
    devices: int = 1,
    batch_size: int | None = None,
) -> int:
    """Train a small MinkUNet on simulated LiDAR sweeps, or on a labelled scan.

    Writes a checkpoint, metrics.json, a picture and an interactive page. Ctrl-C stops early
    and leaves a usable checkpoint.

    Args:
        out: Folder for the results.
        steps: Training steps, of --batch-size scenes each.
        input: A labelled scan to learn from instead; half of its 10 m blocks are for validation.
        labels: Labels of --input where the file itself has none (.label, .npy, .npz).
        label_field: Column or array with the labels, where it has another name than usual.
        columns: Columns of --input where it names none (.bin): their number, or names such as
            x,y,z,red,green,blue.
        item: The number of one scan of --input, in a file of several (.h5, .npy, .e57).
        voxel_size: Edge of a voxel in meters.
        width: Factor on all channels of the network. By default what the machine carries: the
            square root of half its cores, 1 on two cores and 2 on eight, and at most 1 for each
            2 GiB of free memory; on an accelerator 2.
        learning_rate: Peak of the one-cycle schedule.
        sensor: Beam pattern of the simulated sweeps.
        scenes: Simulated training streets.
        workers: Processes that simulate, voxelize and build kernel maps.
        seed: Of streets and augmentation.
        resume: Continue from the checkpoint in --out.
        profile: Folder for a trace of a few training steps, with layers by name, for
            TensorBoard, XProf or Perfetto.
        devices: How many devices a step's scenes are distributed over; on a CPU host devices, which
            share its cores.
        batch_size: Scenes of a step, by default one for each device. On any number of devices
            the same batch size and seed give the same steps, up to rounding.
    """
    from voxax.cli.process import keep_heap, use_devices

    keep_heap()
    if steps < 1 or scenes < 1:
        raise InputError(f"--steps {steps} and --scenes {scenes} must be at least 1")
    use_devices(devices, "--devices")  # before anything starts JAX
    batch_size = devices if batch_size is None else batch_size
    if batch_size < devices:
        raise InputError(
            f"--batch-size {batch_size} is less than --devices {devices}, and some would have no "
            f"scene: give --batch-size {devices} or more, or fewer devices"
        )
    from voxax.cli.scenes import from_file, simulated

    if input is None:
        chosen = simulated(scenes, 8, sensor, seed)
    else:
        chosen = from_file(input, labels, label_field, columns, item)
    if width is None:
        from voxax.cli.width import width_for
        from voxax.hardware import describe

        width = width_for(describe())
    run = _Run(out, chosen, steps, seed, workers, resume, profile, devices, batch_size)
    return run(voxel_size, width, learning_rate)


@dataclasses.dataclass
class _Run:
    out: Path
    scenes: Any
    steps: int
    seed: int
    workers: int
    resume: bool
    profile: Path | None = None
    devices: int = 1
    batch_size: int = 1

    def __post_init__(self) -> None:
        from voxax.cli.progress import phase

        self.seconds: dict[str, float] = {}
        self._phase = functools.partial(phase, seconds=self.seconds)

    def __call__(self, voxel_size: float, width: float, learning_rate: float) -> int:
        from voxax.cli.scenes import run as run_task
        from voxax.io.pipeline import Pipeline

        self.out.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        with Pipeline(run_task, workers=self.workers, prefetch=64) as pipeline:
            tasks = [*self.scenes.validation, *self.scenes.train]
            clouds = pipeline(tasks)
            with self._phase("simulate"):
                self.validation = [next(clouds) for _ in self.scenes.validation]
                train = [next(clouds) for _ in self.scenes.train[:4]]
            with self._phase("plan"):
                samples = [*self.validation, *train]
                self._prepare(samples, voxel_size, width, learning_rate)
            with self._phase("compile"):
                self.learning.compile(samples)
            with self._phase("simulate"):
                train += list(clouds)
            with self._phase("train"):
                interrupted = self.learning.train(
                    pipeline, train, self.steps, save_every=SAVE_EVERY, profile=self.profile
                )
            with self._phase("checkpoint"):
                self.learning.save()
            if interrupted:
                same = f" --seed {self.seed}" if self.seed else ""
                if self.batch_size > 1:
                    same += f" --batch-size {self.batch_size} --devices {self.devices}"
                command = f"voxax demo --resume --out {self.out}{same}"
                return self.learning.say_interrupted(command)
            with self._phase("validate"):
                self.score, self.prediction = self.learning.validate(pipeline, self.validation)
        with self._phase("pictures"):
            self._pictures()
        self.seconds["total"] = time.perf_counter() - begin
        self.learning.report(self.score, self.seconds, width=self.task.width)
        return 0

    def _prepare(
        self, samples: list[Any], voxel_size: float, width: float, learning_rate: float
    ) -> None:
        from voxax.cli.learning import Learning
        from voxax.cli.segmentation_task import Segmentation, class_weights
        from voxax.cli.tasks import task_as

        names = self.scenes.class_names
        if self.resume:
            checkpoint = self.out / "checkpoint"
            task = dataclasses.replace(task_as(checkpoint, Segmentation), steps=self.steps)
            if task.class_names != names:
                raise InputError(
                    f"the checkpoint in {checkpoint} knows the classes {task.class_names}, "
                    f"these scenes have {names}"
                )
        else:
            task = Segmentation(
                class_names=names,
                voxel_size=voxel_size,
                width=width,
                learning_rate=learning_rate,
                steps=self.steps,
                class_weights=class_weights(samples, len(names)),
            )
        self.task = task
        self.learning = Learning(
            task,
            self.out,
            seed=self.seed,
            devices=self.devices,
            batch_size=self.batch_size,
            resume=self.resume,
        )
        self.learning.fit(samples)

    def _pictures(self) -> None:
        from voxax.cli.scenes import near_origin
        from voxax.cli.segmentation_task import SegmentationScore
        from voxax.plot import segmentation_html, segmentation_png

        score = self.score
        assert isinstance(score, SegmentationScore)
        cloud, prediction = self.validation[0], self.prediction
        names, iou, miou = self.task.class_names, score.iou(), score.value()
        title = f"voxax demo: {self.scenes.title}"
        drawn = near_origin(cloud.positions), prediction, cloud.labels, names
        segmentation_png(
            self.out / "demo.png",
            *drawn,
            title=title,
            subtitle=f"MinkUNet, {self.learning.trainer.steps} steps, validation mIoU {miou:.2f}",
            iou=iou,
        )
        summary = {
            "validation mIoU": f"{miou:.3f}",
            "training steps": self.learning.trainer.steps,
            "voxel size": f"{self.task.voxel_size} m",
            "validation scenes": len(self.validation),
        }
        page = self.out / "demo.html"
        segmentation_html(page, *drawn, title=title, summary=summary, iou=iou)
