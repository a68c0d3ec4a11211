"""Find and open the library, without JAX."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

_ABI = 4  # of handlers.cc


@functools.cache
def library() -> tuple[ctypes.CDLL | None, str | None]:
    """Return the library, opened at the first call, or None and the reason."""
    if os.environ.get("VOXAX_NATIVE", "on").strip().lower() in ("off", "0", "false", "no"):
        return None, "the native kernels are switched off by VOXAX_NATIVE"
    path = _path()
    if path is None:
        return None, "voxax was installed without its native kernels"
    try:
        found = ctypes.CDLL(str(path))
        if found.voxax_abi() != _ABI:
            return None, "the native kernels are of another version of voxax: install voxax again"
    except Exception as error:  # of another system, an older one, or damaged
        return None, f"the native kernels do not load: {error}"
    return found, None


def _path() -> Path | None:
    """Return the library's path. An editable install has it in a second folder of the package."""
    name = "libvoxax_native.dylib" if sys.platform == "darwin" else "libvoxax_native.so"
    paths = (Path(folder) / name for folder in sys.modules["voxax._native"].__path__)
    return next((path for path in paths if path.is_file()), None)
