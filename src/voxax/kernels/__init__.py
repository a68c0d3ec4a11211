"""Algorithms that compute the products of a convolution over a kernel map, one per platform."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
