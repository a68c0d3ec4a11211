"""Eager calls on one CPU: NumPy and the library read arrays in place, so no size compiles anything.

A primitive is evaluated by such a body wherever its operands have values: outside of every trace,
and inside ``jax.grad`` and its like, which evaluate the primitives that they meet.
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
"""``(*NumPy arrays, **static)`` to an array, a tuple of them, or None: it does not take these.

A result is one of the arguments, or owns its memory: :func:`voxax._native.memory.empty_array` makes
one that JAX takes without a copy. Arguments are never written to.
"""


def on_host(body: HostBody) -> Callable[..., Any]:
    """Make a function of arrays of JAX, of NumPy's where they come as such, from a body for NumPy.

    It returns None where the compiled program is to run: arrays on several devices or on an
    accelerator, one of the checks of JAX for NaN, or a body that does not take the arguments.
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
    """The CPU of the operands, and whether any is committed to it; None where they are elsewhere.

    As under ``jit``, what is committed to no device is computed on the default one.
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
    """Threads for a native function that a user waits for: one for each core of this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
