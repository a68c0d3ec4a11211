"""A normalization, an added shortcut and an activation as one operator, where it is the same.

Only what is exactly the library's own class is fused, with the library's own ``__call__``: a
subclass, or a method that somebody put in its place, is called as it is.
"""

from __future__ import annotations

from typing import Any

from voxax.geometry import Points, Voxels
from voxax.nn.modules.norm import BatchNorm
from voxax.nn.modules.pointwise import ReLU

_CALLS = {BatchNorm: BatchNorm.__call__, ReLU: ReLU.__call__}
_RELU = ReLU().fn


def is_own(layer: Any, kind: type) -> bool:
    """Return whether a layer is of this class itself, and calls what the library defines."""
    return type(layer) is kind and kind.__call__ is _CALLS[kind]


def norm_act(norm: Any, act: Any, voxels: Any, shortcut: Voxels | None = None) -> Any:
    """Return ``act(norm(voxels) + shortcut)``, without ``shortcut`` of ``norm(voxels)`` alone.

    Args:
      norm, act: layers.
      voxels: what ``norm`` takes.
      shortcut: voxels on the same coordinates.

    Raises:
      GeometryMismatchError: ``shortcut`` has other coordinates.
    """
    fuses = is_own(norm, BatchNorm) and is_own(act, ReLU) and act.fn == _RELU
    if fuses and isinstance(voxels, Voxels | Points):
        if shortcut is None:
            return norm(voxels, relu=True)
        features = shortcut.features
        alike = features.dtype == voxels.features.dtype and shortcut.geometry is voxels.geometry
        if alike and features.shape == voxels.features.shape:
            return norm(voxels, residual=features, relu=True)
    normed = norm(voxels)
    return act(normed if shortcut is None else normed + shortcut)
