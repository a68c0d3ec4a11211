"""Layers as functions on Voxels and arrays."""

import lazy_loader as _lazy

from voxax.nn import removed as _removed

_attached, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in __all__:
        return _attached(name)
    raise _removed.missing(__name__, name, _removed.FUNCTIONS)
