"""Every product of a function: which algorithm it takes and why, its time, its least time."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
