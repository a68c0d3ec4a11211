"""``voxax hardware`` prints facts about a device, such as memory, bandwidth and matrix rates."""

from __future__ import annotations

import json
from typing import Annotated

import tyro


def hardware(
    device: int | None = None,
    topology: str | None = None,
    probe: bool = False,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Print facts about a device and its host, such as its memory, with their sources.

    Args:
      device: Index of a local device; the first one by default.
      topology: TPU topology to describe instead, such as v5e:2x2; no TPU is needed. The facts are
          from the TPU compiler if libtpu is installed, otherwise from JAX's table of chips.
      probe: Measure copy bandwidth and matrix rates now (a few seconds), and remember them.
      json_: Print JSON instead of a table.
    """
    from voxax.cli.progress import print_table
    from voxax.errors import InputError
    from voxax.hardware import describe, remeasure, shown

    if device is not None and topology is not None:
        raise InputError(f"--device {device} and --topology {topology}: give one of them")
    if probe and topology is not None:
        raise InputError(f"--probe measures, and {topology} is absent: leave --probe out")
    if probe:
        remeasure(device)
    info = describe(device if topology is None else topology)
    if json_:
        print(json.dumps(info.to_json(), indent=2))
        return 0
    rows = [(name, shown(name, fact.value), fact.source) for name, fact in info.facts.items()]
    print_table(("fact", "value", "source"), rows, topology or info.device_kind, most=240)
    return 0
