"""Reports on every product of a function: its algorithm, the reason, its time and lower bound."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
