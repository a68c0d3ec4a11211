"""Measure the memory bandwidth and the matrix rates of a device, in a few seconds.

They are measured once for each kind of device, host and version of JAX, and kept on disk.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._atomic_file import write_atomically
from voxax._bounded_file import MEBIBYTE, bounded_text
from voxax.hardware.cache_folder import cache_dir
from voxax.hardware.info import Facts, facts_from

SOURCE = "probe"
_DTYPES = ("float32", "float64", "bfloat16", "float16", "int8")
# By default JAX rounds the operands of products of these dtypes on GPUs (TF32) and TPUs (one
# bfloat16 pass). The other dtypes have one kind of product.
_EXACT = ("float32", "float64")
_REVISION = 1  # increased when earlier measurements are no longer right
_SECONDS = 0.25  # for the repetitions of each quantity
_PASSES = 8
_CPU = {"bytes": 1 << 28, "size": 1024}
_OTHER = {"bytes": 1 << 30, "size": 4096}


def key_of(facts: Facts) -> str:
    """Return the file name of a measurement: device kind, model, cores, JAX version, and a digest.

    ``facts`` are the facts about the device. The digest distinguishes names that become equal when
    special characters are replaced, and revisions of the probe.
    """
    known = [facts[name].value for name in ("device_kind", "model", "cores") if name in facts]
    text = "-".join(str(part) for part in (*known, "jax", _compat.JAX_VERSION))
    digest = hashlib.sha256(f"{text}-probe-{_REVISION}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9.]+', '_', text)}-{digest}"


def remembered(key: str) -> Facts:
    """Return the measurement on disk for ``key``, or {} if there is no readable file."""
    try:
        return _facts(json.loads(bounded_text(_file(key), MEBIBYTE)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def measure(device: Any, key: str, *, again: bool = False) -> Facts:
    """Return the memory bandwidth and matrix rates of ``device``, from disk or newly measured.

    They are measured if there is no measurement on disk for ``key``, or if ``again`` is True. New
    results are stored on disk under ``key``. A folder that cannot be written is no error.
    """
    if not again and (known := remembered(key)):
        return known
    values = _measured(device)
    file = _file(key)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(values, indent=2))
    return _facts(values)


def _file(key: str) -> Path:
    return cache_dir() / "hardware" / f"{key}.json"


def _facts(values: dict[str, Any]) -> Facts:
    rates = tuple((str(name), float(rate)) for name, rate in values["peak_rates"].items())
    bandwidth = float(values["memory_bandwidth"])
    return facts_from(SOURCE, memory_bandwidth=bandwidth, peak_rates=rates or None)


def _measured(device: Any) -> dict[str, Any]:
    scale = _CPU if device.platform == "cpu" else _OTHER
    rates = {}
    for dtype in _DTYPES:
        if dtype == "float64" and device.platform == "tpu":
            continue  # emulated, which takes minutes
        try:
            rates[dtype] = _matrix_rate(device, scale["size"], dtype)
        except Exception:  # the compiler does not take the dtype
            continue
    if device.platform == "cpu":
        # On some CPUs NumPy's library is faster than XLA; the rate is the machine's best.
        for dtype in _EXACT:
            rates[dtype] = max(rates.get(dtype, 0.0), _numpy_rate(scale["size"], dtype))
    return {"memory_bandwidth": _bandwidth(device, scale["bytes"]), "peak_rates": rates}


@jax.jit
def _shift(x: jax.Array) -> jax.Array:
    # All passes are in one program, so that dispatch and page faults do not count.
    return jax.lax.fori_loop(0, _PASSES, lambda _, y: y + jnp.ones((), y.dtype), x)


@functools.partial(jax.jit, static_argnames=("precision", "out"))
def _product(a: jax.Array, b: jax.Array, precision: str, out: str) -> jax.Array:
    return jax.lax.dot(a, b, precision=precision, preferred_element_type=jnp.dtype(out))


def _bandwidth(device: Any, size: int) -> float:
    """Measure and return the memory bandwidth of ``device`` in bytes per second, read and written.

    The measured operation reads and writes an array of ``size`` bytes.
    """
    with jax.default_device(device):
        x = jnp.zeros(size // 4, jnp.float32)
    return 2 * _PASSES * size / _seconds(lambda: _shift(x))


def _matrix_rate(device: Any, size: int, dtype: str) -> float:
    """Measure and return the operations per second of a matrix product on ``device``.

    The operands are ``size`` x ``size`` in ``dtype``. A multiplication and an addition are two
    operations. Products of float32 and float64 are computed at full precision.
    """
    precision = "highest" if dtype in _EXACT else "default"
    out = {"int8": "int32", "float64": "float64"}.get(dtype, "float32")
    with jax.default_device(device), jax.enable_x64(dtype == "float64"):
        a = jnp.ones((size, size), dtype)
        return 2 * size**3 / _seconds(lambda: _product(a, a, precision, out))


def _numpy_rate(size: int, dtype: str) -> float:
    """Measure and return the operations per second of NumPy's matrix product.

    The operands are ``size`` x ``size`` in ``dtype``. A multiplication and an addition are two
    operations.
    """
    a = np.ones((size, size), dtype)
    return 2 * size**3 / _seconds(lambda: a @ a)


def _seconds(run: Callable[[], Any]) -> float:
    """Call ``run`` repeatedly, and return the seconds of the fastest call.

    After a first call that is not timed, there are at least three calls, for at least 0.25 s.
    """
    jax.block_until_ready(run())
    best, begin, runs = float("inf"), time.perf_counter(), 0
    while runs < 3 or time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(run())
        best, runs = min(best, time.perf_counter() - start), runs + 1
    return best
