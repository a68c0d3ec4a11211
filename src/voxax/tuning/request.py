"""What a user asks for, read as a filter on the registered algorithms."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from voxax.algorithms import lookup, names
from voxax.errors import AlgorithmError

Request = str | enum.Enum | Sequence["str | enum.Enum"] | None
"""``None`` or ``"auto"``: any algorithm. A name or enum member: that one. A list: any of it."""

Resolved = tuple[str, ...]


def resolve(request: Request) -> Resolved:
    """The names that ``request`` admits, in the user's order; hashable.

    Raises:
      AlgorithmError: an unknown name (lists the known ones), or an empty list.
    """
    if request is None:
        return names()
    if isinstance(request, str | enum.Enum):
        request = [request]
    admitted: dict[str, None] = {}
    for entry in request:
        name = str(entry.value if isinstance(entry, enum.Enum) else entry).lower()
        for known in names() if name == "auto" else (lookup(name).name,):
            admitted[known] = None
    if not admitted:
        raise AlgorithmError(f"an empty list admits no algorithm; known: {', '.join(names())}")
    return tuple(admitted)
