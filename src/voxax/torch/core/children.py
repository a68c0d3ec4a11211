"""Let child processes of multiprocessing import voxax's packages by other libraries' names.

A ``spawn`` or ``forkserver`` child begins without its parent's modules. The child's command line
runs this file first, which installs import finders. A finder loads a voxax package only when the
child imports a name of the other library. Other programs that the parent starts are not changed.
"""

# This file needs only the standard library: it runs before the child knows its parent's `sys.path`.

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from multiprocessing import util
from types import ModuleType
from typing import Any

_STARTS = ("from multiprocessing.spawn import ", "from multiprocessing.forkserver import ")
_FILE = os.path.abspath(__file__)
_BEFORE = (
    "import importlib.util as found; "
    f"spec = found.spec_from_file_location('voxax_children', {_FILE!r}); "
    "module = found.module_from_spec(spec); spec.loader.exec_module(module); "
)


class _Finder:
    """Import finder that gives the modules of ``package`` the names of another library.

    If code imports one of ``names``, the function ``install`` of ``package`` is called with
    ``options``. It registers all names in ``sys.modules``.
    """

    def __init__(self, package: str, names: Sequence[str], options: Mapping[str, str]) -> None:
        self.of_voxax, self.names, self.options = package, names, options

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        loader: Any = self
        if name in self.names:
            return ModuleSpec(name, loader, origin=self.of_voxax, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        importlib.import_module(self.of_voxax).install(**self.options)
        self.spec = sys.modules[spec.name].__spec__
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # Python has replaced it by the finder's


def begin(packages: Mapping[str, tuple[Sequence[str], Mapping[str, str]]]) -> None:
    """Let this process and its later children import voxax packages by other libraries' names.

    ``packages`` maps the dotted name of each voxax package to a pair: the top-level module names of
    the other library, and the keyword arguments of the package's ``install``.
    """
    for package, (names, options) in packages.items():
        sys.meta_path.insert(0, _Finder(package, names, options))  # type: ignore[arg-type]
        pass_on(package, names, options)


def pass_on(package: str, names: Sequence[str], options: Mapping[str, str]) -> None:
    """Make later child processes of multiprocessing call :func:`begin` for ``package``.

    ``names`` are the top-level module names of the other library. ``options`` are the keyword
    arguments of the package's ``install``.
    """
    if not hasattr(util.spawnv_passfds, "of_voxax"):
        util.spawnv_passfds = _preceding(util.spawnv_passfds)
    # If this process is itself a child, another copy of this file made the function.
    util.spawnv_passfds.of_voxax[package] = names, options


def keep(package: str) -> None:
    """Undo :func:`begin` and :func:`pass_on` for the voxax package called ``package``."""
    start = util.spawnv_passfds
    if hasattr(start, "of_voxax"):
        start.of_voxax.pop(package, None)
        if not start.of_voxax:
            util.spawnv_passfds = start.__wrapped__
    sys.meta_path[:] = [f for f in sys.meta_path if getattr(f, "of_voxax", None) != package]


def _preceding(start: Callable[..., int]) -> Callable[..., int]:
    """Return ``start``, changed so that the child processes it starts call :func:`begin` first.

    ``start`` is multiprocessing's function ``spawnv_passfds``.
    """
    packages: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {}

    @functools.wraps(start)
    def start_finding(path: bytes, args: Sequence[str | bytes], passfds: Sequence[int]) -> int:
        made = list(args)
        for place, text in enumerate(made):
            if isinstance(text, str) and text.startswith(_STARTS) and made[place - 1] == "-c":
                made[place] = f"{_BEFORE}module.begin({packages!r}); {text}"
        return start(path, made, passfds)

    start_finding.of_voxax = packages  # type: ignore[attr-defined]
    return start_finding
