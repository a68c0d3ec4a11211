"""Every exception that voxax raises on purpose.

Each message names the wrong value, its limit, and what to do instead. Every exception derives from
:class:`VoxaxError`, and from the built-in exception that a caller would expect (``ValueError``,
``ImportError``, ...), so that ``except ValueError`` keeps working.
"""

import difflib
import importlib
import operator
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any


class VoxaxError(Exception):
    """Base class of every voxax exception."""


class InputError(VoxaxError, ValueError):
    """An argument has a wrong value, shape or dtype."""


class CapacityError(VoxaxError, ValueError):
    """A result needs more rows than its array of static size (its capacity) has."""


class GeometryMismatchError(VoxaxError, ValueError):
    """Two operands have different voxel coordinates, and so cannot be combined row by row."""


class AlgorithmError(VoxaxError, ValueError):
    """A requested algorithm is unknown, or cannot run this problem on this device."""


class FileFormatError(VoxaxError, ValueError):
    """A file is unreadable, truncated, or of an unknown kind."""


class WorkerError(VoxaxError, RuntimeError):
    """A worker process of a pipeline was killed, for example because memory ran out."""


class MissingExtraError(VoxaxError, ImportError):
    """An optional dependency is not installed; the message names its extra."""


class ModuleLoadedError(VoxaxError, ImportError):
    """A package such as spconv is already loaded under the name that voxax's substitute needs."""


class UnknownNameError(VoxaxError, AttributeError):
    """An object has no attribute of this name; the message names what to use instead."""


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an ``int``; raise :class:`InputError` if it is no integer or too small.

    Args:
      name: name of the argument, for the message.
      value: the value to check: an integer of any type, but not a tracer of JAX.
      least: the smallest allowed value.
    """
    try:
        if isinstance(value, bool):
            raise TypeError("a bool is no number")
        number = operator.index(value)
    except TypeError as error:  # a float, text, or a traced integer
        raise InputError(
            f"{name}={value!r}: give an integer of at least {least}, which is static: under "
            "jax.jit too it can't be traced"
        ) from error
    if number < least:
        raise InputError(f"{name}={number} must be at least {least}")
    return number


def check_known(name: str, value: object, known: Sequence[str]) -> None:
    """Raise :class:`InputError` unless ``value`` is in ``known``; ``name`` is for the message."""
    if value not in known:
        close = difflib.get_close_matches(str(value), known, 1)
        hint = f". Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"unknown {name} {value!r}; known: {', '.join(known)}{hint}")


def listed(items: Iterable[Any], most: int = 6, show: Callable[[Any], str] = repr) -> str:
    """Return a text for messages: the first items, and how many more there are.

    Args:
      items: the items.
      most: the largest number of items to show.
      show: a function that returns the text of an item, which is cut to 200 characters.
    """
    shown = [f"{show(item):.200}" for item in items]
    more = f", and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def import_extra(action: str, extra: str, *modules: str) -> ModuleType:
    """Import modules of optional dependencies, and return the first module.

    Args:
      action: what needs the modules, as the start of the error message, e.g. ``"reading .laz"``.
      extra: the extra of voxax that installs the modules, e.g. ``"plot"``.
      modules: dotted names of the modules.

    Raises:
      MissingExtraError: a module is not installed.
    """
    try:
        first, *_ = [importlib.import_module(module) for module in modules]
    except ImportError as error:
        names = " and ".join(dict.fromkeys(module.partition(".")[0] for module in modules))
        raise MissingExtraError(f'{action} needs {names}: pip install "voxax[{extra}]"') from error
    return first
