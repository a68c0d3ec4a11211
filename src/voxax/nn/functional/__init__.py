"""Neural network layers as functions on Voxels and arrays, with weights as arguments."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
