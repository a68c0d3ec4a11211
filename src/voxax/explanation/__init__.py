"""Report on each sparse convolution of a function: its algorithm, time and least possible time."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
