"""Convert points to distinct sites (voxels), and hash coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from voxax.torch.core.errors import ArgumentError, check_cpu, check_device
from voxax.torch.core.kernel_map import distinct_rows, unique_rows
from voxax.torch.minkowski.arguments import convert_to_int_list, floored


def _checked_matrix(arr: np.ndarray) -> np.ndarray:
    if arr.ndim != 2:
        raise ArgumentError(f"rows of shape {arr.shape}: expected [N, D]")
    return arr


def fnv_hash_vec(arr: np.ndarray) -> np.ndarray:
    """Return the 64-bit FNV hash of each row, ``uint64[N]``.

    Args:
      arr: ``int[N, D]``.

    Raises:
      ArgumentError: ``arr`` does not have two axes.
    """
    _checked_matrix(arr)
    out = np.full(len(arr), 14695981039346656037, np.uint64)
    with np.errstate(over="ignore"):
        for column in arr.astype(np.uint64).T:
            out = out * np.uint64(1099511628211) ^ column
    return out


def ravel_hash_vec(arr: np.ndarray) -> np.ndarray:
    """Return the flat index of each row in the bounding box of all rows, ``uint64[N]``.

    ``arr`` is ``int[N, D]``; errors are as in :func:`fnv_hash_vec`.
    """
    if not len(_checked_matrix(arr)):
        return np.zeros(0, np.uint64)
    shifted = (arr - arr.min(0)).astype(np.uint64)
    sizes = shifted.max(0) + np.uint64(1)
    out = np.zeros(len(arr), np.uint64)
    for column, size in zip(shifted.T, sizes, strict=True):
        out = out * size + column
    return out


def sparse_quantize(
    coordinates: Any,
    features: Any = None,
    labels: Any = None,
    ignore_label: int = -100,
    return_index: bool = False,
    return_inverse: bool = False,
    return_maps_only: bool = False,
    quantization_size: Any = None,
    device: Any = "cpu",
) -> Any:
    """Return the distinct sites that contain the points, in the order of their first points.

    Args:
      coordinates: ``[N, D]``, an array or a tensor, without a batch index.
      features: ``[N, C]``; the first row of each site is kept.
      labels: ``int32[N]``, labels of the points.
      ignore_label: label of a site whose points have different labels.
      return_index: also return the first point of each site, ``[M]``.
      return_inverse: also return the site of each point, ``[N]``; needs ``return_index``.
      return_maps_only: return only the index, and the inverse if requested; ignored with labels.
      quantization_size: edge length of a site, one number or one per axis; None means 1.
      device: the CPU.

    Returns:
      The sites ``int32[M, D]``, then features and labels, if given, and the requested maps. Without
      labels, the sites and maps are tensors. With labels, they are arrays or tensors, like
      ``coordinates``.

    Raises:
      ArgumentError: a type or shape is wrong, a size is not above 0, or a coordinate exceeds 32
        bits.
    """
    given = isinstance(coordinates, np.ndarray)
    if not given and not isinstance(coordinates, torch.Tensor):
        raise ArgumentError(f"coordinates of {type(coordinates).__name__}: expected an array")
    check_device(device)
    if coordinates.ndim != 2:
        raise ArgumentError(f"coordinates of shape {tuple(coordinates.shape)}: expected [N, D]")
    if return_inverse and not return_index:
        raise ArgumentError("return_inverse without return_index")
    for name, values in (("features", features), ("labels", labels)):
        if values is not None and len(values) != len(coordinates):
            raise ArgumentError(f"{len(values)} rows of {name} for {len(coordinates)} coordinates")
    discrete = _discrete(coordinates, quantization_size)
    rows = discrete if given else discrete.numpy()
    first, places = distinct_rows(unique_rows(np.ascontiguousarray(rows)))
    index, inverse = torch.from_numpy(first).long(), torch.from_numpy(places).long()
    if return_maps_only and labels is None:
        return (index, inverse) if return_inverse else index
    if labels is not None and given:
        index, inverse = first.astype(np.int32), places.astype(np.int32)
    if labels is None and given:
        discrete = torch.from_numpy(discrete)
    found: list[Any] = [discrete[index]]
    if features is not None:
        found.append(features[index])
    if labels is not None:
        every = np.asarray(labels).astype(np.int32)
        own = every[first]
        own[places[every != own[places]]] = ignore_label
        found.append(own if given else torch.from_numpy(own).long())
    found += [index] if return_index else []
    found += [inverse] if return_inverse else []
    return found[0] if len(found) == 1 else tuple(found)


def _discrete(coordinates: Any, size: Any) -> Any:
    """Divide coordinates by ``size`` and round down, ``int32[N, D]``, as an array or a tensor."""
    array = isinstance(coordinates, np.ndarray)
    if size is not None and not np.isscalar(size):
        if len(size) != coordinates.shape[1]:
            raise ArgumentError(f"quantization_size={size} for {coordinates.shape[1]} axes")
        size = np.asarray(list(size)) if array else torch.tensor([float(edge) for edge in size])
    if size is not None and not bool((np.asarray(size) > 0).all()):
        raise ArgumentError(f"quantization_size={size}: expected numbers above 0")
    if size is not None and not (np.isscalar(size) and size == 1):
        coordinates = coordinates / size
    return floored(torch.from_numpy(coordinates)).numpy() if array else floored(coordinates)


def quantize(coords: Any) -> tuple[Any, Any]:
    """Find distinct rows: return ``([M] first row of each site, [N] site of each row)``.

    The results are arrays or tensors, like ``coords int32[N, D]``. Floats are truncated.
    """
    if isinstance(coords, np.ndarray):
        found = quantize(torch.from_numpy(coords))
        return found[0].numpy().astype(np.int32), found[1].numpy().astype(np.int32)
    if not isinstance(coords, torch.Tensor) or coords.ndim != 2:
        kind = type(coords).__name__
        raise ArgumentError(f"{kind} of shape {getattr(coords, 'shape', None)}: expected [N, D]")
    return unique_coordinate_map(coords.int())


def unique_coordinate_map(
    coordinates: torch.Tensor, tensor_stride: Any = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find distinct rows: return ``(int64[M] first row of each site, int64[N] site of each row)``.

    Args:
      coordinates: ``int32[N, 1 + D]``.
      tensor_stride: accepted but without effect.

    Raises:
      ArgumentError: the dtype or the device is wrong.
    """
    check_cpu(coordinates, "coordinates")
    convert_to_int_list(tensor_stride, coordinates.shape[1] - 1)
    if coordinates.dtype is not torch.int32:
        raise ArgumentError(f"coordinates of {coordinates.dtype}: expected int32")
    first, places = distinct_rows(unique_rows(coordinates.contiguous().numpy()))
    return torch.from_numpy(first).long(), torch.from_numpy(places).long()
