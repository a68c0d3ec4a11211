"""The three products of a convolution (forward, dgrad, wgrad) as differentiable functions."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
