"""Load Python objects that options name as ``FILE.py:NAME`` or ``package.module:NAME``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from voxax.errors import InputError


def load_module(target: str, what: str) -> tuple[ModuleType, str]:
    """Import the file or module of a target such as ``FILE.py:NAME``; return ``(module, NAME)``.

    Modules are searched for in the current folder too. `what` names the option in error messages.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise InputError(f"{what} is FILE.py:NAME or package.module:NAME, got {target!r}")
    if place.endswith(".py"):
        return _load_file(place, what), name
    _search(Path.cwd())  # as `python -m` does
    try:
        # If the module exists but one of its own imports fails, the error below shows that.
        known = importlib.util.find_spec(place) is not None
    except (ImportError, ValueError):
        known = False
    if not known:
        raise InputError(
            f"{what} {target}: {place!r} cannot be imported: there is no such module in "
            f"{Path.cwd()} or among the installed ones; of a file give FILE.py:NAME"
        )
    with as_input_error(f"importing {place}"):
        return importlib.import_module(place), name


def _load_file(place: str, what: str) -> ModuleType:
    file = Path(os.path.realpath(place))  # also resolves links that form a loop
    if not file.is_file():
        raise InputError(f"{what}: there is no file {place}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{what}: {place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    _search(file.parent)  # its own imports, as `python FILE.py` finds them
    with as_input_error(f"importing {place}"):
        spec.loader.exec_module(module)
    return module


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def attribute(module: ModuleType, name: str, what: str) -> Any:
    """Return the object ``module.name``; `name` may have dots. `what` begins error messages."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = ", ".join(n for n in dir(module) if not n.startswith("_"))
            raise InputError(f"{what}: {module.__name__} has no {name!r}; it has {known}")
        found = getattr(found, part)
    return found


@contextlib.contextmanager
def as_input_error(doing: str) -> Iterator[None]:
    """Convert errors of the user's code in the block to InputError; `doing` begins the message."""
    try:
        yield
    except BrokenPipeError:  # nobody reads the output any more; the command ends
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{doing} raises {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        ) from error
