"""Cache of voxels and kernel maps that the input and output tensors of layers share."""

from __future__ import annotations

from enum import Enum
from typing import Any

from voxax.torch.core.errors import ArgumentError


class TensorCacheMode(Enum):
    """Choice between one cache for each new tensor and one cache for all new tensors."""

    SEPARATE_TENSOR_CACHE = 0
    GLOBAL_TENSOR_CACHE = 1


class TensorCache:
    """Cache of voxels and kernel maps that the input and output tensors of layers share.

    Attributes:
      cmaps: maps the stride of tensors to their coordinates and spatial range.
      sites: maps the stride of tensors to their checked voxels.
      kmaps: maps ``(tensor stride, kernel_size, stride of the layer, dilation)`` to kernel maps.
      hashmaps: always empty here.
    """

    def __init__(self) -> None:
        self.cmaps: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self.kmaps: dict[tuple[Any, ...], Any] = {}
        self.hashmaps: dict[tuple[int, ...], Any] = {}
        self.sites: dict[tuple[int, ...], Any] = {}


_mode = TensorCacheMode.SEPARATE_TENSOR_CACHE
_shared: TensorCache | None = None


def set_tensor_cache_mode(mode: TensorCacheMode) -> None:
    """Choose whether tensors that are made later share one cache.

    The shared cache grows until :func:`clear_global_tensor_cache` is called, so call that function
    after each step. A mode of another type is an error.
    """
    global _mode
    if not isinstance(mode, TensorCacheMode):
        raise ArgumentError(f"mode={mode!r}: expected a TensorCacheMode")
    _mode = mode


def get_tensor_cache_mode() -> TensorCacheMode:
    """Return the mode that :func:`set_tensor_cache_mode` set."""
    return _mode


def get_global_tensor_cache() -> TensorCache | None:
    """Return the cache that new tensors share; None if no tensor has used one yet."""
    return _shared


def set_global_tensor_cache(tensor_cache: TensorCache | None) -> None:
    """Set the cache that new tensors share in ``GLOBAL_TENSOR_CACHE`` mode."""
    global _shared
    _shared = tensor_cache


def clear_global_tensor_cache() -> None:
    """Drop the shared cache, so that new tensors share a new one; old tensors keep theirs."""
    set_global_tensor_cache(None)


def new_cache() -> TensorCache:
    """Return the cache for a new tensor: a new one, or the one that all tensors share.

    :func:`set_tensor_cache_mode` decides which.
    """
    if _mode is TensorCacheMode.SEPARATE_TENSOR_CACHE:
        return TensorCache()
    if _shared is None:
        set_global_tensor_cache(TensorCache())
    assert _shared is not None
    return _shared
