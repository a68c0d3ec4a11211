"""Ready-made networks, as classes and by name. Needs ``pip install "voxax[nn]"``."""

import lazy_loader as _lazy

try:
    import flax as _flax  # noqa: F401
except ImportError as _error:
    from voxax.errors import MissingExtraError

    raise MissingExtraError('voxax.models needs flax: pip install "voxax[nn]"') from _error

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
