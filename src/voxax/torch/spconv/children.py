"""Children of multiprocessing import what this process imports by the name spconv.

A spawned child, or a fork server, begins with no module of this process. Its command line runs this
file first. It installs a finder, which loads voxax's package when the child imports spconv or cumm.
Children that import neither load nothing of voxax. Other programs that this process starts are not
changed.
"""

# Runs on the standard library alone, before the child knows this process's `sys.path`.

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from multiprocessing import util
from types import ModuleType

_STARTS = ("from multiprocessing.spawn import ", "from multiprocessing.forkserver import ")
_FILE = os.path.abspath(__file__)
_BEFORE = (
    "import importlib.util as found; "
    f"spec = found.spec_from_file_location('voxax_spconv_children', {_FILE!r}); "
    "module = found.module_from_spec(spec); spec.loader.exec_module(module); module.begin(); "
)


class _Finder:
    """Finds spconv and cumm: the first import of one installs all."""

    of_voxax = True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name in ("spconv", "cumm"):
            return ModuleSpec(name, self, origin="voxax.torch.spconv", is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        importlib.import_module("voxax.torch.spconv").install()
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        del module


def begin() -> None:
    """Find spconv in this child, and in its own children."""
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    pass_on()


def pass_on() -> None:
    """Let children that multiprocessing starts from now on find spconv as :func:`begin` does."""
    start = util.spawnv_passfds
    if hasattr(start, "before_voxax"):
        return

    @functools.wraps(start)
    def start_finding(path: bytes, args: Sequence[str | bytes], passfds: Sequence[int]) -> int:
        return start(path, _preceded(args), passfds)

    start_finding.before_voxax = start  # type: ignore[attr-defined]
    util.spawnv_passfds = start_finding


def keep() -> None:
    """Undo :func:`begin` and :func:`pass_on`."""
    # Of another copy of this file where this process is itself a child.
    util.spawnv_passfds = getattr(util.spawnv_passfds, "before_voxax", util.spawnv_passfds)
    sys.meta_path[:] = [found for found in sys.meta_path if not hasattr(found, "of_voxax")]


def _preceded(args: Sequence[str | bytes]) -> list[str | bytes]:
    """Return a command line of multiprocessing with this file first; others as they are."""
    made = list(args)
    for place, text in enumerate(made):
        if isinstance(text, str) and text.startswith(_STARTS) and made[place - 1] == "-c":
            made[place] = _BEFORE + text
    return made
