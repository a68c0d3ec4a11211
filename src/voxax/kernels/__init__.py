"""Kernels that compute a product over a kernel map; see :mod:`voxax.kernels.kernel`."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
