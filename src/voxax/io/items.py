"""Arrays by name of one cloud, or of several: how the second become the first."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.arrays import cloud_from_arrays, position_name
from voxax.io.columns import POSITION, find_name
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

ITEM = "item"
"""Attribute with the number of each point's cloud, where a file holds several."""

# ModelNet40, ShapeNet's parts and ScanObjectNN.
DATA = "data"
POINTS = "points"
# An array with more is taken for one whose rows are axes, unless the caller names its columns.
MOST_COLUMNS = 16


def chosen_items(item: int | None, count: int, source: str) -> range:
    """Return the numbers of the clouds to read: one, or all.

    Raises:
        FileFormatError: `item` is none of 0..count-1.
    """
    if item is None:
        return range(count)
    if not 0 <= item < count:
        raise FileFormatError(f"{source} holds {count} clouds, 0..{count - 1}: item {item} is none")
    return range(item, item + 1)


def cloud_from_items(arrays: Mapping[str, Any], source: str, options: ReadOptions) -> PointCloud:
    """Sort named arrays, of one cloud or of several, into positions, labels and attributes.

    Names and shapes are those of :func:`voxax.io.arrays.cloud_from_arrays`. Positions may also
    have the name ``data``, or any where no other array could be meant, and one axis, row by row,
    where ``options.columns`` says how many columns they have.

    Positions [B, N, k] are B clouds: ``options.item`` takes one, else all are read, one after
    the other, and the attribute ``item`` has the number of each point's cloud. An array
    [B, N, ...] then has one row for each point, and one of [B] or [B, 1] one value for all points
    of a cloud; others are left out.

    Args:
        arrays: by name; only those clouds that are wanted are read of each.
        source: goes into the cloud, and into messages.
        options: `columns`, `item` and `label_field` are used.

    Raises:
        FileFormatError: there are no positions, they have another shape, or there is no such
            cloud.
        InputError: labels have another length.
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
    """Return whether an array is one axis of the positions, which lie in three arrays."""
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
    """Return positions as [N, k] or a table [N]."""
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
