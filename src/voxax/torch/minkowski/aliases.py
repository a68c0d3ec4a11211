"""Register this package under MinkowskiEngine's module names, so that code runs unchanged."""

from __future__ import annotations

from types import ModuleType

from voxax.torch.core.aliases import Aliases, made

_aliases = Aliases("voxax.torch.minkowski", "MinkowskiEngine")

# MinkowskiEngine's modules, which public code imports with and without the package's name.
_MODULES = {
    "MinkowskiBroadcast": "broadcast",
    "MinkowskiChannelwiseConvolution": "convolution",
    "MinkowskiCommon": "arguments",
    "MinkowskiConvolution": "convolution",
    "MinkowskiCoordinateManager": "manager",
    "MinkowskiFunctional": "functional",
    "MinkowskiInterpolation": "sparse_matrix",
    "MinkowskiKernelGenerator": "kernel_generator",
    "MinkowskiNetwork": "module",
    "MinkowskiNonlinearity": "nonlinearity",
    "MinkowskiNormalization": "normalization",
    "MinkowskiOps": "ops",
    "MinkowskiPooling": "pooling",
    "MinkowskiPruning": "site_sets",
    "MinkowskiSparseTensor": "sparse_tensor",
    "MinkowskiTensor": "tensor",
    "MinkowskiTensorField": "tensor_field",
    "MinkowskiUnion": "site_sets",
    "sparse_matrix_functions": "sparse_matrix",
}
_OF_NETWORKS = "gradcheck", "init", "summary"
_BLOCKS = "modules", "modules.resnet_block", "modules.senet_block"
_PARTS = "diagnostics", *_BLOCKS, "utils", "utils.collation", "utils.quantization"


def install() -> None:
    """Make ``import MinkowskiEngine`` import this package, until :func:`uninstall`.

    Registers ``MinkowskiEngine`` with its ``utils``, ``modules`` and ``Minkowski...`` modules. Code
    can also import ``MinkowskiOps`` and similar without the package's name. Also registers
    ``MinkowskiEngineBackend`` with its ``_C`` module. The registered modules are those of this
    package, not copies. A second call does nothing.

    Raises:
      ModuleLoadedError: MinkowskiEngine itself is loaded, whose layers reject voxax's tensors.
    """
    if not _aliases.installed:
        _aliases.install(_names())


def uninstall() -> None:
    """Undo :func:`install`: later imports find MinkowskiEngine itself, if it is installed.

    Code that has already imported the modules keeps them.
    """
    _aliases.uninstall()


def _names() -> dict[str, str | ModuleType]:
    backend = made("voxax.torch.minkowski", "MinkowskiEngineBackend", {})
    return {
        "MinkowskiEngine": "",
        **{f"MinkowskiEngine.{name}": name for name in _PARTS},
        **{f"MinkowskiEngine.utils.{name}": "utils.networks" for name in _OF_NETWORKS},
        **{f"MinkowskiEngine.{name}": own for name, own in _MODULES.items()},
        **_MODULES,
        "MinkowskiEngineBackend": backend,
        "MinkowskiEngineBackend._C": "backend",
    }
