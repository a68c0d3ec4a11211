"""The package under spconv's own names, so that code which imports spconv runs unchanged."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from voxax.errors import ModuleLoadedError
from voxax.torch.spconv import children

_PACKAGE = "voxax.torch.spconv"
_installed: dict[str, ModuleType] = {}

_SOURCES = "spconv's C++ and CUDA sources are not here"
_KERNELS = "spconv's choice among CUDA kernels is not here"
_WHY_ABSENT = {
    "spconv.pytorch.quantization": "quantized layers run on GPUs only",
    "spconv.pytorch.interpreter": "spconv's way to TensorRT is not here",
    "spconv.algo": _KERNELS,
    "spconv.algocore": _KERNELS,
    "spconv.benchmark": "spconv's benchmark runs on GPUs",
    "spconv.build": _SOURCES,
    "spconv.csrc": _SOURCES,
    "spconv.gencode": _SOURCES,
    "spconv.core_cc": "there is no binary; what it does is in spconv.pytorch.ops",
    "cumm": "of cumm, which makes CUDA code, tensorview is here",
}


def install() -> None:
    """Make ``import spconv.pytorch`` import this package, until :func:`uninstall`.

    Registers ``spconv``, ``spconv.pytorch`` with its modules, ``spconv.core``,
    ``spconv.constants``, ``spconv.cppconstants``, ``spconv.utils``, ``spconv.tools``,
    ``spconv.debug_utils``, ``spconv.test_utils``, a part of ``spconv.core_cc``, and
    ``cumm.tensorview`` where cumm itself is not loaded. They are the modules of this package, not
    copies. Children that multiprocessing spawns, or forks from a server that it starts later,
    import them too. Does nothing when it has been done already.

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
    sys.meta_path.insert(0, _absent)
    children.pass_on()


def uninstall() -> None:
    """Undo :func:`install`: spconv is what is installed by that name, or nothing.

    Names that were imported before stay what they are.
    """
    for name, module in _installed.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _installed.clear()
    if _absent in sys.meta_path:
        sys.meta_path.remove(_absent)
    children.keep()


class _Absent:
    """Says why a module of spconv is not here, where Python would say that it has not found it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        del path, target
        parts = name.split(".")
        if _installed.get(parts[0]) is not sys.modules.get(parts[0]):
            return  # another cumm
        for count in range(len(parts), 0, -1):
            if why := _WHY_ABSENT.get(".".join(parts[:count])):
                text = f"No module named {name!r} in {_PACKAGE}: {why}"
                raise ModuleNotFoundError(text, name=name)


_absent: Any = _Absent()


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
    for name in ("cppconstants", "debug_utils", "test_utils"):
        modules[f"spconv.{name}"] = _own(name)
    modules |= _binary()
    names = ("AlgoHint", "ConvAlgo", "SPCONV_VERSION_NUMBERS", "__version__")
    root = _package("spconv", {name: getattr(pytorch, name) for name in names})
    for name, module in modules.items():
        if name.count(".") == 1:
            setattr(root, name.partition(".")[2], module)
    return {"spconv": root, **modules}


def _binary() -> dict[str, ModuleType]:
    """Return ``spconv.core_cc`` and its modules."""
    modules = {"spconv.core_cc": _package("spconv.core_cc", {})}
    for path, contents in sorted(_own("core_cc").MODULES.items()):
        name = "spconv.core_cc"
        for part in path.split("."):
            parent, name = modules[name], f"{name}.{part}"
            modules.setdefault(name, _package(name, {}))
            setattr(parent, part, modules[name])
        vars(modules[name]).update(contents)
    return modules


def _cumm() -> dict[str, ModuleType]:
    tensorview = _own("tensorview")
    contents = {"tensorview": tensorview, "__version__": _own("cppconstants").BUILD_CUMM_VERSION}
    root = _package("cumm", contents)
    return {"cumm": root, "cumm.tensorview": tensorview}


def _package(name: str, contents: dict[str, Any]) -> ModuleType:
    """Return a package without files of its own; ``importlib.util.find_spec`` finds it too."""
    module = ModuleType(name, f"{name}, as voxax has it: see {_PACKAGE}.install")
    module.__path__, module.__file__ = [], _own("").__file__
    module.__spec__ = ModuleSpec(name, None, origin=module.__file__, is_package=True)
    vars(module).update(contents)
    return module
