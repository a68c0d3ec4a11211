"""voxax's operators as PyTorch modules, on the CPU. Needs ``pip install "voxax[torch]"``."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

import lazy_loader as _lazy

from voxax.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401  (before the modules below, for one message)
except ImportError as error:
    raise MissingExtraError('voxax.torch needs PyTorch: pip install "voxax[torch]"') from error

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
