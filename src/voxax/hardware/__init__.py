"""Facts about the hardware that programs run on, each with its source, and the cache folders."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
