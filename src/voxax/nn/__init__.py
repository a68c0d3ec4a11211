"""Layers: :mod:`voxax.nn.functional` on arrays and Voxels, :mod:`voxax.nn.modules` in flax.nnx."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
