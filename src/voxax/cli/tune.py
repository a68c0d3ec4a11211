"""``voxax tune`` measures the algorithms of a model; ``voxax explain`` prints which are used."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import tyro

from voxax._interrupts import uninterrupted
from voxax.cli.workload import Workload
from voxax.errors import InputError, MissingExtraError

DEFAULT = Workload()
_BUILDING = "making the network and its kernel maps"


def tune(
    workload: Annotated[Workload, tyro.conf.arg(name="")] = DEFAULT,
    tpu: str | None = None,
    anew: bool = False,
    details: bool = False,
    budget: float | None = None,
) -> int:
    """Measure all algorithms for each convolution of a model; remember the fastest.

    Later runs of the same model on similar voxels use these choices. A MinkUNet takes minutes, on a
    TPU up to an hour. --budget limits the time. Ctrl-C keeps what was measured.

    With --tpu nothing is measured, and no TPU is needed. Kernels are compiled, and ranked by the
    compiler's schedules. Programs for such a TPU use the best kernel until the kernels are measured
    there. Needs `pip install "voxax[tpu]"`.

    Args:
      workload: Model and voxels.
      tpu: Predict for these TPU generations, with commas between: v4, v5e, v5p, v6e, 7x.
      anew: Measure again what was measured before.
      details: Print every candidate (algorithm with parameters) with its time.
      budget: Seconds for measuring and compiling. The promising candidates of each convolution are
          measured first.
    """
    if budget is not None and not budget > 0:
        raise InputError(f"--budget {budget}: expected seconds, more than 0")
    if budget is not None and tpu is not None:
        raise InputError(f"--budget {budget} limits measuring, and --tpu measures nothing")
    if tpu is not None:
        return _predict(workload, tpu, anew, details)
    import voxax as vx
    from voxax.cli.progress import working
    from voxax.hardware import describe, keep_programs
    from voxax.tuning import autotune_mode
    from voxax.tuning.cache import cache_for, device_name

    keep_programs()
    mode = autotune_mode()  # a mistake in the environment shows before minutes of work
    cache = cache_for(device_name(describe()))
    with working(_BUILDING, begin=False):
        built = workload.build()
    print(built.title, flush=True)
    try:
        with _progress():
            report = vx.tune(built.call, *built.arguments, anew=anew, budget=budget)
    finally:
        with uninterrupted():
            saved = cache.flush()
    print(report.details() if details else report)
    if mode == "off":
        print("VOXAX_AUTOTUNE=off: runs do not read what was measured")
    print(_place(cache, saved))
    return 0


def _place(cache: Any, saved: bool) -> str:
    return f"cache: {cache.path}" if saved else f"cache: {cache.path} could not be written"


def _predict(workload: Workload, generations: str, anew: bool, details: bool) -> int:
    from voxax import _compat
    from voxax.cli.progress import working
    from voxax.hardware import describe
    from voxax.predict import TOPOLOGIES, chip_named
    from voxax.predict.candidates import is_known, predict_all, products_of
    from voxax.tuning.cache import cache_for, device_name
    from voxax.tuning.entry import key_of

    chips = [chip.strip() for chip in generations.split(",") if chip.strip()]
    if not chips:
        raise InputError(
            f"--tpu {generations!r} names no generation: give some of {','.join(TOPOLOGIES)}"
        )
    names = [chip_named(chip).name for chip in chips]
    if not _compat.has_libtpu():
        raise MissingExtraError('predicting for TPUs needs libtpu: pip install "voxax[tpu]"')
    with working(_BUILDING, begin=False):
        built = workload.build(for_accelerator=True)
    for name in names:
        print(f"{built.title}, predicted for {name}", flush=True)
        hardware = describe(TOPOLOGIES[name])
        cache = cache_for(device_name(hardware))
        products = products_of(hardware, built.call, built.arguments)
        asked = [
            product
            for product in products
            if anew or not is_known(cache.get(key_of(product[0])), hardware, *product)
        ]
        try:
            for problem, entry in predict_all(name, hardware, asked):
                if entry is None:
                    print(f"{key_of(problem)}: no candidate could be priced", flush=True)
                    continue
                cache.put(key_of(problem), entry)
                print(f"{key_of(problem)}: {entry.summary()}", flush=True)
                for line in entry.lines() if details else ():
                    print(f"  {line}", flush=True)
        finally:
            with uninterrupted():
                saved = cache.flush()
        print(f"products: {len(products)}, known before: {len(products) - len(asked)}")
        print(_place(cache, saved))
    return 0


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """Show on stderr how many convolutions were measured, while the block runs.

    A terminal gets a spinner, other outputs get lines. If ``VOXAX_AUTOTUNE_LOG`` is set, only the
    tuner's log is written.
    """
    if os.environ.get("VOXAX_AUTOTUNE_LOG", "").strip():
        from voxax.tuning.request import configure_log

        configure_log()
        yield
        return
    from rich.console import Console

    from voxax.cli.progress import regularly

    console = Console(highlight=False, stderr=True)
    log = logging.getLogger("voxax.tuning")
    status = console.status("tuning") if console.is_terminal else None
    handler, level = _Tuned(console, status), log.level
    told = contextlib.nullcontext() if status else regularly(handler.tell)
    if log.getEffectiveLevel() > logging.INFO:
        log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        with status or contextlib.nullcontext(), told:
            yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Tuned(logging.Handler):
    """Log handler that prints a line for each measured convolution, or counts them in a spinner."""

    def __init__(self, console: Any, status: Any) -> None:
        super().__init__(logging.INFO)
        self._console, self._status = console, status
        self._begin, self._count = time.perf_counter(), 0

    def emit(self, record: logging.LogRecord) -> None:
        if not str(record.msg).startswith("tuned "):
            return
        self._count += 1
        if self._status is None:
            self._console.print(record.getMessage(), soft_wrap=True, markup=False)
            return
        self.tell(time.perf_counter() - self._begin)

    def tell(self, seconds: float) -> None:
        """Show the number of measured convolutions and the elapsed seconds."""
        text = f"tuning: {self._count} measured, {seconds:.0f} s"
        if self._status is None:
            self._console.print(text, soft_wrap=True)
        else:
            self._status.update(text)


Sensor = Literal["lidar32", "lidar64", "lidar128"]


def explain(
    workload: Annotated[Workload, tyro.conf.arg(name="")] = DEFAULT,
    details: bool = False,
    roofline: bool = False,
    width: float | None = None,
    sensor: Sensor | None = None,
    seed: int | None = None,
) -> int:
    """Explain which algorithms each convolution of a model uses, and why.

    A choice comes from a request of the model or the environment, from the tuning cache, from the
    choices shipped with voxax, or from the defaults. Nothing is measured; `voxax tune` measures.

    --roofline runs the demo's network on a simulated scan. It prints the operations and bytes of
    each convolution, the least time that the device allows (see `voxax hardware --probe`), the
    measured time, and their ratio.

    Args:
      workload: Model and voxels.
      details: Print every candidate with its time.
      roofline: Run the demo's network and compare each convolution with its lower bound.
          --voxel-size (0.3 by default) and the next three options belong to it.
      width: Factor on all channels of the demo's network; 1 by default.
      sensor: Beam pattern of the simulated sweep; lidar32 by default.
      seed: Seed of the simulated street; 0 by default.
    """
    if not roofline:
        for name, value in (("width", width), ("sensor", sensor), ("seed", seed)):
            if value is not None:
                raise InputError(f"--{name} {value} belongs to --roofline: give that too")
        import voxax as vx
        from voxax.cli.progress import working

        with working(_BUILDING, begin=False):
            built = workload.build()
        report = vx.explain(built.call, *built.arguments)
        print(built.title)
        print(report.details() if details else report)
        return 0
    if details or workload != dataclasses.replace(DEFAULT, voxel_size=workload.voxel_size):
        raise InputError(
            "--roofline runs the demo's network on a simulated scan: of the options for models "
            "and voxels it takes --voxel-size, --width, --sensor and --seed"
        )
    return _roofline(
        1.0 if width is None else width,
        0.3 if workload.voxel_size is None else workload.voxel_size,
        sensor or "lidar32",
        seed or 0,
    )


def _roofline(width: float, voxel_size: float, sensor: Sensor, seed: int) -> int:
    import voxax as vx
    from voxax.cli.progress import print_table
    from voxax.cli.scenes import Simulate
    from voxax.cli.segmentation_task import Segmentation
    from voxax.hardware import describe, shown
    from voxax.io.simulator import CLASS_NAMES
    from voxax.predict.roofline import roofline as measure
    from voxax.predict.roofline import rows

    task = Segmentation(
        class_names=CLASS_NAMES, voxel_size=voxel_size, width=width, learning_rate=1e-3, steps=1
    )
    model = task.trainer().model()
    example = task.preparation()(Simulate(seed, sensor)())
    voxels = vx.plan(model, example.voxels)
    info = describe(probe=True)
    result = measure(model, voxels, info)

    title = f"MinkUNet14, width {width}, {int(voxels.count)} voxels, on {info.model}"
    numbers = ("GFLOP", "MB", "lower bound, ms", "measured, ms", "ratio")
    print_table(("layer", "convolution", *numbers), [*rows(result)], title, numbers, 200)
    convolutions = sum(layer.seconds for layer in result.layers)
    bounds = sum(layer.lower_bound or 0.0 for layer in result.layers)
    print(
        f"convolutions alone {1e3 * convolutions:.1f} ms, their lower bounds "
        f"{1e3 * bounds:.1f} ms, the whole network in one program {1e3 * result.seconds:.1f} ms"
    )
    for name in ("peak_rates", "memory_bandwidth"):
        fact = info.fact(name)
        print(f"{name}: {shown(name, fact.value)} (source: {fact.source})")
    return 0
