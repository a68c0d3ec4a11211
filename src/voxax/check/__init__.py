"""Check whether a function compiles to one static program, and find what prevents it."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
