"""What programs would cost on TPUs that are not there, from the compiler's own schedules.

>>> from voxax.forecast import count, render
>>> program = count("v5e", "voxax.forecast.plain:product", size=4096)  # doctest: +SKIP
>>> print(render(program))  # doctest: +SKIP

Nothing runs on a TPU, and none need be there; libtpu must be installed. See ``listing.py`` for what
is counted and how.
"""

from voxax.forecast.chip import Chip, chip_named
from voxax.forecast.compile import compile_for
from voxax.forecast.count import Request, count, count_all, outcomes
from voxax.forecast.listing import Listing, Loop, read_listing
from voxax.forecast.program import Cost, Kernel, Program
from voxax.forecast.render import LEFT_OUT, render, render_loops
from voxax.hardware.tpu import TOPOLOGIES

__all__ = [
    "LEFT_OUT",
    "TOPOLOGIES",
    "Chip",
    "Cost",
    "Kernel",
    "Listing",
    "Loop",
    "Program",
    "Request",
    "chip_named",
    "compile_for",
    "count",
    "count_all",
    "outcomes",
    "read_listing",
    "render",
    "render_loops",
]
