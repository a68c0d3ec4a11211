"""Import of optional drawing libraries, with one message for missing ones."""

import importlib
from types import ModuleType

from voxax.errors import MissingExtraError


def require(module: str, extra: str = "plot") -> ModuleType:
    """Import `module`, a dotted name inside a library that comes with `extra`.

    Raises:
        MissingExtraError: the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise MissingExtraError(
            f'Drawing needs {library}, which is not installed: pip install "voxax[{extra}]"'
        ) from error
