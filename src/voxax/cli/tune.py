"""``voxax tune``: measure what a model needs before it runs."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import tyro

from voxax.cli.workload import Workload
from voxax.errors import InputError, MissingExtraError

DEFAULT = Workload()


def tune(
    workload: Annotated[Workload, tyro.conf.arg(name="")] = DEFAULT,
    tpu: str | None = None,
    anew: bool = False,
    details: bool = False,
) -> int:
    """Measure every candidate for every convolution of a model, and remember the fastest.

    Later runs of the same model on voxels like these start with the choices. There is no time
    budget: a MinkUNet takes minutes. Ctrl-C keeps what is measured so far.

    With --tpu, for TPUs that need not be there: kernels for TPUs and the defaults of other
    algorithms are compiled, and ranked by the compiler's schedules. Programs for such a TPU, as of
    `voxax export`, take the first, and on one it is measured first. Needs
    `pip install "voxax[tpu]"`.

    Args:
        workload: Model and voxels.
        tpu: Generations with commas between them, of v4, v5e, v5p, v6e, 7x: predict for these.
        anew: Measure also what the cache knows.
        details: Print every candidate with its time.
    """
    if tpu is not None:
        return _predict(workload, tpu, anew, details)
    import voxax as vx
    from voxax.hardware import describe
    from voxax.tuning import autotune_mode
    from voxax.tuning.cache import cache_for, device_name

    mode = autotune_mode()  # a mistake in the environment shows before minutes of work
    cache = cache_for(device_name(describe()))
    built = workload.build()
    print(built.title, flush=True)
    try:
        with _progress():
            report = vx.tune(built.call, *built.arguments, anew=anew)
    finally:
        saved = cache.flush()
    print(report.details() if details else report)
    if mode == "off":
        print("VOXAX_AUTOTUNE=off: runs do not read what was measured")
    print(f"cache: {cache.path}" if saved else f"cache: {cache.path} could not be written")
    return 0


def _predict(workload: Workload, generations: str, anew: bool, details: bool) -> int:
    from voxax import _compat
    from voxax.forecast import TOPOLOGIES, chip_named
    from voxax.forecast.candidates import is_known, predict_all, products_of
    from voxax.hardware import describe
    from voxax.tuning.cache import cache_for, device_name
    from voxax.tuning.key import key_of
    from voxax.tuning.messages import candidates_of, summary_of

    chips = [chip.strip() for chip in generations.split(",") if chip.strip()]
    if not chips:
        raise InputError(
            f"--tpu {generations!r} names no generation: give some of {','.join(TOPOLOGIES)}"
        )
    names = [chip_named(chip).name for chip in chips]
    if not _compat.has_libtpu():
        raise MissingExtraError('predicting for TPUs needs libtpu: pip install "voxax[tpu]"')
    built = workload.build()
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
                print(summary_of(problem, entry), flush=True)
                for line in candidates_of(entry) if details else ():
                    print(f"  {line}", flush=True)
        finally:
            saved = cache.flush()
        print(f"products: {len(products)}, known before: {len(products) - len(asked)}")
        print(f"cache: {cache.path}" if saved else f"cache: {cache.path} could not be written")
    return 0


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """How many problems are measured: a spinner on a terminal, else a line for each.

    Where ``VOXAX_AUTOTUNE_LOG`` is set, the log says it all, or nothing.
    """
    if os.environ.get("VOXAX_AUTOTUNE_LOG", "").strip():
        from voxax.tuning.environment import configure_log

        configure_log()
        yield
        return
    from rich.console import Console

    console = Console(highlight=False, stderr=True)
    log = logging.getLogger("voxax.tuning")
    with contextlib.ExitStack() as stack:
        if console.is_terminal:
            status = stack.enter_context(console.status("tuning"))
            begin, count = time.perf_counter(), 0

            def tell(line: str) -> None:
                nonlocal count
                count += 1
                seconds = time.perf_counter() - begin
                status.update(f"tuning: {count} measured, {seconds:.0f} s")
        else:

            def tell(line: str) -> None:
                console.print(line, soft_wrap=True, markup=False)

        handler = _Tuned(tell)
        level = log.level
        if log.getEffectiveLevel() > logging.INFO:
            log.setLevel(logging.INFO)
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)


class _Tuned(logging.Handler):
    """Passes on the line that the tuner writes for each problem."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("tuned "):
            self._tell(record.getMessage())
