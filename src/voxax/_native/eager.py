"""Eager calls on one CPU: NumPy and the library read arrays in place, and nothing is compiled.

If the operands of a primitive have values, a function of NumPy arrays computes its result. This is
the case outside of every trace, and inside transformations that evaluate primitives immediately,
such as ``jax.grad``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from voxax import _compat
from voxax._native.host import BadRowError

HostBody = Callable[..., Any]
"""A function of ``(*NumPy arrays, **static)`` that returns an array or a tuple of arrays.

The function returns None if it does not support the arguments. It never writes to them. A result is
one of the arguments, or has its own memory; JAX uses memory of
:func:`voxax._native.host.empty_array` without a copy.
"""


def on_host(body: HostBody) -> Callable[..., Any]:
    """Return a function of JAX or NumPy arrays that calls ``body`` with NumPy arrays.

    The function returns JAX arrays, or None if the compiled program has to run instead. This is the
    case for traced arrays, for arrays on several devices or on an accelerator, while JAX checks for
    NaN or infinity, and if ``body`` does not support the arguments.
    """

    @functools.wraps(body)
    def call(*args: Any, **static: Any) -> Any:
        where = _place(args)
        if where is None:
            return None
        arrays = [np.asarray(arg) for arg in args]  # in place; waits until they are computed
        try:
            found = body(*arrays, **static)
        except BadRowError:  # the program's error names the row
            return None
        if found is None:
            return None
        device, committed = where

        def given(result: np.ndarray) -> jax.Array:
            for arg, array in zip(args, arrays, strict=True):
                if result is array:
                    if isinstance(arg, jax.Array) and (arg.committed or not committed):
                        return arg
                    # The caller may write to it, or it has another device.
                    result = result.copy()
            return _compat.put_on(device, result, committed=committed)

        with _compat.evaluating(), jax.transfer_guard_host_to_device("allow"):
            return tuple(map(given, found)) if isinstance(found, tuple) else given(found)

    return call


def _place(args: Sequence[Any]) -> tuple[Any, bool] | None:
    """Return the CPU on which an eager call computes, and whether an operand is committed to it.

    As under ``jit``, it is the default device if no operand is committed to a device. The result is
    None if the compiled program has to run instead, see :func:`on_host`.
    """
    pinned = None
    for arg in args:
        if isinstance(arg, np.ndarray):
            if jax.dtypes.canonicalize_dtype(arg.dtype) != arg.dtype:
                return None
            continue
        if not isinstance(arg, jax.Array) or _compat.is_traced(arg):
            return None
        if not isinstance(arg.sharding, jax.sharding.SingleDeviceSharding):
            return None
        if arg.committed:
            (device,) = arg.devices()
            if pinned not in (None, device):
                return None
            pinned = device
    device = default_device() if pinned is None else pinned
    if device.platform != "cpu" or device.process_index != jax.process_index():
        return None
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    return device, pinned is not None


def default_device() -> Any:
    chosen = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def threads() -> int:
    """Return the number of CPU cores that this process may use, for native functions."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
