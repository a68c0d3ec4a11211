"""Register a package of voxax under another library's names, so that code runs unchanged."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from voxax.errors import ModuleLoadedError
from voxax.torch.core import children


class Aliases:
    """Registrar that makes a voxax package importable under another library's module names.

    Args:
      package: dotted name of voxax's package. Child processes call its function ``install``.
      library: name of the other library, for example ``spconv``.
    """

    def __init__(self, package: str, library: str) -> None:
        self._package = package
        self._library = library
        self._absent: Mapping[str, str] = {}
        self._options: dict[str, str] = {}
        self._modules: dict[str, ModuleType] = {}
        self._attributes: list[tuple[ModuleType, str]] = []

    @property
    def installed(self) -> bool:
        """Whether the library's names are registered now."""
        return bool(self._modules)

    def install(
        self,
        names: Mapping[str, str | ModuleType],
        absent: Mapping[str, str] | None = None,
        **options: str,
    ) -> None:
        """Register modules under the library's names, in this process and its child processes.

        Child processes are those that multiprocessing starts with ``spawn`` or ``forkserver``. A
        name such as ``cumm.tensorview`` is left out if another package ``cumm`` is loaded. A second
        call with the same options does nothing.

        Args:
          names: maps each module name of the library, parents first, to a module or to the name of
            a module in voxax's package; ``""`` names the package itself.
          absent: maps the name of each module that voxax lacks to the reason, which the error of
            its import states.
          options: arguments of the package's ``install`` in child processes.

        Raises:
          ModuleLoadedError: the library itself is loaded, or an earlier call had other options.
        """
        if self.installed:
            if options == self._options:
                return
            raise ModuleLoadedError(
                f"{self._library} is installed with {self._options}, not {options}: call "
                f"{self._package}.uninstall() first"
            )
        if loaded := sys.modules.get(self._library):
            raise ModuleLoadedError(
                f"{self._library} is already imported, from {getattr(loaded, '__file__', None)}: "
                f"call {self._package}.install() before anything imports {self._library}, or run "
                f"the script with `python -m {self._package}`"
            )
        modules = {
            name: own(self._package, module) if isinstance(module, str) else module
            for name, module in names.items()
            if name.partition(".")[0] not in sys.modules
        }
        for name, module in modules.items():
            parent, _, last = name.rpartition(".")
            if parent and not hasattr(modules[parent], last):
                setattr(modules[parent], last, module)
                self._attributes.append((modules[parent], last))
        sys.modules.update(modules)
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        self._modules, self._absent, self._options = modules, absent or {}, options
        children.pass_on(self._package, [name for name in modules if "." not in name], options)

    def uninstall(self) -> None:
        """Undo :meth:`install`. Code that has already imported the modules keeps them."""
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        for parent, name in self._attributes:
            delattr(parent, name)
        self._modules, self._attributes = {}, []
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # type: ignore[arg-type]
        children.keep(self._package)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise ModuleNotFoundError if ``name`` or a parent is in ``absent`` of :meth:`install`.

        Python calls this method when code imports ``name``. The error gives the reason. For all
        other names the method returns None, so that Python continues its search.
        """
        del path, target
        parts = name.split(".")
        if parts[0] not in self._modules:
            return
        for count in range(len(parts), 0, -1):
            if why := self._absent.get(".".join(parts[:count])):
                text = f"No module named {name!r} in {self._package}: {why}"
                raise ModuleNotFoundError(text, name=name)


def own(package: str, name: str) -> ModuleType:
    """Import and return the module ``package.name``.

    ``""`` as ``name`` means the package itself. ``".x"`` means module x of the package's parent.
    """
    return importlib.import_module(f".{name}" if name else package, package)


def tree(package: str, name: str) -> dict[str, ModuleType]:
    """Import a package and its submodules; return a dict from new names to these modules.

    The new name of ``package`` is ``name``, and that of ``package.x`` is ``name.x``. ``__main__``
    is left out. Code that imports a new name must find it registered. Otherwise Python would load
    the module a second time, with other class objects.
    """
    root = own(package, "")
    modules = {name: root}
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        last = found.name.removeprefix(f"{package}.")
        if last != "__main__":
            modules[f"{name}.{last}"] = own(package, last)
    return modules


def made(package: str, name: str, contents: Mapping[str, Any]) -> ModuleType:
    """Return a new, empty package called ``name`` with the attributes ``contents``.

    Its ``__file__`` is that of ``package``. Its ``__spec__`` is set, so that
    ``importlib.util.find_spec`` works once the package is in ``sys.modules``.
    """
    module = ModuleType(name, f"{name}, as voxax has it: see {package}.install")
    module.__path__, module.__file__ = [], own(package, "").__file__
    module.__spec__ = ModuleSpec(name, None, origin=module.__file__, is_package=True)
    vars(module).update(contents)
    return module
