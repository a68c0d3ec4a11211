"""``voxax hardware``."""

from __future__ import annotations

import json
from typing import Annotated

import tyro

_PIPE_WIDTH = 240


def hardware(
    device: int | None = None,
    topology: str | None = None,
    probe: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Print what this process runs on, each fact with its source.

    Args:
        device: Index of a local device; the first one by default.
        topology: A TPU topology instead, which need not be there, such as v5e:2x2. With
            libtpu installed the TPU compiler describes it, else JAX's table of chips does.
        probe: Measure copy bandwidth and matrix rates now, a few seconds, and remember them.
        json_: Print JSON instead of a table.
    """
    from voxax.errors import InputError
    from voxax.hardware import describe, remeasure

    if device is not None and topology is not None:
        raise InputError(f"--device {device} and --topology {topology}: give one of them")
    if probe and topology is not None:
        raise InputError(f"--probe measures, and {topology} is not there: leave --probe out")
    if probe:
        remeasure(device)
    info = describe(device if topology is None else topology)
    if json_:
        print(json.dumps(info.to_json(), indent=2))
        return 0

    from rich.console import Console
    from rich.table import Table

    from voxax.hardware import shown

    table = Table("fact", "value", "source", title=topology or info.device_kind)
    for name, fact in info.facts.items():
        table.add_row(name, shown(name, fact.value), fact.source)
    console = Console(highlight=False)
    if not console.is_terminal:  # a pipe has no width: lines stay in one piece
        console = Console(highlight=False, width=_PIPE_WIDTH)
    console.print(table)
    return 0
