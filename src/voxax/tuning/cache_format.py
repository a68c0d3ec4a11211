"""The tuning cache's file: what it says.

One JSON file for each kind of device::

    {
     "format": 1, "voxax": "0.1.0", "jaxlib": "0.10.2", "device": "cpu-...-2-cores",
     "entries": {key: [entry, ...]}
    }

A key has one entry for each jaxlib that measured it; the header's versions are those of the
last writer, for people. Whoever can write to the folder can write the file, so nothing in it is
trusted: it is data only, of limited size, checked field by field, and it names no paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from voxax._version import __version__
from voxax.tuning.entry import Entry, jaxlib_version

FORMAT = 1
MAX_BYTES = 64 << 20
MAX_ENTRIES = 20_000
MAX_KEY = 512
_MAX_DEVICE = 100
_DEVICE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LINE = 180  # a candidate

Store = dict[tuple[str, str], Entry]
"""Entries by problem and jaxlib."""


def is_device(name: Any) -> bool:
    """Whether ``name`` can be a device's: file-safe, and no path."""
    return isinstance(name, str) and len(name) <= _MAX_DEVICE and bool(_DEVICE.fullmatch(name))


def is_key(key: Any) -> bool:
    """Whether ``key`` is 1 to 512 printable ASCII characters."""
    return isinstance(key, str) and 0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()


def parse(raw: bytes) -> Any:
    """JSON of untrusted origin; ValueError for whatever is wrong with it."""
    try:
        return json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except MemoryError:
        raise ValueError("does not fit into memory") from None


def check_header(values: Any) -> None:
    """Raises ValueError unless ``values`` is an object of this format."""
    if not isinstance(values, dict):
        raise ValueError("not an object")
    if type(values.get("format")) is not int or values["format"] != FORMAT:
        raise ValueError(f"of format {str(values.get('format'))[:20]!a}, not {FORMAT}")


def entries_of(raw: Any) -> tuple[Store, list[str]]:
    """The well-formed entries in ``{key: [entry, ...]}``, and why each other was refused.

    Raises:
      ValueError: ``raw`` is not an object.
    """
    if not isinstance(raw, dict):
        raise ValueError("its entries are not an object")
    store: Store = {}
    refused = []
    for key, versions in raw.items():
        if not is_key(key) or not isinstance(versions, list):
            refused.append(f"{key[:80]!a}: not a key with a list of entries")
            continue
        for version in versions:
            try:
                entry = Entry.from_json(version)
            except ValueError as error:
                refused.append(f"{key[:80]!a}: {error}")
                continue
            if len(store) >= MAX_ENTRIES:
                refused.append(f"{key[:80]!a}: more than {MAX_ENTRIES} entries")
                continue
            add(store, key, entry)
    return store, refused


def add(store: Store, key: str, entry: Entry) -> None:
    """Merge ``entry``, the newer, into ``store``."""
    known = store.get((key, entry.jaxlib))
    store[key, entry.jaxlib] = entry if known is None else known.merged(entry)


def to_json(store: Mapping[tuple[str, str], Entry]) -> dict[str, list[dict[str, Any]]]:
    """``{key: [entry, ...]}``, sorted."""
    by_key: dict[str, list[dict[str, Any]]] = {}
    for (key, _), entry in sorted(store.items()):
        by_key.setdefault(key, []).append(entry.to_json())
    return by_key


def header() -> dict[str, Any]:
    """Format and versions."""
    return {"format": FORMAT, "voxax": __version__, "jaxlib": jaxlib_version()}


def dumps(value: Any, indent: int = 0) -> str:
    """JSON for people: what fits stands on one line."""
    line = json.dumps(value, allow_nan=False)
    if len(line) + indent <= _LINE or not value or not isinstance(value, dict | list):
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [f"{json.dumps(k)}: {dumps(v, indent + 1)}" for k, v in value.items()]
        left, right = "{", "}"
    else:
        rows = [dumps(v, indent + 1) for v in value]
        left, right = "[", "]"
    return f"{left}\n{inner}" + f",\n{inner}".join(rows) + f"\n{' ' * indent}{right}"
