"""Named arrays, one for each quantity, as archives of several formats hold them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.columns import (
    LABELS,
    POSITION,
    POSITION_ARRAYS,
    chosen_labels,
    cloud_from_columns,
    find_name,
    known_labels,
    named_rows,
)
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud

ORIGIN_NAME = "origin"
# Names that say nothing: an array [N, k] of such a name is positions where no other is.
PLAIN_NAMES = ("data", "arr_0")


def position_name(arrays: Mapping[str, Any]) -> str | None:
    """Return the name of the array with the positions, or with the first axis of them, or None."""
    for plain in POSITION_ARRAYS:
        name = find_name(arrays, plain)
        if name is not None:
            return name
    axes = [find_name(arrays, axis) for axis in POSITION]
    if None not in axes:
        return axes[0]
    for name in arrays:
        fields = arrays[name].dtype.names
        if fields and all(find_name(fields, axis) is not None for axis in POSITION):
            return name
    for name in PLAIN_NAMES:
        if name in arrays and len(arrays[name].shape) == 2 and arrays[name].shape[1] >= 3:
            return name
    return None


def cloud_from_arrays(
    arrays: Mapping[str, Any], source: str, options: ReadOptions = DEFAULT
) -> PointCloud:
    """Sort named arrays into positions, labels and attributes.

    The names are those of :mod:`voxax.io.columns`. Positions are an array [N, 3], to which
    ``origin`` (float64 [3]) is added where present; an array [N, k] with more columns, which
    ``options.columns`` names; a structured array [N] with fields ``x``, ``y``, ``z``; or three
    arrays [N] of these names. Every other array with N rows is an attribute. Arrays with another
    number of rows are not of the points and are left out; so is a label of one row, which is the
    class of the whole cloud.

    Args:
        arrays: by name.
        source: goes into the cloud, and into messages.
        options: `columns` and `label_field` are used.

    Raises:
        FileFormatError: there are no positions, or no labels where a field is asked for.
        InputError: the labels have another length.
    """
    chosen = position_name(arrays)
    if chosen is None:
        raise FileFormatError(
            f"{source} has no {', '.join(POSITION_ARRAYS)}; its arrays are "
            f"{', '.join(arrays) or 'none'}"
        )
    first = np.asarray(arrays[chosen])
    columns = {POSITION_ARRAYS[0] if chosen in PLAIN_NAMES else chosen: first}
    if first.ndim == 2 and (options.columns is not None or first.shape[1] > 3):
        columns = named_rows(first, options.columns, f"array {chosen!r} of {source}")
    for name in arrays:
        values = arrays[name]  # not unpacked yet, of an archive
        if name in (chosen, ORIGIN_NAME) or values.ndim not in (1, 2):
            continue
        label = name == options.label_field or find_name(LABELS, name) is not None
        rows = len(values)
        # Labels of another number of rows are a mistake to name rather than to leave out.
        if rows == len(first) or (label and rows > 1 and values.dtype.kind in "biuf"):
            columns[name] = np.asarray(values)
    cloud = cloud_from_columns(columns, source, options.label_field)
    if ORIGIN_NAME not in arrays:
        return cloud
    return replace(cloud, positions=cloud.positions + np.asarray(arrays[ORIGIN_NAME], np.float64))


def labels_from_arrays(
    arrays: Mapping[str, Any], source: str, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the labels of points that lie elsewhere.

    Args:
        arrays: by name; the fields of structured ones count as arrays.
        source: goes into messages.
        label_field: the array with the labels; None takes one with a usual name, or the only one.

    Returns:
        int32 [N], and ``{"instance": int32 [N]}`` where there is an array of that name.

    Raises:
        FileFormatError: it is not clear which array is meant.
        InputError: it does not hold labels.
    """
    flat: dict[str, tuple[str, str | None]] = {}
    for name, values in arrays.items():
        flat |= {f: (name, f) for f in values.dtype.names or ()} or {name: (name, None)}

    def values_of(name: str) -> np.ndarray:
        array, field = flat[name]
        return np.asarray(arrays[array]) if field is None else np.asarray(arrays[array])[field]

    sought = LABELS if label_field is None else (label_field,)
    found = [own for own in (find_name(flat, plain) for plain in sought) if own is not None]
    if label_field is None and not found and len(flat) == 1:
        found = list(flat)
    if not found:
        raise FileFormatError(
            f"{source} has no {', '.join(sorted(sought))}; its arrays are "
            f"{', '.join(flat) or 'none'}"
        )
    name, instance = found[0], find_name(flat, "instance")
    attributes = {}
    if instance is not None and instance != name:
        attributes["instance"] = known_labels(values_of(instance))
    if label_field is not None:
        return chosen_labels(values_of(name), f"array {name!r} of {source}"), attributes
    return known_labels(values_of(name)), attributes
