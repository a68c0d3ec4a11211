"""Export networks to files that run without the model's code (:func:`export_program`)."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
