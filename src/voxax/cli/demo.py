"""``voxax demo``: train a small MinkUNet, show what it learned."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np


def demo(
    out: Path = Path("voxax-out"),
    steps: int = 160,
    input: Path | None = None,
    labels: Path | None = None,
    voxel_size: float = 0.3,
    width: float | None = None,
    learning_rate: float = 6e-3,
    sensor: Literal["lidar32", "lidar64", "lidar128"] = "lidar32",
    scenes: int = 48,
    workers: int = 1,
    seed: int = 0,
    resume: bool = False,
    profile: Path | None = None,
    task: Literal["segment", "learned-size"] = "segment",
    seeds: int = 3,
) -> int:
    """Train a small MinkUNet on simulated LiDAR sweeps, or on a labelled scan.

    Writes a checkpoint, metrics.json, a picture and an interactive page. Ctrl-C stops early
    and leaves a usable checkpoint.

    With --task learned-size: a small network that learns a kernel size for every voxel, against
    the same network at every fixed size. Writes learned_size.md, .json, .svg and .png; of the
    options only --out, --steps, --voxel-size, --sensor, --scenes and --seeds count.

    Args:
        out: Folder for the results.
        steps: Training steps, one scene each.
        input: A labelled scan to learn from instead; half of its 10 m blocks are for validation.
        labels: Labels of --input where the file itself has none (.label, .npy, .npz).
        voxel_size: Edge of a voxel in metres.
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
        task: Segment streets, or compare learned kernel sizes with fixed ones.
        seeds: Of learned-size: how often each network is trained.
    """
    from voxax.cli.malloc import keep_heap

    keep_heap()
    if steps < 1 or scenes < 1:
        from voxax.errors import InputError

        raise InputError(f"--steps {steps} and --scenes {scenes} must be at least 1")
    if task == "learned-size":
        from voxax.cli.learned_size import learned_size

        return learned_size(out, steps, voxel_size, sensor, scenes, seeds)
    from voxax.cli.scenes import from_file, simulated

    chosen = simulated(scenes, 8, sensor, seed) if input is None else from_file(input, labels)
    if width is None:
        from voxax.cli.network import width_for
        from voxax.hardware import describe

        width = width_for(describe())
    run = _Run(out, chosen, steps, seed, workers, resume, profile)
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

    def __post_init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.checkpoint = self.out / "checkpoint"
        self.dropped = 0
        self.losses: list[float] = []

    def __call__(self, voxel_size: float, width: float, learning_rate: float) -> int:
        from voxax.cli.scenes import run as run_task
        from voxax.io.pipeline import Pipeline

        self.out.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        interrupted = False
        with Pipeline(run_task, workers=self.workers, prefetch=64) as pipeline:
            self.pipeline = pipeline
            tasks = [*self.scenes.validation, *self.scenes.train]
            clouds = pipeline(tasks)
            with self._phase("simulate"):
                self.validation = [next(clouds) for _ in self.scenes.validation]
                self.train = [next(clouds) for _ in self.scenes.train[:4]]
            self._prepare(voxel_size, width, learning_rate)
            with self._phase("compile"):
                self._compile()
            with self._phase("simulate"):
                self.train += list(clouds)
            with self._phase("train"):
                interrupted = self._train()
            with self._phase("checkpoint"):
                self._save()
            if interrupted:
                print(f"interrupted at step {self.trainer.steps}; checkpoint: {self.checkpoint}")
                print(f"continue with: voxax demo --resume --out {self.out}")
                return 130
            with self._phase("validate"):
                self._validate()
        with self._phase("pictures"):
            self._pictures()
        self.seconds["total"] = time.perf_counter() - begin
        self._report()
        return 0

    def _phase(self, name: str) -> _Phase:
        return _Phase(name, self.seconds)

    def _prepare(self, voxel_size: float, width: float, learning_rate: float) -> None:
        from voxax.cli.network import NetworkConfig, config_of, restore
        from voxax.cli.scenes import Prepare
        from voxax.geometry import Plan

        samples = [*self.validation, *self.train]
        with self._phase("plan"):
            if self.resume:
                self.config = dataclasses.replace(config_of(self.checkpoint), steps=self.steps)
                if self.config.class_names != self.scenes.class_names:
                    from voxax.errors import InputError

                    raise InputError(
                        f"the checkpoint in {self.checkpoint} knows the classes "
                        f"{self.config.class_names}, these scenes have {self.scenes.class_names}"
                    )
            else:
                weights = _class_weights(samples, len(self.scenes.class_names))
                self.config = NetworkConfig(
                    self.scenes.class_names, voxel_size, width, learning_rate, self.steps, weights
                )
            preparation = self.config.preparation()
            self.trainer = self.config.trainer()
            if self.resume:
                restore(self.checkpoint, self.trainer)
            # Augmentation turns and scales the scenes, so that is what levels are fitted to. The
            # margin is generous: a scene that outgrows its bucket costs another compilation.
            drafts = [Prepare(c, preparation, i)() for i in range(4) for c in samples]
            largest = max(int(d.voxels.count) for d in drafts)
            plan = Plan.record(self.trainer.model(), drafts[0].voxels)
            plan = plan.fitted([d.voxels for d in drafts], margin=1.3)
            self.preparation = dataclasses.replace(
                preparation, plan=plan, min_capacity=int(1.05 * largest)
            )

    def _compile(self) -> None:
        from voxax.cli.scenes import Prepare

        self.held_out = [Prepare(cloud, self.preparation)() for cloud in self.validation]
        self.trainer.compile(self.held_out[0].voxels, self.held_out[0].labels)

    def _tasks(self) -> Iterator[Any]:
        from voxax.cli.scenes import Prepare

        rng = np.random.default_rng(self.seed)
        order: list[int] = []
        for step in range(self.steps):
            if not order:
                order = rng.permutation(len(self.train)).tolist()
            cloud = self.train[order.pop()]
            if step >= self.trainer.steps:
                yield Prepare(cloud, self.preparation, self.seed * 1_000_003 + step)

    def _train(self) -> bool:
        """True if interrupted."""
        from voxax.cli.progress import training_bar
        from voxax.models.metrics import confusion, mean_iou

        classes = len(self.config.class_names)
        matrix = np.zeros((classes, classes))
        bar = training_bar(self.steps, self.trainer.steps)
        try:
            with bar, _Trace(self.profile) as trace:
                for example in self.pipeline(self._tasks(), prefetch=4):
                    trace.step()
                    labels = example.labels
                    loss, prediction, dropped = self.trainer.step(example.voxels, labels)
                    self.losses.append(float(loss))
                    self.dropped += int(dropped)
                    matrix = 0.95 * matrix + confusion(labels, np.asarray(prediction), classes)
                    bar.update(
                        float(np.mean(self.losses[-20:])),
                        mean_iou(matrix),
                        self.trainer.programs,
                    )
                    if self.trainer.steps % 100 == 0 and self.trainer.steps < self.steps:
                        self._save()
        except KeyboardInterrupt:
            return True
        return False

    def _save(self) -> None:
        from voxax.models.checkpoint import save_checkpoint

        description = {"network": self.config.to_json(), "step": self.trainer.steps}
        save_checkpoint(self.checkpoint, self.trainer.tree(), description, self.trainer.steps)

    def _validate(self) -> None:
        from voxax.models.metrics import confusion

        classes = len(self.config.class_names)
        self.matrix = np.zeros((classes, classes), np.int64)
        self.predictions = []
        for example in self.held_out:
            prediction = self.trainer.logits(example.voxels)[example.inverse].argmax(-1)
            self.predictions.append(prediction)
            self.matrix += confusion(example.point_labels, prediction, classes)

    def _pictures(self) -> None:
        from voxax.models.metrics import iou_table, mean_iou
        from voxax.plot import segmentation_html, segmentation_png

        cloud, prediction = self.validation[0], self.predictions[0]
        names = self.config.class_names
        iou = iou_table(self.matrix, names)
        title = f"voxax demo: {self.scenes.title}"
        miou = mean_iou(self.matrix)
        positions = cloud.positions - (
            cloud.positions.min(0) if np.abs(cloud.positions).max(initial=0) > 1e4 else 0.0
        )
        segmentation_png(
            self.out / "demo.png",
            positions,
            prediction,
            cloud.labels,
            names,
            title=title,
            subtitle=f"MinkUNet, {self.trainer.steps} steps, validation mIoU {miou:.2f}",
            iou=iou,
        )
        summary = {
            "validation mIoU": f"{miou:.3f}",
            "training steps": self.trainer.steps,
            "voxel size": f"{self.config.voxel_size} m",
            "validation scenes": len(self.validation),
        }
        segmentation_html(
            self.out / "demo.html",
            positions,
            prediction,
            cloud.labels,
            names,
            title=title,
            summary=summary,
            iou=iou,
        )

    def _report(self) -> None:
        import jax

        import voxax
        from voxax.cli.progress import result_table
        from voxax.hardware import describe, peak_memory
        from voxax.models.metrics import iou_table, mean_iou

        metrics = {
            "val_miou": mean_iou(self.matrix),
            "val_iou": iou_table(self.matrix, self.config.class_names),
            "val_points": int(self.matrix.sum()),
            "train_loss": float(np.mean(self.losses[-20:])) if self.losses else None,
            "steps": self.trainer.steps,
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "peak_memory_bytes": peak_memory(),
            "programs_compiled": self.trainer.programs,
            "voxels_dropped": self.dropped,
            "width": self.config.width,
            "device": describe().to_json(),
            "versions": {"voxax": voxax.__version__, "jax": jax.__version__},
        }
        path = self.out / "metrics.json"
        temporary = path.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(metrics, indent=2))
        os.replace(temporary, path)
        result_table(metrics, self.out)


_MESSAGES = {
    "simulate": "simulating or reading scenes",
    "plan": "planning: which kernel maps the network needs, how large its levels are",
    "compile": "compiling the training step, once",
    "validate": "validating",
    "pictures": "drawing",
}


class _Phase:
    """Adds the seconds spent inside to ``seconds[name]``, and says what is going on."""

    def __init__(self, name: str, seconds: dict[str, float]) -> None:
        from voxax.cli.progress import working

        self.name, self.seconds = name, seconds
        message = _MESSAGES.get(name)
        self.shown = working(message) if message else contextlib.nullcontext()

    def __enter__(self) -> None:
        self.begin = time.perf_counter()
        self.shown.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.shown.__exit__(*error)
        spent = time.perf_counter() - self.begin
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + spent


class _Trace:
    """Profiles the second to sixth step: the first compiles, and a trace of all is too large."""

    FIRST, LAST = 2, 6

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.steps, self.running = folder, 0, False

    def step(self) -> None:
        """A step begins."""
        self.steps += 1
        if self.folder is None or not self.FIRST <= self.steps <= self.LAST + 1:
            return
        import jax

        if self.steps == self.FIRST:
            self.folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self.folder))
            self.running = True
        elif self.steps > self.LAST:
            self._stop()

    def _stop(self) -> None:
        import jax

        if self.running:
            jax.profiler.stop_trace()
            self.running = False

    def __enter__(self) -> _Trace:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop()


def _class_weights(clouds: list[Any], classes: int) -> tuple[float, ...]:
    """Inverse square root of each class's share, mean 1: rare classes count, none dominates."""
    counts = np.zeros(classes)
    for cloud in clouds:
        counts += np.bincount(cloud.labels[cloud.labels >= 0], minlength=classes)[:classes]
    weights = 1 / np.sqrt(np.maximum(counts / max(counts.sum(), 1), 1e-3))
    return tuple((weights / weights.mean()).round(4).tolist())
