"""Predict what a model will cost before it runs: memory, roofline and cycles on TPUs.

>>> from voxax.predict import count, render
>>> program = count("v5e", "voxax.predict.cycles:matrix_product", size=4096)  # doctest: +SKIP
>>> print(render(program))  # doctest: +SKIP

Cycles are counted in the compiler's own schedules. No TPU is needed; libtpu must be installed. The
module ``listing`` says what is counted and how.
"""

from voxax.hardware.tpu import TOPOLOGIES
from voxax.predict.chip import Chip, chip_named, compile_for
from voxax.predict.compiled_program import (
    LEFT_OUT,
    CompiledKernel,
    CompiledProgram,
    Cost,
    render,
    render_loops,
)
from voxax.predict.cycles import Request, count, count_all, outcomes
from voxax.predict.listing import Listing, Loop, read_listing
from voxax.predict.memory import MemoryLimitError, MemoryReport, fits

__all__ = [
    "LEFT_OUT",
    "TOPOLOGIES",
    "Chip",
    "CompiledKernel",
    "CompiledProgram",
    "Cost",
    "Listing",
    "Loop",
    "MemoryLimitError",
    "MemoryReport",
    "Request",
    "chip_named",
    "compile_for",
    "count",
    "count_all",
    "fits",
    "outcomes",
    "read_listing",
    "render",
    "render_loops",
]
