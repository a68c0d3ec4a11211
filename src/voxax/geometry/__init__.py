"""Data types of sparse convolution (voxels, points, kernel maps) and operations on them."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
