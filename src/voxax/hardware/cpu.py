"""Facts about the host's processor and memory, from ``/proc`` and ``/sys``, else from psutil."""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from voxax.errors import InputError
from voxax.hardware.info import Facts, facts_from, first_known

# For cgroups of version 2, then 1: the files with the memory limit, the use and the statistics, and
# the key of cached files in the statistics.
_CGROUP_MEMORY = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
_CPU0 = "sys/devices/system/cpu/cpu0"
_SMALL = 1 << 28
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30}


def host_facts(root: Path = Path("/")) -> Facts:
    """Return facts about the host of a device: its CPU cores, memory and vector extensions.

    Args:
      root: the folder that contains ``proc`` and ``sys``; another folder is for recorded files.
    """
    flags = _flags(root)
    named = None
    if flags is not None:
        named = tuple(sorted(f for f in flags if f.startswith(_PREFIXES) or f in _SINGLE))
    extensions = facts_from("/proc/cpuinfo", vector_extensions=named)
    return first_known([extensions, _cores(root), _memory(root), _psutil_memory()])


def cpu_device_facts(root: Path = Path("/")) -> Facts:
    """Return facts about the host's CPU as a JAX device; ``root`` contains ``proc`` and ``sys``."""
    host = host_facts(root)
    info, flags = _cpuinfo(root), _flags(root)
    arm = [info[key] for key in ("CPU implementer", "CPU part") if key in info]
    x86 = [f"{key} {info[key]}" for key in ("cpu family", "model") if key in info]
    alike = {
        "memory_bytes": "host_memory_bytes",
        "physical_memory_bytes": "host_memory_bytes",
        "memory_in_use": "host_memory_in_use",
        "cores": "cpu_cores",
        "cores_per_chip": "cpu_cores",
    }
    clock = _number(_text(root / f"{_CPU0}/cpufreq/cpuinfo_max_freq"))
    return first_known(
        [
            facts_from(
                "/proc/cpuinfo",
                model=info.get("model name"),
                generation=" ".join(x86 or arm) or None,
                lane_count=next((n for flag, n in _LANES if flag in (flags or ())), None),
                native_dtypes=_native_dtypes(flags),
            ),
            facts_from("/proc/self/status", memory_peak=_peak_memory(root)),
            facts_from(
                "/sys/devices/system/cpu",
                clock_hz=None if clock is None else 1e3 * clock,
                **_caches(root),
            ),
            {name: host[source] for name, source in alike.items() if source in host},
        ]
    )


def peak_memory() -> dict[str, int]:
    """Return the peak memory in bytes that this process used on the host and on its first device.

    The keys are ``host`` and ``device``. A key is missing if its value is unknown.
    """
    peaks = {}
    # VmHWM is reset when a process starts another program.
    host = _peak_memory(Path("/")) or _maximum_resident_size()
    if host is not None:
        peaks["host"] = host
    jax = sys.modules.get("jax")  # without JAX, the process uses no device
    stats = jax and jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        peaks["device"] = stats["peak_bytes_in_use"]
    return peaks


def process_memory() -> int | None:
    """Return the bytes of memory that this process uses now, or None if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        process: Any = importlib.import_module("psutil").Process()
        return process.memory_info().rss
    except Exception:
        return None


def check_host_memory(what: str, size: int, fix: str) -> None:
    """Raise :class:`voxax.InputError` if ``size`` bytes are more than the host's free memory.

    Sizes below 256 MiB pass unread, and so does any size where the free memory is unknown.

    Args:
      what: what takes the memory, the start of the message.
      size: the number of bytes that it takes.
      fix: what to do instead, the end of the message.
    """
    if size < _SMALL:
        return
    facts = _memory(Path("/")) or _psutil_memory()
    if "host_memory_bytes" not in facts or "host_memory_in_use" not in facts:
        return
    free = max(facts["host_memory_bytes"].value - facts["host_memory_in_use"].value, 0)
    if size > free:
        raise InputError(
            f"{what}: {size / 2**30:,.1f} GiB are needed, and {free / 2**30:,.1f} are free; {fix}"
        )


def _maximum_resident_size() -> int | None:
    """Return this process's peak memory in bytes from ``getrusage``; None on Windows.

    This is for systems without ``/proc``. On Linux the number survives ``exec``: a small child of a
    large process has the parent's peak.
    """
    try:
        import resource
    except ImportError:  # Windows has no resource module
        return None
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return the keys and values of the first processor in ``proc/cpuinfo`` below ``root``."""
    first = _text(root / "proc/cpuinfo").strip().split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _flags(root: Path) -> frozenset[str] | None:
    info = _cpuinfo(root)
    text = info.get("flags") or info.get("Features")  # x86, Arm
    return None if text is None else frozenset(text.split())


def _kilobytes(path: Path, key: str) -> int | None:
    match = re.search(rf"^{key}:\s+(\d+) kB", _text(path), re.MULTILINE)
    return None if match is None else 1024 * int(match[1])


def _peak_memory(root: Path) -> int | None:
    return _kilobytes(root / "proc/self/status", "VmHWM")


def _cores(root: Path) -> Facts:
    if hasattr(os, "sched_getaffinity"):
        number, source = len(os.sched_getaffinity(0)), "sched_getaffinity"
    else:
        number, source = os.cpu_count() or 1, "os.cpu_count"
    quota = _quota(root)
    if quota is not None and quota < number:
        number, source = max(math.ceil(quota), 1), "cgroup cpu quota"
    return facts_from(source, cpu_cores=number)


def _quota(root: Path) -> float | None:
    """Return how many CPU cores the container's cgroup allows, such as 1.5; None if unlimited.

    ``root`` is the folder that contains ``sys``.
    """
    limit, _, period = _text(root / "sys/fs/cgroup/cpu.max").strip().partition(" ")
    if not limit:
        limit = _text(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
        period = _text(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    if not limit.isdigit() or not period.isdigit() or not int(period):  # "max" or -1: no limit
        return None
    return int(limit) / int(period)


def _memory(root: Path) -> Facts:
    total = _kilobytes(root / "proc/meminfo", "MemTotal")
    available = _kilobytes(root / "proc/meminfo", "MemAvailable")
    if total is None:
        return {}
    used = None if available is None else total - available
    folder = root / "sys/fs/cgroup"
    for limit, usage, statistics, cache in _CGROUP_MEMORY:
        bound = _number(_text(folder / limit))
        if bound is not None and bound < total:
            inside = _number(_text(folder / usage))
            # Cached files count as use, but are freed when a process needs memory.
            words = [line.split() for line in _text(folder / statistics).splitlines()]
            cached = dict(pair for pair in words if len(pair) == 2).get(cache)
            if inside is not None and cached is not None:
                inside = max(inside - int(cached), 0)
            return facts_from("cgroup", host_memory_bytes=bound, host_memory_in_use=inside)
    return facts_from("/proc/meminfo", host_memory_bytes=total, host_memory_in_use=used)


def _psutil_memory() -> Facts:
    """Return facts about memory from psutil, for systems without ``/proc``; {} without psutil."""
    try:
        memory: Any = importlib.import_module("psutil").virtual_memory()
    except Exception:
        return {}
    used = memory.total - memory.available
    return facts_from("psutil", host_memory_bytes=memory.total, host_memory_in_use=used)


def _caches(root: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index in sorted((root / _CPU0 / "cache").glob("index*")):
        level, kind = _text(index / "level").strip(), _text(index / "type").strip()
        match = re.fullmatch(r"(\d+)([KMG]?)", _text(index / "size").strip())
        if kind != "Instruction" and match and level in ("1", "2", "3"):
            sizes[f"l{level}_cache_bytes"] = int(match[1]) << _SHIFTS[match[2]]
    return sizes


# Number of float32 values in one register, by CPU flag (the Linux kernel's names on x86 and Arm),
# widest first.
_LANES = (
    ("avx512f", 16),
    ("avx2", 8),
    ("avx", 8),
    ("sve", 4),  # at least: the flags do not give the length of SVE
    ("asimd", 4),
    ("sse2", 4),
)
_PREFIXES = ("sse", "ssse", "avx", "amx", "sve", "sme_", "asimd")
_SINGLE = ("sme", "sme2", "fma", "f16c", "neon", "bf16", "fphp", "i8mm", "rvv", "altivec", "vsx")
_ALWAYS = ("float32", "float64", "int8", "int16", "int32", "int64")
_DTYPES = {
    "float16": ("avx512_fp16", "amx_fp16", "fphp", "asimdhp"),
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
}


def _native_dtypes(flags: Collection[str] | None) -> tuple[str, ...] | None:
    """Return the names of the dtypes in which a CPU computes natively; None without ``flags``.

    ``flags`` are the CPU's features, as ``/proc/cpuinfo`` names them.
    """
    if flags is None:
        return None
    more = (dtype for dtype, needed in _DTYPES.items() if any(f in flags for f in needed))
    return (*_ALWAYS, *more)
