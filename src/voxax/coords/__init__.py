"""Functions on integer voxel coordinates ``int32[N, 1 + D]``: batch index, then D axes."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
