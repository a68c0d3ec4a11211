"""The native library: C++ kernels for CPUs, which XLA programs and NumPy code of voxax call.

The library is optional. If it is missing, cannot be loaded, or does not support the installed
jaxlib's foreign function interface, :func:`unavailable` returns the reason, and ordinary JAX code
runs instead. It is loaded at the first use. The environment variable ``VOXAX_NATIVE=off`` disables
it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

CALLS = {
    "voxax_product": 1,
    "voxax_weight_product": 1,
    "voxax_depthwise": 1,
    "voxax_depthwise_gradients": 1,
    "voxax_extreme_rows": 1,
    "voxax_batch_norm": 1,
    "voxax_batch_norm_gradients": 1,
    "voxax_activation": 1,
    "voxax_row_norm": 1,
    "voxax_row_norm_gradients": 1,
    "voxax_scene_norm": 1,
    "voxax_scene_norm_gradients": 1,
    "voxax_scene_sums": 1,
    "voxax_scene_rows": 1,
    "voxax_scene_extremes": 1,
    "voxax_scene_extremes_gradients": 1,
    "voxax_add_rows": 1,
    "voxax_cat": 1,
    "voxax_cat_gradients": 1,
    "voxax_linear": 1,
    "voxax_linear_gradients": 1,
    "voxax_cross_entropy": 1,
    "voxax_cross_entropy_gradients": 1,
    "voxax_attention": 1,
    "voxax_attention_gradients": 1,
    "voxax_dropout": 1,
    "voxax_fold_in": 1,
    "voxax_permutation": 1,
    "voxax_find_neighbors": 1,
    "voxax_sort_rows": 1,
    "voxax_unique_rows": 1,
    "voxax_invert_table": 1,
    "voxax_list_pairs": 1,
    "voxax_search_points": 1,
}
"""The functions that XLA calls: the version of the interface of each function, by its name.

Exported programs in files call these functions, so raise a function's version when its operands,
attributes or results change.
"""
_ABI = 12  # the number in handlers.cc


def unavailable() -> str | None:
    """Return the reason why this process cannot use the native kernels, or None."""
    return _loaded()[1]


def refusal(calls: Mapping[str, int]) -> str | None:
    """Return the reason why this process cannot run an exported program, or None if it can.

    Args:
      calls: dict from the name of each native function that the program calls to the version of
        the function that it needs, as in :data:`CALLS`.
    """
    reason = unavailable() if calls else None
    if reason is not None:
        return reason
    for name, version in calls.items():
        if name not in CALLS:
            return f"this version of voxax has no native function {name}"
        if version != CALLS[name]:
            return f"it calls version {version} of {name}, and this voxax has {CALLS[name]}"
    return None


def target(name: str) -> str:
    """Return the FFI target name under which this process calls the library function ``name``.

    The target name contains the version of the library's interface, because such names are in the
    keys of JAX's compilation cache: a program for another version would pass wrong arguments.
    Exported programs in files use ``name`` itself, and state the versions that they need.
    """
    return f"{name}_{_ABI}"


def simd() -> str | None:
    """Return the kernels' instruction set: ``avx512``, ``avx2`` or ``portable``.

    The result is None without the library.
    """
    library, _ = _loaded()
    return None if library is None else library.voxax_simd().decode()


def fingerprint() -> str | None:
    """Return a digest of the library's file and instruction set, or None without the library."""
    path, used = _path(), simd()
    return None if path is None or used is None else f"{_digest(path)} {used}"


@functools.cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def use_simd(name: str | None) -> bool:
    """Make the native kernels use the instruction set ``name``, and return True.

    The names are those of :func:`simd`; None takes the best one. If this CPU or the library does
    not have it, nothing changes, and the result is False.
    """
    library, _ = _loaded()
    return library is not None and bool(library.voxax_use_simd(name and name.encode()))


@functools.cache
def _loaded() -> tuple[ctypes.CDLL | None, str | None]:
    """Load the library of native kernels, and register its functions in XLA.

    Return ``(library, None)``, or ``(None, reason)`` if the native kernels cannot be used.
    """
    found, reason = library()
    if found is None:
        return None, reason
    try:
        return _registered(found)
    except Exception as error:
        return None, f"the native kernels do not load: {error}"


def _registered(library: ctypes.CDLL) -> tuple[ctypes.CDLL | None, str | None]:
    import jax  # here, since PyTorch calls the library without it

    library.voxax_simd.restype = ctypes.c_char_p
    library.voxax_use_simd.argtypes = [ctypes.c_char_p]
    built = library.voxax_ffi_major(), library.voxax_ffi_minor()
    installed = _interface()
    # Registering a handler of a newer interface would stop the whole CPU backend.
    if installed is None or built[0] != installed[0] or built[1] > installed[1]:
        found = "unknown" if installed is None else "{}.{}".format(*installed)
        return None, (
            f"the native kernels were built for XLA's foreign function interface {built[0]}."
            f"{built[1]}, and that of the installed jaxlib is {found}"
        )
    capsules = [(name, jax.ffi.pycapsule(getattr(library, name))) for name in CALLS]
    for name, capsule in capsules:
        for called in (name, target(name)):
            jax.ffi.register_ffi_target(called, capsule, platform="cpu")
    return library, None


def _interface() -> tuple[int, int] | None:
    """Return the version of XLA's foreign function interface in the installed jaxlib.

    The result is ``(major, minor)``, or None if the version is unknown.
    """
    import jax

    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return None
    numbers = re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", text)
    found = {name: int(number) for name, number in numbers}
    return (found["MAJOR"], found["MINOR"]) if len(found) == 2 else None


@functools.cache
def library() -> tuple[ctypes.CDLL | None, str | None]:
    """Open the library at the first call; return ``(library, None)``, or ``(None, why not)``."""
    if os.environ.get("VOXAX_NATIVE", "on").strip().lower() in ("off", "0", "false", "no"):
        return None, "the native kernels are switched off by VOXAX_NATIVE"
    path = _path()
    if path is None:
        return None, "voxax was installed without its native kernels"
    try:
        found = ctypes.CDLL(str(path))
        if found.voxax_abi() != _ABI:
            return None, "the native kernels are of another version of voxax: install voxax again"
    except Exception as error:  # a library of another or older system, or damaged
        return None, f"the native kernels do not load: {error}"
    return found, None


def _path() -> Path | None:
    """Return the path of the native kernels' shared library, or None if it is not installed."""
    name = "libvoxax_native.dylib" if sys.platform == "darwin" else "libvoxax_native.so"
    paths = (Path(folder) / name for folder in __path__)
    return next((path for path in paths if path.is_file()), None)
