"""Upper limits for numbers that come from users, configurations, checkpoints or programs.

Every limit is far above the values of real trainings. A call with a number within the limit may
still fail, but does not crash the process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from voxax.errors import InputError


class Limit(NamedTuple):
    """The largest allowed value of a number, and the reason for it.

    Attributes:
      most: the largest value that is allowed.
      why: completes the sentence "it must be at most ..., since ...".
    """

    most: float
    why: str

    def check(self, name: str, value: Any, least: float = 1) -> None:
        """Raise :class:`voxax.InputError` for a value outside ``[least, most]`` or not finite.

        Args:
          name: the name under which the user gave the value, such as ``--steps``.
          value: the number to check. It must be whole if `most` is an integer.
          least: the smallest allowed value. Default: 1.
        """
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float | np.number)
            or not abs(value) < np.inf
        ):
            raise InputError(f"{name} {value!r:.80} must be a finite number")
        if isinstance(self.most, int) and value != int(value):
            raise InputError(f"{name} {value!r:.80} must be a whole number")
        if value < least:
            raise InputError(f"{name} {value!r:.80} must be at least {least}")
        if value > self.most:
            raise InputError(
                f"{name} {value!r:.80} must be at most {self.most:,}, since {self.why}"
            )


ROWS = Limit(2**30, "row numbers are 32-bit integers")
SCENES = Limit(2**30, "batch indices are 32-bit integers, and padding rows have the largest")
PROGRAM_ROWS = Limit(
    2**26, "a table of 27 taps has a place for each tap of each row, with a 32-bit number"
)
CHANNELS = Limit(2**16, "a 3x3x3 layer from so many channels to as many has 464 GB of weights")
WIDTH = Limit(32.0, "a layer of MinkUNet then has 8,192 channels, and 7 GB of weights")
STEPS = Limit(2**31 - 1, "optimizers count steps in 32-bit integers")
STEP_SCENES = Limit(4096, "the scenes of a step are in memory at once")
STREETS = Limit(100_000, "all simulated streets are kept in memory, of 2 MB each")
CLASSES = Limit(4096, "a score keeps a table of classes times classes")
WORKERS = Limit(256, "each is a process of its own, of 200 MB")
SEED = Limit(2**63 - 1, "a seed is a 64-bit integer")
DEVICES = Limit(4096, "no host has more")
VOXEL_SIZE = Limit(1e30, "a position divided by a smaller or larger one is no number of float32")
LEAST_VOXEL_SIZE = 1e-30
SIZES = Limit(2**20, "no layer, patch or grid of a network has more")
MARGIN = Limit(1000.0, "capacities beyond it are padding")
SECONDS = Limit(1e9, "it is a time in seconds")
BYTES = Limit(2**63 - 1, "sizes are 64-bit integers")
BLOCKS = Limit(256, "each block is a layer of its own to compile")
