"""Facts about the hardware of this process, read from the runtime, each with its source."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
