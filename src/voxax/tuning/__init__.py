"""From a request to one algorithm with its parameters: a filter, a measurement, a memory."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
