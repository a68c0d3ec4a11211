"""The two numbers that every floor above relies on."""

import numpy as np

PAD = np.int32(2**31 - 1)
"""Coordinate written in every column of a padding row. It sorts behind all valid rows."""

COORD_LIMIT = 2**30
"""Valid lattice coordinates lie in ``[-COORD_LIMIT, COORD_LIMIT)``.

Half the int32 range, so that ``coordinate * 1 + offset * dilation`` of any kernel
that fits in memory cannot wrap around and hit a wrong voxel.
"""
