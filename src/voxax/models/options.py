"""Checks of the keyword arguments of networks and of the layers to which they are passed on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from voxax.errors import InputError, check_known


def check_options(name: str, make: Callable[..., Any], options: Iterable[str]) -> None:
    """Raise :class:`InputError` for an option that is not an argument of a network's constructor.

    Args:
      name: name of the network, for the message.
      make: class of the network, or a ``functools.partial`` of it.
      options: names of keyword arguments.
    """
    kind = make.func if isinstance(make, functools.partial) else make
    known = [*inspect.signature(kind).parameters]
    for option in options:
        check_known(f"option of {name}", option, known)


def check_integers(least: int, **lists: Sequence[Any]) -> None:
    """Raise :class:`InputError` unless the named lists have only integers >= ``least``."""
    for name, values in lists.items():
        if not all(isinstance(value, int) and value >= least for value in values):
            raise InputError(f"{name}={tuple(values)} must be integers of at least {least}")
