"""The package under spconv's own names, so that code which imports spconv runs unchanged."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from voxax.errors import ModuleLoadedError

_PACKAGE = "voxax.torch.spconv"
_installed: dict[str, ModuleType] = {}


def install() -> None:
    """Make ``import spconv.pytorch`` import this package, until :func:`uninstall`.

    Registers ``spconv``, ``spconv.pytorch`` with its modules, ``spconv.core``,
    ``spconv.constants``, ``spconv.utils``, ``spconv.tools``, ``spconv.test_utils``, and
    ``cumm.tensorview`` where cumm itself is not loaded. They are the modules of this package, not
    copies. Does nothing when it has been done already.

    Raises:
      ModuleLoadedError: spconv itself is loaded; its layers would not take these tensors.
    """
    if _installed:
        return
    if loaded := sys.modules.get("spconv"):
        raise ModuleLoadedError(
            f"spconv is already imported, from {getattr(loaded, '__file__', None)}: call "
            "voxax.torch.spconv.install() before anything imports spconv, or run the script with "
            "`python -m voxax.torch.spconv`"
        )
    modules = _spconv()
    if "cumm" not in sys.modules:
        modules |= _cumm()
    sys.modules.update(modules)
    _installed.update(modules)


def uninstall() -> None:
    """Undo :func:`install`: spconv is what is installed by that name, or nothing.

    Names that were imported before stay what they are.
    """
    for name, module in _installed.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _installed.clear()


def _own(name: str) -> Any:
    return importlib.import_module(f"{_PACKAGE}.{name}" if name else _PACKAGE)


def _spconv() -> dict[str, ModuleType]:
    pytorch = _own("")
    modules = {"spconv.pytorch": pytorch}
    # All of them: what is left out, Python would load a second time, with other classes.
    for found in pkgutil.iter_modules(pytorch.__path__):
        if found.name != "__main__":
            modules[f"spconv.pytorch.{found.name}"] = _own(found.name)
    modules["spconv.constants"] = pytorch.constants
    modules["spconv.core"] = _own("algo")
    modules["spconv.utils"] = _own("voxel_generators")
    modules["spconv.tools"] = _own("timer")
    modules["spconv.test_utils"] = _own("test_utils")
    names = ("AlgoHint", "ConvAlgo", "SPCONV_VERSION_NUMBERS", "__version__")
    root = _package("spconv", {name: getattr(pytorch, name) for name in names})
    for name, module in modules.items():
        if name.count(".") == 1:
            setattr(root, name.partition(".")[2], module)
    return {"spconv": root, **modules}


def _cumm() -> dict[str, ModuleType]:
    tensorview = _own("tensorview")
    root = _package("cumm", {"tensorview": tensorview})
    return {"cumm": root, "cumm.tensorview": tensorview}


def _package(name: str, contents: dict[str, Any]) -> ModuleType:
    """Return a package without files; ``importlib.util.find_spec`` finds it too."""
    module = ModuleType(name, f"{name}, as voxax has it: see {_PACKAGE}.install")
    module.__path__ = []
    module.__spec__ = ModuleSpec(name, None, origin=_PACKAGE, is_package=True)
    vars(module).update(contents)
    return module
