"""flax.nnx modules over :mod:`voxax.nn.functional`. Needs ``pip install "voxax[nn]"``."""

import lazy_loader as _lazy

from voxax.nn import removed as _removed

try:
    import flax as _flax  # noqa: F401
except ImportError as _error:
    from voxax.errors import MissingExtraError

    raise MissingExtraError('voxax.nn.modules needs flax: pip install "voxax[nn]"') from _error

_attached, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in __all__:
        return _attached(name)
    raise _removed.missing(__name__, name, _removed.MODULES)
