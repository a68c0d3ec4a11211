"""Cache that tensors of one origin share: voxels by stride, and the maps between voxels."""

from __future__ import annotations

from enum import Enum
from typing import Any

from voxax.torch.core.errors import ArgumentError


class TensorCacheMode(Enum):
    """Choice between a cache for each new tensor, and one cache for all."""

    SEPARATE_TENSOR_CACHE = 0
    GLOBAL_TENSOR_CACHE = 1


class TensorCache:
    """Voxels and maps of tensors that layers made from each other.

    Attributes:
      cmaps: coordinates and spatial range, by stride.
      sites: voxels with their kernel maps, by stride.
      kmaps: relations of layers, by ``(stride, kernel_size, stride of the layer, dilation)``.
      hashmaps: always empty here; layers look up voxels in ``sites``.
    """

    def __init__(self) -> None:
        self.cmaps: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self.kmaps: dict[tuple[Any, ...], Any] = {}
        self.hashmaps: dict[tuple[int, ...], Any] = {}
        self.sites: dict[tuple[int, ...], Any] = {}


_mode = TensorCacheMode.SEPARATE_TENSOR_CACHE
_shared: TensorCache | None = None


def set_tensor_cache_mode(mode: TensorCacheMode) -> None:
    """Choose whether tensors made from now on share one cache.

    The shared cache grows until :func:`clear_global_tensor_cache`; call that after each step. A
    mode of another type is an error.
    """
    global _mode
    if not isinstance(mode, TensorCacheMode):
        raise ArgumentError(f"mode={mode!r}: expected a TensorCacheMode")
    _mode = mode


def get_tensor_cache_mode() -> TensorCacheMode:
    """Return the mode that :func:`set_tensor_cache_mode` set."""
    return _mode


def get_global_tensor_cache() -> TensorCache | None:
    """Return the shared cache; None before the first tensor that uses it."""
    return _shared


def set_global_tensor_cache(tensor_cache: TensorCache | None) -> None:
    """Set the shared cache."""
    global _shared
    _shared = tensor_cache


def clear_global_tensor_cache() -> None:
    """Forget the shared cache; tensors keep their caches."""
    set_global_tensor_cache(None)


def new_cache() -> TensorCache:
    """Return the cache of a new tensor."""
    if _mode is TensorCacheMode.SEPARATE_TENSOR_CACHE:
        return TensorCache()
    if _shared is None:
        set_global_tensor_cache(TensorCache())
    assert _shared is not None
    return _shared
