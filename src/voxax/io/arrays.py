"""Named arrays, one for each quantity, as archives of several formats hold them.

The names are a convention of this package, and take in the usual ones.
"""

from collections.abc import Mapping

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.point_cloud import LABEL_NAMES, PointCloud

POSITION_NAMES = ("xyz", "positions", "points")
ORIGIN_NAME = "origin"


def cloud_from_arrays(arrays: Mapping[str, np.ndarray], source: str) -> PointCloud:
    """Sort named arrays into positions, labels and attributes.

    ``xyz``, ``positions`` or ``points`` [N, 3] holds the positions, to which ``origin``
    (float64 [3]) is added where present. The first of ``label``, ``labels``,
    ``semantic``, ``class`` and ``classification`` holds the labels. Every other numeric
    array with N rows is an attribute; arrays with another number of rows are not of
    the points, and are left out.

    Args:
        arrays: by name; each is read once, or not at all.
        source: goes into the cloud, and into messages.

    Raises:
        FileFormatError: there are no positions.
        InputError: the labels are not whole numbers, or have another length.
    """
    name = first_of(POSITION_NAMES, arrays)
    if name is None:
        raise FileFormatError(
            f"{source} has no {', '.join(POSITION_NAMES)}; its arrays are "
            f"{', '.join(arrays) or 'none'}"
        )
    positions = arrays[name].astype(np.float64)
    if ORIGIN_NAME in arrays:
        positions = positions + arrays[ORIGIN_NAME].astype(np.float64)
    label_name = first_of(LABEL_NAMES, arrays)
    attributes = {}
    for other in arrays:
        if other not in (name, ORIGIN_NAME, label_name):
            values = arrays[other]
            if values.ndim in (1, 2) and len(values) == len(positions):
                attributes[other] = values
    labels = None if label_name is None else arrays[label_name]
    return PointCloud(positions, attributes, labels, source)


def first_of(names: tuple[str, ...], arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return the first of `names` that `arrays` has, or None."""
    return next((name for name in names if name in arrays), None)
