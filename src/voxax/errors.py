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
    """More rows are needed than the static capacity holds."""


class GeometryMismatchError(VoxaxError, ValueError):
    """Two operands are on different coordinates."""


class AlgorithmError(VoxaxError, ValueError):
    """A requested algorithm is unknown, or cannot run this problem on this device."""


class FileFormatError(VoxaxError, ValueError):
    """A file is unreadable, truncated, or of an unknown kind."""


class MissingExtraError(VoxaxError, ImportError):
    """An optional dependency is not installed; the message names its extra."""


class ModuleLoadedError(VoxaxError, ImportError):
    """Another package with the requested name is loaded already."""


class UnknownNameError(VoxaxError, AttributeError):
    """An object has no attribute of this name; the message names what to use instead."""


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an integer, or raise :class:`InputError`.

    Args:
      name: name of the argument, for the message.
      value: a static integer of any type.
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
    """Raise :class:`InputError` unless ``value`` is one of the known names."""
    if value not in known:
        close = difflib.get_close_matches(str(value), known, 1)
        hint = f". Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"unknown {name} {value!r}; known: {', '.join(known)}{hint}")


def listed(items: Iterable[Any], most: int = 6, show: Callable[[Any], str] = repr) -> str:
    """Return a text of the first items, each cut to 200 characters, and the number of the others.

    Args:
      items: the items.
      most: the largest number of items to show.
      show: a function that returns the text of an item.
    """
    shown = [f"{show(item):.200}" for item in items]
    more = f", and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def import_extra(action: str, extra: str, *modules: str) -> ModuleType:
    """Import optional modules and return the first.

    Args:
      action: what needs the modules, as the message begins, e.g. ``"reading .laz"``.
      extra: the extra of voxax that installs them.
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
