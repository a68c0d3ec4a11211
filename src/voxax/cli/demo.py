"""``voxax demo`` trains a small network and draws its predictions for a validation scene."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from voxax import _limits
from voxax.errors import InputError

if TYPE_CHECKING:
    from voxax.cli.demo_kinds import DemoKind

SAVE_EVERY = 100  # steps


def demo(
    task: Literal["segment", "detect"] = "segment",
    out: Path = Path("voxax-out"),
    steps: int | None = None,
    input: Path | None = None,
    labels: Path | None = None,
    label_field: str | None = None,
    columns: str | None = None,
    item: int | None = None,
    voxel_size: float | None = None,
    width: float | None = None,
    learning_rate: float | None = None,
    sensor: Literal["lidar32", "lidar64", "lidar128"] | None = None,
    scenes: int | None = None,
    workers: int = 1,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    profile: Path | None = None,
    devices: int | Literal["all"] | None = None,
    batch_size: int | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    deterministic: bool = False,
) -> int:
    """Train a small network on simulated LiDAR sweeps, or on a labeled scan.

    Writes a checkpoint, metrics.json, a picture and an interactive page. Ctrl-C stops the training
    early and leaves a usable checkpoint.

    Args:
      task: `segment` labels points; `detect` finds boxes of vehicles, poles and persons, with a
          small CenterPoint.
      out: Folder for the results of one run. A second run needs --resume, --overwrite or another
          folder.
      steps: Training steps, of --batch-size scenes each. By default 160, or 1500 to detect.
      input: Labeled scan to learn from instead of simulated sweeps, to segment only. It is cut into
          blocks of 10 m, half of which are for validation.
      labels: Labels of --input (.label, .npy, .npz), if the file has none.
      label_field: Column or array with the labels, if its name is not a usual one.
      columns: Columns of --input if the file does not name them (.bin): their number, or names
          such as x,y,z,red,green,blue.
      item: Number of the scan to take from an --input with several (.h5, .npy, .e57).
      voxel_size: Edge of a voxel in meters. By default 0.3, or 0.2 to detect.
      width: Factor on all channels of the network. By default the square root of half the
          machine's cores, and at most 1 for each 4 GiB of memory; 2 on an accelerator.
      learning_rate: Peak of the one-cycle schedule, by default 0.006.
      sensor: Beam pattern of the simulated sweeps. By default lidar32, or lidar64 to detect.
      scenes: Simulated training streets. By default 48, or 96 to detect.
      workers: Processes that simulate, voxelize and build kernel maps.
      seed: Seed of streets and augmentation.
      resume: Continue from the checkpoint in --out, with its settings.
      overwrite: Delete the run in --out.
      profile: Folder for a trace of a few training steps, with layers by name, for
          TensorBoard, XProf or Perfetto.
      devices: Number of devices that share the scenes of a step, or `all` of this host; on a CPU
          they share its cores. By default all TPUs or GPUs of this host, as far as they can
          share --batch-size; on a CPU 1.
      batch_size: Scenes of a step, by default one for each device. On any number of devices
          the same batch size and seed give the same steps, up to rounding.
      dtype: Type that layers compute in; parameters are float32. By default bfloat16 on a TPU,
          elsewhere float32.
      deterministic: On a CPU, compute the same bits on any number of cores. XLA then uses four
          threads, and convolutions use the default algorithms.
    """
    from voxax.cli.process import (
        be_deterministic,
        devices_for,
        keep_heap,
        refuse_other_hosts,
        use_devices,
    )

    options = dict(locals())
    from voxax.cli.run_folder import check_writable, claim_folder
    from voxax.hardware import keep_programs

    keep_heap()
    keep_programs()
    if deterministic:
        be_deterministic()
    for name, value, limit, least in (
        ("--steps", steps, _limits.STEPS, 1),
        ("--scenes", scenes, _limits.STREETS, 1),
        ("--width", width, _limits.WIDTH, 0.01),
        ("--batch-size", batch_size, _limits.STEP_SCENES, 1),
        ("--workers", workers, _limits.WORKERS, 0),
        ("--devices", devices, _limits.DEVICES, 1),
        ("--seed", seed, _limits.SEED, 0),
        ("--voxel-size", voxel_size, _limits.VOXEL_SIZE, _limits.LEAST_VOXEL_SIZE),
    ):
        if isinstance(value, int | float):
            limit.check(name, value, least)
    if task == "detect" and input is not None:
        raise InputError(
            "--task detect learns from simulated streets, --input has no boxes: leave it out, or "
            'give folders with boxes to `voxax train` with task = "detect"'
        )
    if isinstance(devices, int):
        use_devices(devices, "--devices")  # before anything starts JAX
    refuse_other_hosts("demo")
    equal = task == "detect"
    devices = devices_for("auto" if devices is None else devices, batch_size, equal)
    batch_size = devices if batch_size is None else batch_size
    if batch_size < devices:
        raise InputError(
            f"--batch-size {batch_size} is less than --devices {devices}, and some would have no "
            f"scene: give --batch-size {devices} or more, or fewer devices"
        )
    if equal and batch_size % devices:
        raise InputError(
            f"--batch-size {batch_size} on --devices {devices}: --task detect needs as many scenes "
            f"on each: give a multiple of {devices}, or fewer devices"
        )
    resume = claim_folder(out, resume=resume, overwrite=overwrite)
    if profile is not None:
        check_writable(profile)
    from voxax.cli.demo_kinds import KINDS, dtype_for, width_for
    from voxax.cli.scenes import from_file

    given = {
        "steps": steps,
        "scenes": scenes,
        "voxel_size": voxel_size,
        "learning_rate": learning_rate,
        "sensor": sensor,
    }
    kind = KINDS[task](**{name: value for name, value in given.items() if value is not None})
    if input is None:
        chosen = kind.streets(seed)
    else:
        chosen = from_file(input, labels, label_field, columns, item)
    from voxax.hardware import describe

    info = describe()
    network = (
        width_for(info) if width is None else width,
        dtype_for(info) if dtype is None else dtype,
    )
    rest = seed, workers, resume, profile, devices, batch_size
    stated = {name: options[name] for name in _SETTINGS if options[name] is not None}
    command = _command({**options, "resume": True, "overwrite": False})
    return _Run(kind, out, chosen, *network, *rest, overwrite, stated, command)()


# Options that a checkpoint stores, so that --resume must not give other values.
_SETTINGS = ("voxel_size", "width", "learning_rate", "dtype")


def _command(options: dict[str, Any]) -> str:
    """Return a ``voxax demo`` command line for the shell, with the given options.

    `options` has the value of each parameter of :func:`demo`. Options that have their default value
    are left out, except ``--out``.
    """
    words = ["voxax", "demo"]
    for name, parameter in inspect.signature(demo).parameters.items():
        value, option = options[name], f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value != parameter.default or name == "out":
            words += [option, str(value)]
    return shlex.join(words)


@dataclasses.dataclass
class _Run:
    kind: DemoKind
    out: Path
    scenes: Any
    width: float
    dtype: str
    seed: int
    workers: int
    resume: bool
    profile: Path | None = None
    devices: int = 1
    batch_size: int = 1
    overwrite: bool = False
    stated: dict[str, Any] = dataclasses.field(default_factory=dict)
    command: str = ""

    def __post_init__(self) -> None:
        from voxax.cli.progress import phase

        self.steps = self.kind.steps
        self.seconds: dict[str, float] = {}
        self._phase = functools.partial(phase, seconds=self.seconds)

    def __call__(self) -> int:
        from voxax.cli.scenes import run as run_task
        from voxax.cli.tasks import check_network
        from voxax.io.pipeline import Pipeline

        begin = time.perf_counter()
        if not self.resume:
            check_network(self.kind.task([], self.scenes.class_names, self.width, self.dtype))
        with Pipeline(run_task, workers=self.workers, prefetch=64) as pipeline:
            tasks = [*self.scenes.validation, *self.scenes.train]
            clouds = pipeline(tasks)
            with self._phase("simulate"):
                self.validation = [next(clouds) for _ in self.scenes.validation]
                train = [next(clouds) for _ in self.scenes.train[:4]]
            with self._phase("plan"):
                samples = [*self.validation, *train]
                self._prepare(samples)
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
                return self.learning.say_interrupted(self.command)
            with self._phase("validate"):
                self.score, self.prediction = self.learning.validate(pipeline, self.validation)
                self.kind.compare(self.task, self.score, train, self.validation)
        with self._phase("pictures"):
            self._pictures()
        self.seconds["total"] = time.perf_counter() - begin
        task = self.task
        self.learning.report(self.score, self.seconds, width=task.width, dtype=task.dtype)
        return 0

    def _prepare(self, samples: list[Any]) -> None:
        from voxax.cli.learning import Learning
        from voxax.cli.tasks import task_as

        names = self.scenes.class_names
        if self.resume:
            checkpoint = self.out / "checkpoint"
            task = dataclasses.replace(task_as(checkpoint, self.kind.kind), steps=self.steps)
            if task.class_names != names:
                raise InputError(
                    f"the checkpoint in {checkpoint} has the classes {task.class_names}, "
                    f"these scenes have {names}"
                )
            for name, value in self.stated.items():
                if getattr(task, name) != value:
                    raise InputError(
                        f"the checkpoint in {checkpoint} has {name} = {getattr(task, name)}, "
                        f"--{name.replace('_', '-')} is {value}: leave it out, or begin anew in "
                        "another folder"
                    )
        else:
            task = self.kind.task(samples, names, self.width, self.dtype)
        self.task = task
        self.learning = Learning(
            task,
            self.out,
            seed=self.seed,
            devices=self.devices,
            batch_size=self.batch_size,
            resume=self.resume,
            overwrite=self.overwrite,
        )
        self.learning.fit(samples)

    def _pictures(self) -> None:
        scene, title = self.validation[0], f"voxax demo: {self.scenes.title}"
        self.kind.pictures(self.out, self.task, scene, self.prediction, self.score, title)
