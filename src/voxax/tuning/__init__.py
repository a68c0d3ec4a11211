"""Choose the algorithm of each convolution by user request, cached times or new measurements."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
