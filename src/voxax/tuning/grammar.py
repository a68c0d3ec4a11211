"""The grammar of requests: what users may write, and the names that it stands for.

================================================  =============================================
request                                           admits
================================================  =============================================
``"implicit_gemm"``, in any case                  that algorithm
an enum member whose value is such a string       that algorithm
``["a", Member, ...]``, a tuple, ``"[a, b]"``     the algorithms in it, in this order
``"auto"``, ``"all"``, alone or in a list         every registered algorithm
``None``                                          nothing of its own; see :mod:`.request`
================================================  =============================================

The ending ``_gemm`` may be left out or added where that makes a known name: the field
writes ``explicit`` and ``explicit_gemm`` for the same depthwise algorithm.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from voxax.algorithms import names
from voxax.algorithms.base import WeightKind
from voxax.errors import AlgorithmError

Request = str | enum.Enum | Sequence["str | enum.Enum"] | None
"""A name or enum member: that algorithm. A list or tuple: any of it. ``"auto"``: any. ``None``:
what the overlay, then the environment says, else any."""

Resolved = tuple[str, ...]
"""Canonical names, in the user's order, without duplicates: a filter on the search space."""

EVERYTHING = ("auto", "all")


def parse(request: Request, kind: WeightKind, origin: str) -> Resolved:
    """The algorithms that a request admits for weights of ``kind``.

    Args:
      request: anything but None.
      kind: says which names are known.
      origin: where the request was written, e.g. ``fwd_algo``; opens every message.

    Raises:
      AlgorithmError: an unknown name (lists the known ones), an empty list, or a value
        that is no request.
    """
    known = names(kind)
    admitted: dict[str, None] = {}
    for entry in _entries(request, known, origin):
        admitted.update(dict.fromkeys(_admitted(entry, known, origin)))
    return tuple(admitted)


def frozen(request: Request, kind: WeightKind, origin: str) -> Resolved | None:
    """The same request in one hashable spelling, its names checked; None stays None.

    ``"auto"`` stays a word: what it stands for depends on the kind of the weight.

    Raises:
      AlgorithmError: as :func:`parse`.
    """
    if request is None:
        return None
    known = names(kind)
    words: dict[str, None] = {}
    for entry in _entries(request, known, origin):
        found = _admitted(entry, known, origin)
        is_open = _text(entry, known, origin).strip().lower() in EVERYTHING
        words.update(dict.fromkeys(EVERYTHING[:1] if is_open else found))
    return tuple(words)


def parse_known(text: str, kind: WeightKind) -> tuple[Resolved, tuple[str, ...]]:
    """What a string written for another library admits, and the words that are unknown here."""
    known = names(kind)
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        stripped = stripped[1:-1]
    admitted: dict[str, None] = {}
    unknown = []
    for part in stripped.split(","):
        word = part.strip().lower()
        found = _canonical(word, known)
        if found is None:
            unknown.append(part.strip())
        else:
            admitted.update(dict.fromkeys(found))
    return tuple(admitted), tuple(unknown)


def _entries(request: Any, known: Resolved, origin: str) -> Sequence[Any]:
    """The members of a list, or of a string in brackets, or the one value itself."""
    if isinstance(request, list | tuple):
        entries: Sequence[Any] = request
    else:
        text = _text(request, known, origin).strip()
        if not (text.startswith("[") or text.endswith("]")):
            if "," in text:
                raise AlgorithmError(
                    f"{origin}: {text!r} names several algorithms: put them in brackets, [{text}]"
                )
            return (text,)
        if not (text.startswith("[") and text.endswith("]")):
            raise AlgorithmError(f"{origin}: unbalanced brackets in {text!r}: write [a,b]")
        inner = text[1:-1]
        entries = inner.split(",") if inner.strip() else ()
    if not entries:
        raise AlgorithmError(
            f"{origin}: an empty list admits no algorithm; known: {_listed(known)}"
        )
    return entries


def _admitted(entry: Any, known: Resolved, origin: str) -> Resolved:
    word = _text(entry, known, origin).strip()
    found = _canonical(word.lower(), known)
    if found is None:
        raise AlgorithmError(f"{origin}: unknown algorithm {word!r}; known: {_listed(known)}")
    return found


def _canonical(word: str, known: Resolved) -> Resolved | None:
    """The names that a lower-case word stands for, or None."""
    if word in EVERYTHING:
        return known
    other = word.removesuffix("_gemm") if word.endswith("_gemm") else f"{word}_gemm"
    return next(((name,) for name in (word, other) if name in known), None)


def _text(entry: Any, known: Resolved, origin: str) -> str:
    """The string of a name or of an enum member, this library's or another's."""
    text = entry.value if isinstance(entry, enum.Enum) else entry
    if isinstance(text, str):
        return text
    what = f"{entry!r} of type {type(entry).__name__}"
    if isinstance(entry, list | tuple):
        what = f"the list {entry!r} inside a list"
    raise AlgorithmError(
        f"{origin}: {what} names no algorithm: give a name, an enum member or a flat list of "
        f"them; known: {_listed(known)}"
    )


def _listed(known: Resolved) -> str:
    return ", ".join((*known, *EVERYTHING))
