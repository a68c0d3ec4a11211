"""Run eager calls in NumPy, so that a new number of rows compiles nothing outside ``jax.jit``.

NumPy reads arrays on a CPU in place. Arrays on accelerators stay there and are passed to compiled
functions.
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
    """Return whether NumPy code can read all arrays in the pytrees ``values``.

    It can if none of them is traced, no trace is active, and they are on at most one device. Inside
    ``jax.jit`` this is False for NumPy arrays too, because shapes must not depend on data.
    """
    arrays = [value for value in jax.tree.leaves(values) if isinstance(value, jax.Array)]
    if _compat.is_traced(arrays):
        return False
    # Only jit and other transformations that record a program turn constants into tracers.
    if not _compat.is_evaluating() and _compat.is_traced(jnp.zeros((), jnp.int32)):
        return False
    return len(_devices(arrays)) <= 1


def known_on_cpu(*values: Any) -> bool:
    """Return whether :func:`known_on_host` is True and all arrays in ``values`` are on a CPU."""
    arrays = [value for value in jax.tree.leaves(values) if isinstance(value, jax.Array)]
    return known_on_host(arrays) and all(d.platform == "cpu" for d in _devices(arrays))


def text_of(value: Any) -> str:
    """Return an array's values as a short text for a repr, or a word if it has no values."""
    if _compat.is_traced(value):
        return "traced"
    if not isinstance(value, jax.Array | np.ndarray | np.generic | int):
        return "unknown"
    try:
        return np.array2string(np.asarray(value), threshold=8, separator=", ")
    except RuntimeError:  # deleted by a donation, or on devices of another process
        return "unknown"


def _devices(arrays: Sequence[jax.Array]) -> set[Any]:
    return set().union(*(array.devices() for array in arrays))


def as_host_array(values: Any) -> np.ndarray:
    """Return ``values`` as a NumPy array in the dtype that JAX would use; share memory if possible.

    The dtype of arrays that hold no numbers, such as text, stays.
    """
    if isinstance(values, jax.Array) and any(d.platform != "cpu" for d in values.devices()):
        values = jax.device_get(values)  # explicit, so that a transfer guard allows it
    values = np.asarray(values)
    if values.dtype.kind in "OSU":  # not numbers: the caller raises a fitting error
        return values
    return np.asarray(values, jax.dtypes.canonicalize_dtype(values.dtype))


def as_own_array(values: Any) -> jax.Array:
    """Return ``values`` as a JAX array; a NumPy array is copied, as its owner may write to it."""
    return values if isinstance(values, jax.Array) else jnp.array(values)


def to_device_of(given: Any, made: Any) -> Any:
    """Convert the NumPy arrays in the pytree ``made`` to JAX arrays on the device of ``given``.

    The device is that of the first JAX array in ``given`` that is committed to a device, else the
    default device. JAX uses NumPy's memory where it can. An array that shares memory with a NumPy
    array in ``given``, which the caller may write to, is copied first.
    """
    leaves = jax.tree.leaves(given)
    arrays = [value for value in leaves if isinstance(value, jax.Array)]
    callers = [value for value in leaves if isinstance(value, np.ndarray)]
    pinned = next((array for array in arrays if array.committed), None)
    place = None if pinned is None else pinned.sharding
    if isinstance(place, jax.sharding.NamedSharding):  # other arrays may have fewer axes
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

    with jax.transfer_guard_host_to_device("allow"):  # the result must be JAX arrays
        return jax.tree.map(put, made)


def eagerly(
    on_host: Callable[..., Any], *, native: bool = False
) -> Callable[[_Function], _Function]:
    """Return a decorator: eager calls of the function on CPU arrays run ``on_host`` instead.

    Results of ``on_host`` become JAX arrays. All other calls run the decorated function.

    Args:
      on_host: the same function for NumPy arrays.
      native: True runs ``on_host`` only if the native library is available. Set it where NumPy
        alone is slower than XLA.
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
    """Return a decorator for a function whose first argument ``xp`` is ``numpy`` or ``jax.numpy``.

    The decorated function is called without ``xp``. Eager calls on CPU arrays run in NumPy. All
    other calls are compiled with ``jax.numpy``.

    Args:
      static: names of static arguments, which are no arrays.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(functools.partial(function, jnp), static_argnames=static)
        return eagerly(functools.partial(function, np))(compiled)

    return decorate


def _as_numpy(value: Any) -> Any:
    return as_host_array(value) if isinstance(value, jax.Array | np.ndarray) else value
