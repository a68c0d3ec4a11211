"""Choices that come with voxax, for devices where they were measured beforehand.

``defaults/<device>.json`` are copies of caches; see ``defaults/README.md``.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from pathlib import Path

from voxax.tuning import cache_file
from voxax.tuning.cache_format import Store, is_device

FOLDER = Path(__file__).parent / "defaults"

_log = logging.getLogger("voxax.tuning")


@functools.lru_cache(maxsize=64)
def shipped(device: str) -> Store:
    """The entries shipped for ``device``, marked so; none for an unknown one.

    Those that were predicted, on no such device, stay marked as that.

    Read once in a process: do not change the result.
    """
    if not is_device(device):
        return {}
    found = cache_file.read(FOLDER / f"{device}.json", device)
    if found.reason:
        _log.warning("shipped defaults for %s: %s", device, found.reason)
    return {
        key: entry if entry.predicted else dataclasses.replace(entry, source="shipped")
        for key, entry in found.store.items()
    }
