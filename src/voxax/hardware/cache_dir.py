"""The folder of tuning caches and measurements."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """The path in ``VOXAX_CACHE_DIR``, else the user's cache directory. Not created.

    platformdirs is asked if installed; without it the directory is the same on Linux.
    """
    chosen = os.environ.get("VOXAX_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    try:
        return Path(importlib.import_module("platformdirs").user_cache_dir("voxax"))
    except ImportError:
        pass
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(base) / "voxax" / "voxax" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "voxax"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "voxax"
