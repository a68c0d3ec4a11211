"""Convolve sparse tensors, with kernel maps from the cache that tensors share."""

from __future__ import annotations

import math
from typing import Any

import torch

from voxax.torch.core.errors import ArgumentError, check_cpu, check_features
from voxax.torch.core.features import Features
from voxax.torch.core.products import convolve
from voxax.torch.core.uncompiled import uncompiled
from voxax.torch.torchsparse.nn.functional.conv_config import modes_of
from voxax.torch.torchsparse.nn.functional.kmap import Relation, Sizes, build_kernel_map
from voxax.torch.torchsparse.tensor import SparseTensor, check_tensors, with_features
from voxax.torch.torchsparse.utils.grids import per_axis

_HALF = (torch.float16, torch.bfloat16)
_ONE = (1, 1, 1)


def conv3d(
    input: SparseTensor,
    weight: torch.Tensor,
    kernel_size: Any,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    config: Any = None,
    transposed: bool = False,
    generative: bool = False,
    training: bool = False,
) -> SparseTensor:
    """Return the 3-D convolution of a sparse tensor.

    Args:
      input: tensor to convolve.
      weight: ``[K, C_in, C_out]``, or ``[C_in, C_out]`` for one tap and stride 1.
      kernel_size, stride, padding: one integer, or one per axis.
      bias: ``[C_out]``.
      dilation: must be 1. TorchSparse 2.1 accepts other values but does not use them.
      config: dictionary of modes, see :mod:`voxax.torch.torchsparse.nn.functional.conv_config`.
      transposed: whether outputs are at the input voxels of an earlier strided layer, which has the
        same kernel size and stride.
      generative: whether the layer makes finer voxels, at ``voxel * stride + tap offset``.
      training: accepted but without effect.

    Raises:
      ArgumentError: a wrong shape, dtype or size, or a transposed layer without its strided layer.
    """
    del training
    args = kernel_size, bias, stride, padding, dilation, config, transposed, generative
    return convolved(SparseTensor, input, weight, *args)


@uncompiled
def convolved(kind: Any, input: SparseTensor, weight: torch.Tensor, *settings: Any) -> SparseTensor:
    """Return :func:`conv3d` of ``input``; raise an error if it is for another TorchSparse version.

    ``kind`` is the class of sparse tensors to accept: that of TorchSparse 2.1 or that of 1.4.
    ``settings`` are the arguments of :func:`conv3d` after ``weight``, without ``training``.
    """
    kernel_size, bias, stride, padding, dilation, config, transposed, generative = settings
    check_tensors("a convolution", input)
    if input._kind is not kind:
        raise ArgumentError(
            f"a {type(input).__module__}.{type(input).__name__}: expected {kind.__module__}."
            f"{kind.__name__}. For a tensor of another version, take the layers of its nn"
        )
    size, steps = per_axis("kernel_size", kernel_size), per_axis("stride", stride)
    pads = per_axis("padding", padding, 0)
    if per_axis("dilation", dilation) != _ONE:
        raise ArgumentError(
            f"dilation={dilation}: TorchSparse computes with 1 whatever it is given. Set 1 for "
            "its results"
        )
    pointwise = size == steps == _ONE
    check_cpu(input.coords, "coords")
    check_cpu(weight, "weight")
    if weight.ndim != 3 - pointwise or not (pointwise or len(weight) == math.prod(size)):
        expected = "[C_in, C_out]" if pointwise else f"[{math.prod(size)}, C_in, C_out]"
        raise ArgumentError(f"weight of shape {list(weight.shape)}: expected {expected}")
    feats = input._features.rows()
    check_features(feats, input.coords.shape[0], weight.shape[-2])
    feats, weight = of_one_dtype(feats, weight)
    if bias is not None and bias.shape != weight.shape[-1:]:
        raise ArgumentError(f"bias of shape {list(bias.shape)}: expected [{weight.shape[-1]}]")
    if pointwise:
        out = feats.matmul(weight)
        out = out if bias is None else out.add_(bias.to(out.dtype))
        return with_features(input, Features(out, own=True))._remembered()
    finer, sizes = transposed or generative, (size, steps, pads)
    made = tuple(n // s if finer else n * s for n, s in zip(input.stride, steps, strict=True))
    if generative:
        relation = build_kernel_map(input, sizes, modes_of(config), generative=True)
    elif transposed:
        relation = _back(input, (made, size, steps, _ONE)).transpose()
    else:
        relation = _relation(input, sizes, modes_of(config))
    out = Features(convolve(feats, weight, relation.kernel_map, bias), own=True)
    caches, target = input._caches, relation.target
    caches.sites[made] = target
    if generative:
        caches.cmaps[made] = target.indices, relation.target_range
        caches.kmaps.clear()
    return input._made(out, target.indices, made, relation.target_range)


def of_one_dtype(feats: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``feats`` and ``weight``, converted to a common dtype.

    If autocast is on and neither is float64, it is autocast's dtype. Otherwise it is float16 or
    bfloat16 if one of them has it; if both have, it is that of ``feats``. Raise
    :class:`ArgumentError` if none of this applies and the dtypes differ.
    """
    dtypes = feats.dtype, weight.dtype
    half = next((dtype for dtype in dtypes if dtype in _HALF), None)
    if torch.is_autocast_enabled("cpu") and torch.float64 not in dtypes:
        half = torch.get_autocast_dtype("cpu")
    if half is not None:
        return feats.to(half), weight.to(half)
    if feats.dtype is not weight.dtype:
        both = f"feats of {feats.dtype} and a weight of {weight.dtype}"
        raise ArgumentError(f"{both}: expected one dtype")
    return feats, weight


def _relation(input: SparseTensor, sizes: tuple[Sizes, ...], modes: tuple[str, str]) -> Relation:
    kmaps, key = input._caches.kmaps, (input.stride, *sizes[:2], _ONE)
    known = kmaps.get(key)
    if (
        known is None
        or known.settings != (sizes[2], *modes)
        or known.source_range != input.spatial_range
        or not known.source.hold(input._cells())
        or not known.target.hold(known.target.indices)
    ):
        known = kmaps[key] = build_kernel_map(input, sizes, modes, generative=False)
    return known


def _back(input: SparseTensor, key: tuple[Any, ...]) -> Relation:
    """Return the kernel map of the strided layer that a transposed layer undoes.

    ``input`` is the transposed layer's input, and ``key`` the map's key in the input's cache. Raise
    :class:`ArgumentError` if the cache has no such map, or if the map is for other voxels.
    """
    relation = input._caches.kmaps.get(key)
    fine, size, steps, _ = key
    what = f"a transposed layer of kernel_size {size} and stride {steps} from stride {input.stride}"
    if relation is None:
        raise ArgumentError(
            f"{what}: no layer of this kernel and stride ran from stride {fine} before it, on "
            "tensors that share a cache. Use one, or generative=True"
        )
    if not relation.target.hold(input._cells()):
        raise ArgumentError(
            f"{what}: its {len(input.coords)} voxels are not the {relation.target.rows.shape[0]} "
            "that the layer of this kernel and stride made"
        )
    if not relation.source.hold(relation.source.indices):
        raise ArgumentError(f"{what}: the coords at stride {fine} were written to since")
    return relation
