"""Register voxax's packages under TorchSparse's module names, so that code runs unchanged."""

from __future__ import annotations

from voxax.torch.core.aliases import Aliases

_version_2_1 = Aliases("voxax.torch.torchsparse", "torchsparse")
_version_1_4 = Aliases("voxax.torch.torchsparse.version_1_4", "torchsparse")
# Modules of this package, each with the modules of TorchSparse that it replaces.
_LAYERS = "nn.modules.activation nn.modules.conv nn.modules.crop nn.modules.norm nn.modules.pooling"
_FUNCTION = "nn.functional"
_MODULES = {
    "": "",
    "tensor": "tensor",
    "operators": "operators",
    "backend": "backend",
    "backends": "backends utils.tune",
    "backbones": "backbones backbones.resnet backbones.unet backbones.modules "
    "backbones.modules.blocks",
    "nn": "nn nn.modules",
    "nn.layers": _LAYERS,
    "nn.bev": "nn.modules.bev",
    "nn.utils": "nn.utils nn.utils.apply nn.utils.kernel",
    _FUNCTION: _FUNCTION,
    f"{_FUNCTION}.rows": ".activation .crop .pooling",
    f"{_FUNCTION}.conv": ".conv .conv.conv",
    f"{_FUNCTION}.conv_config": ".conv.conv_config .conv.conv_mode .conv.utils",
    f"{_FUNCTION}.hash": ".hash .query .conv.hash",
    f"{_FUNCTION}.kmap": ".conv.kmap .conv.kmap.build_kmap .conv.kmap.downsample "
    ".conv.kmap.upsample",
    f"{_FUNCTION}.voxelize": ".count .devoxelize .voxelize",
    "utils": "utils",
    "utils.collate": "utils.collate",
    "utils.grids": "utils.to_dense utils.utils",
    "utils.quantize": "utils.quantize",
    "utils.tensor_cache": "utils.tensor_cache",
}
_MODULES_1_4 = {  # keys with a dot are modules of 2.1
    "": "operators",
    "tensor": "tensor",
    "nn": f"nn nn.modules {_LAYERS}",
    ".nn.bev": "nn.modules.bev",
    ".nn.utils": "nn.utils nn.utils.apply nn.utils.kernel",
    "functional": f"{_FUNCTION} .activation .conv .count .crop .devoxelize .downsample .hash "
    ".pooling .query .voxelize",
    "utils": "utils",
    ".utils.collate": "utils.collate",
    ".utils.grids": "utils.utils",
    "utils.quantize": "utils.quantize",
}


def _names(modules: dict[str, str]) -> dict[str, str]:
    """Return a dict from TorchSparse module names to modules of this package, parents first.

    ``modules`` maps a module of this package to a text: the names, separated by spaces, of its
    TorchSparse modules. They are relative to ``torchsparse``, or to ``torchsparse.nn.functional``
    if they begin with a dot.
    """
    found = {"torchsparse": ""}
    for own, names in modules.items():
        for name in names.split():
            found[f"torchsparse.{_FUNCTION if name[0] == '.' else ''}{name}"] = own
    return dict(sorted(found.items()))


def install() -> None:
    """Make ``import torchsparse`` import this package, until :func:`uninstall`.

    Registers ``torchsparse`` with its modules, also in processes that multiprocessing spawns. The
    registered modules are those of this package, not copies. A second call does nothing.

    Raises:
      ModuleLoadedError: TorchSparse itself is loaded, or :func:`install_1_4` was called. The
        layers of both reject tensors of this package.
    """
    _version_2_1.install(_names(_MODULES))


def uninstall() -> None:
    """Undo :func:`install`: later imports find TorchSparse itself, if it is installed.

    Code that has already imported the modules keeps them.
    """
    _version_2_1.uninstall()


def install_1_4() -> None:
    """Make ``import torchsparse`` import voxax's package for TorchSparse 1.4.

    Effects and errors are as in :func:`install`.
    """
    _version_1_4.install(_names(_MODULES_1_4))


def uninstall_1_4() -> None:
    """Undo :func:`install_1_4`."""
    _version_1_4.uninstall()
