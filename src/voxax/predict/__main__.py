"""``python -m voxax.predict CHIPS TARGET [JSON]``: count a function's cycles on TPUs.

``CHIPS``: TPU generations, separated by commas. ``TARGET``: ``package.module:name`` or
``FILE.py:name`` of a function that returns ``(function, *shapes)``, the function to compile and the
shapes of its arguments. ``JSON``: arguments of ``TARGET``.
"""

from __future__ import annotations

import json
import sys

from voxax.errors import VoxaxError
from voxax.predict.compiled_program import LEFT_OUT, render, render_loops
from voxax.predict.cycles import count_all


def main(arguments: list[str]) -> int:
    """Count the cycles, print the tables, and return the exit status.

    ``arguments`` are those of the command line; the docstring of the module explains them.
    """
    if len(arguments) not in (2, 3):
        print(__doc__, file=sys.stderr)  # noqa: T201
        return 2
    chips, target, *more = arguments
    given = json.loads(more[0]) if more else {}
    try:
        programs = count_all([(chip, target, given) for chip in chips.split(",")])
    except VoxaxError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    for program in programs:
        print(f"== {program.chip.name}\n{render(program)}")  # noqa: T201
        if any(kernel.is_pallas and kernel.listing for kernel in program.kernels):
            print(render_loops(program))  # noqa: T201
    print(LEFT_OUT)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
