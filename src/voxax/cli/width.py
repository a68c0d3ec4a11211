"""The width of a network that a machine carries."""

from __future__ import annotations

import math

from voxax.hardware import HardwareInfo

# The width is chosen between these, in quarters.
NARROWEST, WIDEST = 0.5, 4.0
# On two cores the network of width 1 is trained in about two minutes.
CORES_AT_WIDTH_1 = 2
# At width 1 the demo peaks at 1.4 GB (AMD EPYC, JAX 0.10.2); the rest is left to others.
BYTES_PER_WIDTH = 2 << 30


def width_for(info: HardwareInfo) -> float:
    """The network's width for a machine: as wide as its cores and memory carry.

    | machine | width |
    |---|---|
    | CPU | ``sqrt(cores / 2)``: a step's arithmetic grows with the square of the width |
    | accelerator | 2 |
    | any | at most 1 for each 2 GiB of free memory; from 0.5 to 4, in steps of 0.25 |
    """
    width = math.sqrt(info.cpu_cores / CORES_AT_WIDTH_1) if info.platform == "cpu" else 2.0
    if info.memory_free is not None:
        width = min(width, info.memory_free / BYTES_PER_WIDTH)
    return min(max(math.floor(4 * width) / 4, NARROWEST), WIDEST)
