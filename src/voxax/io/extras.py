"""Imports the optional decoders, with one message when they are missing."""

import importlib
from types import ModuleType

from voxax.errors import MissingExtraError


def require(action: str, *modules: str) -> ModuleType:
    """Import `modules` and return the first.

    Args:
        action: what needs them, as the message begins, e.g. ``"reading .laz"``.
        *modules: top-level module names.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    try:
        loaded = [importlib.import_module(module) for module in modules]
    except ImportError as error:
        raise MissingExtraError(
            f'{action} needs {" and ".join(modules)}: pip install "voxax[io]"'
        ) from error
    return loaded[0]
