"""Convert the named arrays of a file (positions, colors, labels, ...) into a `PointCloud`.

The arrays belong to one cloud, or to a batch of several clouds.
"""

from collections.abc import Mapping, Sequence
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
# Generic names. An array [N, k] with one of these names is the positions if no other array is.
PLAIN_NAMES = ("data", "arr_0")


def position_name(arrays: Mapping[str, Any]) -> str | None:
    """Return the name of the array that has the positions, or None if no array seems to have them.

    If x, y and z are three separate arrays, return the name of the array of x.
    """
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
    """Convert named arrays into a cloud: positions, labels and attributes.

    :mod:`voxax.io.columns` lists the known names. The positions of N points have one of these
    forms:

    - an array [N, 3];
    - an array [N, k] with k > 3; ``options.columns`` names its columns, or the names are guessed;
    - a structured array [N] with fields ``x``, ``y``, ``z``;
    - three arrays [N] with the names ``x``, ``y``, ``z``.

    An array ``origin`` (float64 [3]) is added to the positions. Every other array with N rows
    becomes labels or an attribute. An attribute with another number of rows is ignored. A single
    label is ignored too, because it is for the whole cloud. Any other number of labels raises an
    error. `source` is the name of the file, for messages.
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
        values = arrays[name]  # an array of an archive is not unpacked yet
        if name in (chosen, ORIGIN_NAME) or values.ndim not in (1, 2):
            continue
        label = name == options.label_field or find_name(LABELS, name) is not None
        rows = len(values)
        # Labels with another number of rows are a mistake, so they are kept and raise an error.
        if rows == len(first) or (label and rows > 1 and values.dtype.kind in "biuf"):
            columns[name] = np.asarray(values)
    cloud = cloud_from_columns(columns, source, options.label_field)
    if ORIGIN_NAME not in arrays:
        return cloud
    return replace(cloud, positions=cloud.positions + np.asarray(arrays[ORIGIN_NAME], np.float64))


def labels_from_arrays(
    arrays: Mapping[str, Any], source: str, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the labels, int32 [N], and the object indices in the arrays of a label file.

    The object indices are a dict ``{"instance": int32 [N]}``, which is empty if the file has no
    array ``instance``. A field of a structured array counts as an array. `label_field` is the name
    of the array with the labels. None selects the first array with a name in ``LABELS``, or the
    only array. `source` is the name of the file, for messages.
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


ITEM = "item"
"""Name of the attribute with the index of each point's cloud, for files with several clouds."""

# Names of arrays in the files of ModelNet40, ShapeNet's parts and ScanObjectNN.
DATA = "data"
POINTS = "points"
# Arrays with more columns, which the caller does not name, are rejected: rows may be the axes.
MOST_COLUMNS = 16


def chosen_items(item: int | None, count: int, source: str) -> range:
    """Return the indices of the clouds to read: 0 to `count` - 1, or only `item` if it is given.

    `count` is the number of clouds in the file `source`. Raise FileFormatError if `item` is no
    index of a cloud.
    """
    if item is None:
        return range(count)
    if not 0 <= item < count:
        raise FileFormatError(f"{source} holds {count} clouds, 0..{count - 1}: item {item} is none")
    return range(item, item + 1)


def joined_items(
    parts: Sequence[dict[str, np.ndarray]], numbers: Sequence[int]
) -> dict[str, np.ndarray]:
    """Concatenate clouds: return the columns that all `parts` have, by name.

    Each part is a dict from names to the columns, [N] or [N, k], of one cloud. These columns are
    removed from the parts, to save memory. With several parts, the result also has a column
    ``item``. It is ``numbers[i]`` at each point of part i: the index of this cloud in the file.
    """
    if len(parts) > 1:
        for number, part in zip(numbers, parts, strict=True):
            part[ITEM] = np.full(len(next(iter(part.values()))), number, np.int32)
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in names}


def cloud_from_items(arrays: Mapping[str, Any], source: str, options: ReadOptions) -> PointCloud:
    """Convert named arrays of one cloud, or of a batch of B clouds, into one `PointCloud`.

    The names and shapes are those of :func:`voxax.io.arrays.cloud_from_arrays`. In addition:

    - If no array has a name for positions, the array ``data`` has the positions. Without ``data``,
      it is the only array with 2 or 3 axes. One axis is enough if the file has no second array, or
      if ``options.columns`` is given.
    - Positions may be a flat array [N * k] of N rows, if ``options.columns`` gives the k columns.
    - Positions [B, N, k] are B clouds of N points. Then an array [B, N] or [B, N, c] has one value
      or row for each point, and an array [B] or [B, 1] has one value for all points of a cloud.
      Other arrays are ignored.

    ``options.item`` is the index of the only cloud to convert. If it is None, all clouds are
    concatenated, and the attribute ``item`` is the index of each point's cloud. `source` is the
    name of the file, for messages.
    """
    name = position_name(arrays) or _only_array(arrays, options)
    if name is None:
        listed = (f"{name} {values.dtype}{list(values.shape)}" for name, values in arrays.items())
        raise FileFormatError(
            f"{source} has no array of positions; its arrays are {', '.join(listed) or 'none'}"
        )
    shape = arrays[name].shape
    if len(shape) == 3 and 3 <= shape[2] <= MOST_COLUMNS:
        rows = _rows(arrays, shape, chosen_items(options.item, shape[0], source))
    else:
        chosen_items(options.item, 1, source)
        rows = {other: np.asarray(values[()]) for other, values in arrays.items()}
    if not _is_axis(arrays, name):
        rows[name] = _with_columns(rows[name], source, options)
    known = position_name(rows) is not None
    return cloud_from_arrays(rows if known else {POINTS: rows.pop(name)} | rows, source, options)


def _is_axis(arrays: Mapping[str, Any], name: str) -> bool:
    """Return whether the array `name` has only the x coordinates of points, ``[N]``.

    The file then has three arrays of coordinates instead of one array [N, k]. `arrays` are all
    arrays of the file by name.
    """
    return find_name((name,), POSITION[0]) is not None and len(arrays[name].shape) == 1


def _only_array(arrays: Mapping[str, Any], options: ReadOptions) -> str | None:
    if DATA in arrays:
        return DATA
    least = 1 if options.columns is not None or len(arrays) == 1 else 2
    fitting = [name for name, values in arrays.items() if least <= len(values.shape) <= 3]
    return fitting[0] if len(fitting) == 1 else None


def _rows(
    arrays: Mapping[str, Any], shape: tuple[int, ...], chosen: range
) -> dict[str, np.ndarray]:
    clouds, points = shape[:2]
    rows = {}
    for name, values in arrays.items():
        if values.shape[:2] == (clouds, points) and len(values.shape) <= 3:
            part = np.asarray(values[chosen.start : chosen.stop])
            rows[name] = part.reshape(len(chosen) * points, *part.shape[2:])
        elif values.shape in ((clouds,), (clouds, 1)):
            part = np.asarray(values[chosen.start : chosen.stop])
            rows[name] = np.repeat(part.reshape(-1), points)
    if len(chosen) < clouds or clouds == 1:
        return rows
    return rows | {ITEM: np.repeat(np.arange(clouds, dtype=np.int32), points)}


def _with_columns(values: np.ndarray, source: str, options: ReadOptions) -> np.ndarray:
    """Return the array of points `values` as [N, k] or structured [N], after checking its shape.

    A flat array [N * k] is reshaped to the number k of columns in ``options.columns``. `source`
    names the file in errors.
    """
    if values.ndim == 1 and values.dtype.names is not None:
        return values
    if values.dtype.kind not in "biuf":
        raise FileFormatError(f"{source} holds {values.dtype}, not numbers")
    if values.ndim == 1 and options.columns is not None:
        columns = options.columns
        width = columns if isinstance(columns, int) else len(columns)
        if width < 3 or len(values) % width:
            raise FileFormatError(
                f"{source} holds {len(values)} numbers, which are no rows of {width} columns"
            )
        return values.reshape(-1, width)
    if values.ndim == 2 and (options.columns is not None or 3 <= values.shape[1] <= MOST_COLUMNS):
        return values
    if values.ndim == 1:
        why = "one number for each point is labels, which are passed as labels="
    elif values.ndim == 2 and 3 <= values.shape[0] <= MOST_COLUMNS:
        why = "each row of it is an axis: transpose it"
    else:
        why = f"points are [N, k] or [B, N, k], with k from 3 to {MOST_COLUMNS}"
    raise FileFormatError(f"{source} holds an array {list(values.shape)}, not points: {why}")
