"""Register this package under spconv's module names, so that code for spconv runs unchanged."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from types import ModuleType

import torch

from voxax.errors import InputError, MissingExtraError
from voxax.torch.core.aliases import Aliases, made, own, tree

_PACKAGE = "voxax.torch.spconv"
_TRITON = "spconv_triton"
_NAMES = {
    "spconv.constants": "constants",
    "spconv.core": "algo",
    "spconv.cppconstants": "core_cc",
    "spconv.debug_utils": "diagnostics",
    "spconv.test_utils": "test_utils",
    "spconv.tools": "diagnostics",
    "spconv.utils": "voxel_generators",
    "cumm.tensorview": "tensorview",
}
_ROOT = ("AlgoHint", "ConvAlgo", "SPCONV_VERSION_NUMBERS", "__version__")

_SOURCES = "spconv's C++ and CUDA sources are not here"
_KERNELS = "spconv's choice among CUDA kernels is not here"
_ABSENT = {
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
_aliases = Aliases(_PACKAGE, "spconv")


def install(device: str | None = None) -> None:
    """Make ``import spconv.pytorch`` import this package, until :func:`uninstall`.

    Registers ``spconv`` with its modules, and ``cumm.tensorview`` if cumm itself is not loaded. The
    registered modules are those of this package, not copies. Processes that multiprocessing later
    starts with ``spawn`` or ``forkserver`` import them too. A second call does nothing.

    If PyTorch sees a GPU and spconv-triton is installed, the default registers spconv-triton as
    ``spconv`` instead, and warns once. The same line of code therefore works on every machine.

    Args:
      device: ``"cpu"`` for this package, ``"cuda"`` for spconv-triton. None chooses by the machine.

    Raises:
      ModuleLoadedError: spconv itself is loaded, whose layers do not accept tensors of this
        package; or the names were installed for the other device.
      MissingExtraError: ``device`` is ``"cuda"``, and spconv-triton is not installed.
      InputError: the device is unknown.
    """
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"device={device!r}: expected 'cpu', 'cuda' or None, for what there is")
    if device is None and _aliases.installed:
        return
    found = importlib.util.find_spec(_TRITON) is not None
    if device is None and found and torch.cuda.is_available():
        device = "cuda"
        _say_triton()
    if device != "cuda":
        _aliases.install(_names(), _ABSENT, device="cpu")
    elif found:
        _aliases.install(tree(_TRITON, "spconv"), device="cuda")
    else:
        raise MissingExtraError("device='cuda' needs spconv-triton: pip install spconv-triton")


def uninstall() -> None:
    """Undo :func:`install`. Code that has already imported the modules keeps them."""
    _aliases.uninstall()


@functools.cache
def _say_triton() -> None:
    warnings.warn(
        "PyTorch sees a GPU, and spconv-triton is installed: it is what `import spconv` imports. "
        "For voxax on the CPU, call voxax.torch.spconv.install(device='cpu')",
        stacklevel=3,
    )


def _names() -> dict[str, str | ModuleType]:
    pytorch, binary = own(_PACKAGE, ""), own(_PACKAGE, "core_cc")
    roots = {
        "spconv": {name: getattr(pytorch, name) for name in _ROOT},
        **binary.MODULES,
        "cumm": {"__version__": binary.BUILD_CUMM_VERSION},
        "cumm.core_cc": {},
        "cumm.core_cc.tensorview_bind": {"Activation": binary.PickledActivation},
    }
    names = {name: made(_PACKAGE, name, contents) for name, contents in roots.items()}
    return names | tree(_PACKAGE, "spconv.pytorch") | _NAMES
