"""Run code for spconv, MinkowskiEngine and TorchSparse on CPUs; convert tensors to JAX and back.

PyTorch is needed: ``pip install "voxax[torch]"``.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

import lazy_loader as _lazy

from voxax.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401  (before the modules below, for one message)
except ImportError as error:
    raise MissingExtraError('voxax.torch needs PyTorch: pip install "voxax[torch]"') from error

_attached, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _attached(name)
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        message = f"{__name__}.{name} needs JAX, and {__name__}.spconv does not: pip install jax"
        raise MissingExtraError(message) from error
