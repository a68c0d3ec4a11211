"""Eager calls in NumPy: outside ``jax.jit`` a new number of rows compiles nothing.

Arrays on a CPU are read where they are. Those on accelerators stay there: the compiled functions
take them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._native import host
from voxax._native.eager import default_device

_Function = TypeVar("_Function", bound=Callable[..., Any])


def known_on_host(*values: Any) -> bool:
    """Return whether all arrays have values here, outside every trace, on one device at most.

    Inside ``jax.jit`` this is False for NumPy arrays too: shapes there must not follow from data.
    """
    arrays = [value for value in jax.tree.leaves(values) if isinstance(value, jax.Array)]
    if _compat.is_traced(arrays):
        return False
    # Of the transformations, only jit's and others' that record make tracers of constants.
    if not _compat.is_evaluating() and _compat.is_traced(jnp.zeros((), jnp.int32)):
        return False
    return len(_devices(arrays)) <= 1


def known_on_cpu(*values: Any) -> bool:
    """Return whether, moreover, no array has to be copied from an accelerator."""
    arrays = [value for value in jax.tree.leaves(values) if isinstance(value, jax.Array)]
    return known_on_host(arrays) and all(d.platform == "cpu" for d in _devices(arrays))


def _devices(arrays: Sequence[jax.Array]) -> set[Any]:
    return set().union(*(array.devices() for array in arrays))


def as_host_array(values: Any) -> np.ndarray:
    """The NumPy array of values in the dtype that JAX would give them; it may be theirs."""
    if isinstance(values, jax.Array) and any(d.platform != "cpu" for d in values.devices()):
        values = jax.device_get(values)  # asked for, as a guard of transfers wants it
    values = np.asarray(values)
    if values.dtype.kind in "OSU":  # no numbers: the caller says what they are
        return values
    return np.asarray(values, jax.dtypes.canonicalize_dtype(values.dtype))


def as_own_array(values: Any) -> jax.Array:
    """A JAX array of values. It shares no memory with NumPy, which the caller may write to."""
    return values if isinstance(values, jax.Array) else jnp.array(values)


def to_device_of(given: Any, made: Any) -> Any:
    """The NumPy arrays of ``made`` as JAX arrays, where the first JAX array in ``given`` is.

    JAX takes NumPy's memory over where it can. That of ``given`` is the caller's, so it is copied.
    """
    leaves = jax.tree.leaves(given)
    arrays = [value for value in leaves if isinstance(value, jax.Array)]
    callers = [value for value in leaves if isinstance(value, np.ndarray)]
    pinned = next((array for array in arrays if array.committed), None)
    place = None if pinned is None else pinned.sharding
    if isinstance(place, jax.sharding.NamedSharding):  # its axes may be too many for others
        place = jax.sharding.NamedSharding(place.mesh, jax.sharding.PartitionSpec())
    device = default_device() if pinned is None else next(iter(pinned.devices()))
    single = place is None or isinstance(place, jax.sharding.SingleDeviceSharding)
    single = single and device.platform == "cpu"  # others have several kinds of memory

    def put(array: Any) -> jax.Array:
        if not isinstance(array, np.ndarray):
            return jax.device_put(array, place)
        if any(np.may_share_memory(array, c) for c in callers):
            array = array.copy()
        if single:
            return _compat.put_on(device, array, committed=pinned is not None)
        return jax.device_put(array, place)

    with jax.transfer_guard_host_to_device("allow"):  # the caller asked for arrays of JAX
        return jax.tree.map(put, made)


def eagerly(
    on_host: Callable[..., Any], *, native: bool = False
) -> Callable[[_Function], _Function]:
    """Let eager calls of a compiled function run ``on_host`` where no accelerator has an array.

    Args:
      on_host: takes and returns NumPy arrays in place of the function's.
      native: only where the native library is there; without it, NumPy is slower than XLA.
    """

    def decorate(compiled: _Function) -> _Function:
        def call(*args: Any, **options: Any) -> Any:
            given = args, options
            if not known_on_cpu(given) or (native and not host.available()):
                return compiled(*args, **options)
            args, options = jax.tree.map(_as_numpy, given)
            return to_device_of(given, on_host(*args, **options))

        return cast("_Function", call)

    return decorate


def in_either(*static: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of ``(xp, *arrays)``, as :func:`eagerly` does, of one for both libraries.

    Args:
      static: names of arguments that are no arrays.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(functools.partial(function, jnp), static_argnames=static)
        return eagerly(functools.partial(function, np))(compiled)

    return decorate


def _as_numpy(value: Any) -> Any:
    return as_host_array(value) if isinstance(value, jax.Array | np.ndarray) else value
