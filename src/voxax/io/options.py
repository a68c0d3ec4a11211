"""Options of the file readers: information that the file itself does not contain."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from voxax._limits import Limit
from voxax.errors import InputError, check_whole

SAMPLED_POINTS = 200_000
POINTS = Limit(2**27, "each takes about 200 bytes of memory")


@dataclass(frozen=True)
class ReadOptions:
    """The arguments of :func:`voxax.io.read` for file readers; a reader uses only some of them."""

    columns: int | Sequence[str] | None = None
    label_field: str | None = None
    delimiter: str | None = None
    item: int | None = None
    points: int = SAMPLED_POINTS
    seed: int = 0

    def __post_init__(self) -> None:
        POINTS.check("points", check_whole("points", self.points))
        check_whole("seed", self.seed, 0)
        if self.item is not None:
            check_whole("item", self.item, 0)


DEFAULT = ReadOptions()


def checked_columns(
    columns: SupportsIndex | Sequence[str] | None,
) -> int | tuple[str, ...] | None:
    """Check the option `columns`; return the number or the names of columns, or None.

    `columns` is a number, a sequence of names, or text such as ``4`` or ``x,y,z,label``. Fewer than
    3 columns raise InputError.
    """
    if columns is None:
        return None
    if isinstance(columns, str):
        words = columns.replace(",", " ").split()
        columns = int(words[0]) if len(words) == 1 and words[0].isdecimal() else words
    if isinstance(columns, SupportsIndex):
        number = found = operator.index(columns)
    else:
        found = tuple(columns) if isinstance(columns, Iterable) else (columns,)
        number = len(found)
        if not all(isinstance(name, str) for name in found):
            raise InputError(f"columns must be names, or their number, got {columns!r}")
    if number < 3:
        raise InputError(f"columns {columns!r} must be at least 3, for x, y and z")
    return found
