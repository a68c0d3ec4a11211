"""``voxax explain``: which algorithms a network uses and why, or where its time goes."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from voxax.cli.workload import Workload
from voxax.errors import InputError

_PIPE_WIDTH = 200
DEFAULT = Workload()

Sensor = Literal["lidar32", "lidar64", "lidar128"]


def explain(
    workload: Annotated[Workload, tyro.conf.arg(name="")] = DEFAULT,
    details: bool = False,
    roofline: bool = False,
    width: float | None = None,
    sensor: Sensor | None = None,
    seed: int | None = None,
) -> int:
    """Explain a model, convolution by convolution: which algorithm each product uses, and why.

    Nothing is measured: choices come from requests, the tuning cache, what is shipped with voxax,
    or the default. `voxax tune` measures.

    With --roofline, for the demo's network on a simulated scan: each convolution's useful
    operations, the bytes it must move, the time that the device's matrix rate and memory
    bandwidth allow at best (measured once, see `voxax hardware --probe`), the time it took, and
    their ratio.

    Args:
        workload: Model and voxels.
        details: Print every candidate with its time.
        roofline: Run the demo's network and compare each convolution with its floor; of the
            other options, --voxel-size (0.3 by default) and the three that follow belong to it.
        width: Factor on all channels of the demo's network; 1 by default.
        sensor: Beam pattern of the simulated sweep; lidar32 by default.
        seed: Of the street; 0 by default.
    """
    if not roofline:
        for name, value in (("width", width), ("sensor", sensor), ("seed", seed)):
            if value is not None:
                raise InputError(f"--{name} {value} belongs to --roofline: give that too")
        return _choices(workload, details)
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


def _choices(workload: Workload, details: bool) -> int:
    import voxax as vx

    built = workload.build()
    report = vx.explain(built.call, *built.arguments)
    print(built.title)
    print(report.details() if details else report)
    return 0


def _roofline(width: float, voxel_size: float, sensor: Sensor, seed: int) -> int:
    from rich.console import Console
    from rich.table import Table

    import voxax as vx
    from voxax.cli.network import NetworkConfig
    from voxax.cli.scenes import Simulate
    from voxax.hardware import describe, shown
    from voxax.io.simulator import CLASS_NAMES
    from voxax.sizing.roofline import roofline as measure
    from voxax.sizing.roofline import rows

    config = NetworkConfig(CLASS_NAMES, voxel_size, width, 1e-3, 1)
    model = config.trainer().model()
    example = config.preparation()(Simulate(seed, sensor)())
    voxels = vx.plan(model, example.voxels)
    info = describe(probe=True)
    result = measure(model, voxels, info)

    title = f"MinkUNet14, width {width}, {int(voxels.count)} voxels, on {info.model}"
    table = Table("layer", "convolution", title=title)
    for name in ("GFLOP", "MB", "floor, ms", "measured, ms", "ratio"):
        table.add_column(name, justify="right")
    for cells in rows(result):
        table.add_row(*cells)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    console.print(table)
    convolutions = sum(layer.seconds for layer in result.layers)
    floors = sum(layer.floor or 0.0 for layer in result.layers)
    console.print(
        f"convolutions alone {1e3 * convolutions:.1f} ms, their floors {1e3 * floors:.1f} ms, "
        f"the whole network in one program {1e3 * result.seconds:.1f} ms"
    )
    for name in ("peak_rates", "memory_bandwidth"):
        fact = info.fact(name)
        console.print(f"{name}: {shown(name, fact.value)} (source: {fact.source})")
    return 0
