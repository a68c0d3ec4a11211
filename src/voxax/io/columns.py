"""Convert the named columns of a file into a `PointCloud`; all formats use the names below.

| quantity | names, in order of precedence |
|---|---|
| positions | ``x y z``; ``Points:0 ...`` (ParaView), ``Points_m_XYZ:0 ...`` (VeloView); or an array ``xyz``, ``positions``, ``points``, ``coord``, ``coords``, ``pos``, ``pts``, ``point_cloud`` |
| ``rgb`` | ``red green blue``, ``r g b``, ``diffuse_red ...``; an array ``rgb``, ``rgba``, ``color(s)``, ``colour(s)``; packed ``rgb``, ``rgba`` |
| ``normals`` | ``nx ny nz``, ``normal_x normal_y normal_z``; an array ``normals``, ``normal`` |
| labels | see ``LABELS`` |

Case does not matter. The prefix ``scalar_``, which CloudCompare adds to names, is ignored.
"""  # noqa: E501  (a table)

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from voxax.errors import FileFormatError, InputError
from voxax.io.point_cloud import INT32, PointCloud, as_labels, to_uint8

POSITION: tuple[str, ...] = ("x", "y", "z")
# The first group whose names are all in the file is used. The last two are for ParaView, VeloView.
POSITIONS = (
    POSITION,
    ("points:0", "points:1", "points:2"),
    ("points_m_xyz:0", "points_m_xyz:1", "points_m_xyz:2"),
)
POSITION_ARRAYS = ("xyz", "positions", "points", "coord", "coords", "pos", "pts", "point_cloud")
COLOR = ("red", "green", "blue")
COLORS = (
    COLOR,
    ("r", "g", "b"),
    ("diffuse_red", "diffuse_green", "diffuse_blue"),
)
PACKED_COLORS = ("rgb", "rgba")
COLOR_ARRAYS = (*PACKED_COLORS, "color", "colors", "colour", "colours")
NORMALS = (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))
NORMAL_ARRAYS = ("normals", "normal")
LABELS = (
    "semantic",  # KITTI-360, whose `instance` is the object
    "semantic_label",
    "semantic_labels",
    "semantic_class",
    "semantic_gt",
    "semantic_gt20",  # ScanNet as Pointcept's first releases store it
    "segment",  # ScanNet in Pointcept's later releases
    "sem_class",  # DALES Objects, whose `ins_class` is the object
    "sem_label",
    "sem_labels",
    "class",  # S3DIS, SensatUrban; Paris-Lille-3D and Paris-rue-Madame, whose `label` is the object
    "label",  # ScanNet, Toronto-3D (scalar_Label), the Point Cloud Library
    "labels",
    "classification",  # LAS, and CloudCompare's conversions of it
    "category",
    "class_id",
    "category_id",
)
"""Names of columns with class ids, in order of precedence. The first of these columns that has only
whole numbers becomes the label. The others become attributes: in a file with ``class`` and
``label``, for example, ``label`` is usually the number of the object."""

# Attributes that PointCloud documents. They get these names in any spelling of the file.
ATTRIBUTES = ("intensity", "ring", "time", "instance")
# CloudCompare writes every column of its own with this prefix.
CLOUDCOMPARE_PREFIX = "scalar_"
# Name that a caller gives to a column to skip, such as padding.
SKIPPED = "_"
# Number of rows that stay in the processor's cache while their columns are copied.
_BLOCK = 1 << 16
UNKNOWN = -1
# Values for a class that is not set: the largest unsigned number, and NaN converted to an integer.
_UNSET = (2**32 - 1, 2**63 - 1, 2**64 - 1, -(2**63))


def cloud_from_columns(
    columns: Mapping[str, np.ndarray], source: str, label_field: str | None = None
) -> PointCloud:
    """Convert named columns into a cloud: positions, colors, normals, labels and attributes.

    Columns of N points are arrays [N] or [N, k], or structured arrays [N], whose fields are
    columns. The module :mod:`voxax.io.columns` lists the known names. Every other column becomes an
    attribute with its name, without CloudCompare's prefix ``scalar_``. In an array of positions,
    the columns after the third become ``column_3``, ``column_4`` and so on. `label_field` is the
    name of the column with the labels; None takes the first of ``LABELS`` with whole numbers.
    `source` is the name of the file, for messages.
    """
    named = _Columns(columns)
    positions = named.stacked(POSITIONS, np.float64)
    if positions is None:
        positions = named.array(POSITION_ARRAYS)
        if positions is None:
            missing = [name for name in POSITION if named.find(name) is None]
            what = f"no column {', '.join(missing)}" if missing else "no numbers as x, y, z"
            raise FileFormatError(
                f"{source} has {what}; its columns are {', '.join(columns) or 'none'}"
            )
        if positions.ndim == 2 and positions.shape[1] > 3:
            for column in range(3, positions.shape[1]):
                named.put(f"column_{column}", positions[:, column])
            positions = positions[:, :3]
    labels = named.labels(label_field, source)
    rgb = named.colors()
    normals = named.stacked(NORMALS)
    if normals is None:
        normals = named.array(NORMAL_ARRAYS, widths=(3,))
    taken = {} if rgb is None else {"rgb": rgb}
    if normals is not None:
        taken["normals"] = _owned(normals)
    return PointCloud(positions, named.rest(taken), labels, source)


def free_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, followed by as many ``_`` as make it different from all names in `taken`."""
    while name in taken:
        name += "_"
    return name


def find_name(names: Collection[str], plain: str) -> str | None:
    """Search `names` for the name `plain`; return it as written in `names`, or None if missing.

    The name is also found if it differs from `plain` in case, in outer spaces or in the prefix
    ``scalar_``. A name that is exactly equal takes precedence.
    """
    if plain in names:
        return plain
    return next((name for name in names if _plain(name) == _plain(plain)), None)


class _Columns:
    """The columns of a file by name; methods that return a column also remove it."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._columns: dict[str, np.ndarray] = {}
        for name, values in columns.items():
            if values.dtype.names is None:
                self.put(name, values)
            else:
                for field in values.dtype.names:
                    self.put(field, values[field])

    def put(self, name: str, values: np.ndarray) -> None:
        self._columns[free_name(name, self._columns)] = values

    def find(self, plain: str) -> str | None:
        return find_name(self._columns, plain)

    def stacked(
        self, groups: Iterable[tuple[str, ...]], dtype: type | None = None
    ) -> np.ndarray | None:
        """Stack the columns of the first complete group into one array [N, k], and remove them.

        A group is k column names. It is complete if each of these columns exists and has numbers.
        Return None if none of the `groups` is complete. `dtype` is the type of the result; None
        takes NumPy's common type of the columns.
        """
        for group in groups:
            names = [self.find(plain) for plain in group]
            if all(name is not None and _is_numbers(self._columns[name], 1) for name in names):
                parts = [self._columns.pop(name) for name in names if name is not None]
                return _stacked(parts, dtype or np.result_type(*parts))
        return None

    def array(
        self, plains: Iterable[str], widths: tuple[int, ...] | None = None
    ) -> np.ndarray | None:
        """Remove and return the first of the columns named in `plains` that exists, or None.

        Names are compared as by :func:`find_name`. With `widths`, only arrays [N, k] of numbers
        with k in `widths` are considered.
        """
        for plain in plains:
            name = self.find(plain)
            if name is not None:
                values = self._columns[name]
                if widths is None or (_is_numbers(values, 2) and values.shape[1] in widths):
                    return self._columns.pop(name)
        return None

    def colors(self) -> np.ndarray | None:
        """Remove the color columns, and return them as uint8 [N, 3]; None if there are none.

        A fourth color becomes the column ``alpha``.
        """
        found = self.stacked(COLORS)
        if found is None:
            found = self.array(COLOR_ARRAYS, widths=(3, 4))
        if found is not None:
            if found.shape[1] == 4:
                self.put("alpha", found[:, 3])
            return to_uint8(found[:, :3])
        for plain in PACKED_COLORS:
            name = self.find(plain)
            if name is not None:
                values = self._columns[name]
                if _is_numbers(values, 1) and values.dtype.itemsize in (4, 8):
                    return unpacked_colors(self._columns.pop(name))
        return None

    def labels(self, label_field: str | None, source: str) -> np.ndarray | None:
        if label_field is not None:
            name = self.find(label_field)
            if name is None:
                raise FileFormatError(
                    f"{source} has no column {label_field!r} to take labels from; its columns are "
                    f"{', '.join(self._columns) or 'none'}"
                )
            return chosen_labels(self._columns.pop(name), f"column {name!r} of {source}")
        for plain in LABELS:
            name = self.find(plain)
            labels = None if name is None else labels_of(self._columns[name])
            if labels is not None:
                del self._columns[name]  # type: ignore[arg-type]
                return labels
        return None

    def rest(self, kept: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Add all remaining columns to the dict `kept`, and return `kept`.

        A column whose name is already in `kept` gets another name, so nothing is replaced.
        """
        for name, values in self._columns.items():
            plain = _plain(name)
            own = plain if plain in ATTRIBUTES else _without_prefix(name)
            if own != name and (own in self._columns or own in kept):
                own = name
            kept[free_name(own, kept)] = _owned(values)
        return kept


def _stacked(parts: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    """Stack the k columns `parts`, each [N], into one array [N, k] of type `dtype`.

    Columns may be fields of one structured array, so each column's values are not contiguous. Rows
    are therefore copied in blocks that fit the cache. Columns of unequal length raise InputError.
    """
    rows = len(parts[0])
    if any(len(part) != rows for part in parts):
        lengths = ", ".join(str(len(part)) for part in parts)
        raise InputError(f"columns that belong together have {lengths} rows")
    stacked = np.empty((rows, len(parts)), dtype)
    for begin in range(0, rows, _BLOCK):
        for axis, part in enumerate(parts):
            stacked[begin : begin + _BLOCK, axis] = part[begin : begin + _BLOCK]
    return stacked


def _is_numbers(values: np.ndarray, dimensions: int) -> bool:
    return values.ndim == dimensions and values.dtype.kind in "biuf"


def _without_prefix(name: str) -> str:
    prefixed = name.lower().startswith(CLOUDCOMPARE_PREFIX)
    return name[len(CLOUDCOMPARE_PREFIX) :] if prefixed else name


def _plain(name: str) -> str:
    return _without_prefix(name).strip().lower()


def _owned(values: np.ndarray) -> np.ndarray:
    """Return `values` as a contiguous array in native byte order that owns its memory."""
    native = values.dtype.newbyteorder("=")
    owned = type(values) is np.ndarray and values.base is None and values.flags.c_contiguous
    return values if owned and values.dtype == native else np.array(values, native, order="C")


def labels_of(values: np.ndarray, fractions_unknown: bool = False) -> np.ndarray | None:
    """Convert a column [N] or [N, 1] to labels, int32 [N]; return None if it has no class ids.

    Class ids are whole numbers in the range of int32, in a column of any numeric type. The value
    for "not set" (the largest unsigned number of 32 or 64 bits) becomes -1. In a column of floats,
    so do NaN and numbers with an absolute value of 2**32 - 1 or more. If `fractions_unknown`,
    fractions also become -1; by default a column with a fraction has no class ids. A column in
    which all values would become -1 has no class ids either.
    """
    column = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        return None
    if column.dtype.kind == "f":
        # 2**32 - 1 rounds to 2**32 in float32; NaN fails the comparison.
        unset = ~(np.abs(column) < 2**32 - 1)
        fractions = ~unset & (column != np.rint(column))
        if fractions.any() and not fractions_unknown:
            return None
        unset |= fractions
    elif np.can_cast(column.dtype, np.int32):
        return column.astype(np.int32)
    else:
        limits = np.iinfo(column.dtype)
        held = [value for value in _UNSET if limits.min <= value <= limits.max]
        unset = np.isin(column, np.array(held, column.dtype))
    known = np.where(unset, np.zeros((), column.dtype), column)
    if len(known) and (unset.all() or known.min() < INT32.min or known.max() > INT32.max):
        return None
    return np.where(unset, np.int32(UNKNOWN), known.astype(np.int32))


def known_labels(values: np.ndarray) -> np.ndarray:
    """Convert class ids [N] or [N, 1] to labels, int32 [N], as :func:`labels_of` does.

    Raise InputError if `values` has no class ids, for which :func:`labels_of` returns None.
    """
    labels = labels_of(values)
    return as_labels(values) if labels is None else labels


def chosen_labels(values: np.ndarray, what: str) -> np.ndarray:
    """Convert a column that the user chose as the labels to int32 [N]; fractions become -1.

    Raise FileFormatError if the column has no class ids; `what` is its name in the message.
    """
    labels = labels_of(values, fractions_unknown=True)
    if labels is None:
        some = ", ".join(str(value) for value in values.flat[:3])
        raise FileFormatError(
            f"{what} holds no labels, which are whole numbers [N] within int32: it is "
            f"{values.dtype} {list(values.shape)}, such as {some or 'nothing'}"
        )
    return labels


def unpacked_colors(packed: np.ndarray) -> np.ndarray:
    """Convert N numbers 0xAARRGGBB of 4 or 8 bytes to red, green and blue, uint8 [N, 3].

    The Point Cloud Library stores the bits of this integer as a float32, and some writers convert
    that float32 to float64. Other writers store the value of the integer, as an integer or a float.
    Floats are taken as values if all of them are whole and some are above 0, because bits of
    colors rarely give whole floats. The usual NaN, 0x7FC00000, becomes black.
    """
    packed = np.ascontiguousarray(packed).astype(packed.dtype.newbyteorder("="), copy=False)
    if packed.dtype.kind == "f":
        limit = 2.0**24 if packed.dtype.itemsize == 4 else 2.0**32
        with np.errstate(all="ignore"):
            known = packed[np.isfinite(packed)]
            whole = (known == np.rint(known)) & (known >= 0) & (known < limit)
            if whole.all() and (known > 0).any():
                packed = np.where(np.isfinite(packed), packed, 0).astype(np.uint32)
            else:
                packed = packed.astype(np.float32).view(np.uint32)
                packed = np.where(packed == 0x7FC00000, np.uint32(0), packed)
    bits = packed.astype(np.uint64)
    return np.stack([(bits >> shift & 0xFF).astype(np.uint8) for shift in (16, 8, 0)], axis=1)


def named_rows(
    rows: np.ndarray, columns: int | Sequence[str] | None, source: str
) -> dict[str, np.ndarray]:
    """Name the columns of an array [N, k]; return a dict from names to columns [N].

    `columns` are k names; a column with the name ``_`` is skipped. If `columns` is the number k or
    None, :func:`voxax.io.columns.shown_names` guesses the names from the values. Raise
    FileFormatError if `columns` has another number than k, or if k is below 3. `source` is the name
    of the file, for messages.
    """
    width = rows.shape[1]
    if columns is None or isinstance(columns, int):
        given, names = width if columns is None else columns, ()
    else:
        names = tuple(columns)
        twice = {name for name in names if name != SKIPPED and names.count(name) > 1}
        if twice:
            raise InputError(f"columns {', '.join(names)}: {', '.join(sorted(twice))} stands twice")
        given = len(names)
    if given != width or width < len(POSITION):
        said = f", not the {given} that columns says" if given != width else ": 3 are needed"
        raise FileFormatError(f"{source} has {width} columns{said}")
    names = names or shown_names([*rows.T])
    return {name: rows[:, k] for k, name in enumerate(names) if name != SKIPPED}


# Number of rows that are checked first. All rows are checked only if these rows fit.
GLANCE = 1000
# Data sets that store classes next to colors have smaller class numbers than this.
A_COLOR = 32
A_BYTE = 255


def shown_names(columns: Sequence[np.ndarray]) -> tuple[str, ...]:
    """Guess the names of three or more columns [N] from their order and values.

    - ``x``, ``y``, ``z``: the first three columns.
    - ``nx``, ``ny``, ``nz``: three neighboring columns of unit vectors.
    - ``red``, ``green``, ``blue``: three neighboring columns of whole numbers from 0 to 255, of
      which at least one number is 32 or more. If there are several such triples, each of the three
      columns must have such a number.
    - ``alpha``: a column of 255 after one triple of whole numbers from 0 to 255, whose last column
      has others too. This triple is the colors then, even if all its numbers are below 32.
    - ``column_3``, ``column_4`` and so on, by index: all other columns. Normals and colors get
      such names too if more than one triple remains for them.
    """
    names = ["x", "y", "z", *(f"column_{column}" for column in range(3, len(columns)))]
    triples = {start: columns[start : start + 3] for start in range(3, len(columns) - 2)}
    normals = [start for start, triple in triples.items() if _are_unit(triple)]
    if len(normals) == 1:
        names[normals[0] : normals[0] + 3] = "nx", "ny", "nz"
    opaque = [
        start
        for start, triple in triples.items()
        if _are_bytes(triple)
        and [np.all(one == A_BYTE) for one in columns[start + 2 : start + 4]] == [False, True]
    ]
    if len(opaque) == 1:
        names[opaque[0] + 3] = "alpha"
        colors = opaque
    else:
        # Smaller values are classes or numbers of laser returns.
        colors = [s for s, t in triples.items() if _are_bytes(t) and max(map(np.max, t)) >= A_COLOR]
        if len(colors) > 1:
            colors = [start for start in colors if min(map(np.max, triples[start])) >= A_COLOR]
    if len(colors) == 1:
        names[colors[0] : colors[0] + 3] = "red", "green", "blue"
    return tuple(names)


def _are_unit(triple: Sequence[np.ndarray]) -> bool:
    for rows in (slice(GLANCE), slice(None)):
        squared = sum(np.square(column[rows], dtype=np.float64) for column in triple)
        if not np.all(np.abs(squared - 1) < 0.02):
            return False
    return any(np.any(column % 1) for column in triple)


def _are_bytes(triple: Sequence[np.ndarray]) -> bool:
    for rows in (slice(GLANCE), slice(None)):
        for column in triple:
            part = column[rows]
            if not np.all((part >= 0) & (part <= A_BYTE) & (part == np.rint(part))):
                return False
    return True
