"""The products forward, dgrad and wgrad, with one differentiation rule for all algorithms."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
