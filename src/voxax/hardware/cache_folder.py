"""The folder on disk where tuning results, measurements and compiled programs are kept."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

VARIABLE = "VOXAX_CACHE_DIR"


def cache_dir() -> Path:
    """Return voxax's cache folder: ``VOXAX_CACHE_DIR`` if set, else in the user's cache directory.

    The folder is not created. The user's cache directory comes from the package platformdirs if it
    is installed, otherwise from the conventions of the operating system.
    """
    chosen = os.environ.get(VARIABLE)
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


def blocked(folder: Path) -> str | None:
    """Return why ``folder`` or its nearest existing parent is inaccessible; None if accessible."""
    for part in (folder, *folder.parents):
        if os.path.lexists(part):
            break
    else:
        return None
    needed = os.X_OK | (os.R_OK if part == folder else 0)
    if os.path.isdir(part) and os.access(part, needed):
        return None
    what = "may not be read by this user" if os.path.isdir(part) else "is no folder"
    return f"no caches in {folder}: {part} {what}. Set {VARIABLE} to a folder of yours, or unset it"
