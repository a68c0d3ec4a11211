"""Layers as functions on voxels of tensors."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from voxax.errors import InputError, check_known
from voxax.geometry import KernelShape
from voxax.kernels import WeightKind
from voxax.torch import operators
from voxax.torch.bridge import check_tensor
from voxax.torch.geometry import KernelMap, VoxelGeometry, is_planning
from voxax.torch.operators import window_extremes
from voxax.torch.static_text import layer_text, relation_facts, request_text, spec_text, view_names
from voxax.torch.voxels import Voxels
from voxax.tuning import Request

Size = int | Sequence[int]
_PLAIN = '{"precision":null,"requests":{}}'


def spatially_sparse_conv(
    voxels: Voxels,
    weight: torch.Tensor,
    kernel_size: Size = 3,
    stride: Size = 1,
    dilation: Size = 1,
    bias: torch.Tensor | None = None,
    *,
    transposed: bool = False,
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    fwd_algo: Request = None,
    bwd_algo: Request = None,
    dgrad_algo: Request = None,
    wgrad_algo: Request = None,
    precision: str | None = None,
    kernel_shape: KernelShape = "box",
    spatial_shape: Size | None = None,
) -> Voxels:
    """:func:`voxax.nn.functional.spatially_sparse_conv` on tensors.

    Args:
      weight: ``[K, C_in, C_out]``, grouped ``[K, G, C_in/G, C_out/G]``, depthwise ``[K, C]``.
      voxels, kernel_size, stride, dilation, bias, transposed, generative, out_voxels, capacity,
        fwd_algo, bwd_algo, dgrad_algo, wgrad_algo, precision, kernel_shape, spatial_shape: as
        there; ``capacity=None`` takes the plan's, else the input's.

    Returns:
      Voxels with ``C_out`` channels in the promoted dtype.

    Raises:
      InputError, CapacityError, AlgorithmError: as there.
    """
    relation = (kernel_size, stride, dilation, transposed, generative)
    spec = spec_text(voxels.geometry.ndim, *relation, kernel_shape, spatial_shape)
    requests = (fwd_algo, bwd_algo, dgrad_algo, wgrad_algo)
    options = request_text(weight_kind(weight), precision, *requests)
    return conv_by_text(voxels, weight, bias, spec, options, out_voxels, capacity)


def conv_by_text(
    voxels: Voxels,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    spec: str,
    options: str,
    out_voxels: Voxels | None,
    capacity: int | None,
) -> Voxels:
    """Convolve with the relation and the requests as texts, as modules keep them."""
    target = None if out_voxels is None else out_voxels.geometry
    check_tensor(voxels.features, "features")
    check_tensor(weight, "weight")
    taps, channels = relation_facts(spec).num_offsets, voxels.num_channels
    c_in = weight.shape[1] * (weight.shape[2] if weight_kind(weight) == "grouped" else 1)
    if weight.shape[0] != taps or c_in != channels:
        raise InputError(
            f"weight of shape {tuple(weight.shape)} for a kernel of {taps} taps and {channels} "
            "input channels"
        )
    kernel_map, geometry = voxels.geometry.relate(spec, target, capacity)
    features = convolve(voxels.features, weight, kernel_map, voxels.stride, options)
    if bias is not None:
        if bias.shape != (features.shape[1],):
            raise InputError(
                f"bias of shape {tuple(bias.shape)} for {features.shape[1]} output channels: "
                f"expected [{features.shape[1]}]"
            )
        # Added in the wide dtype, in which the bias's gradient is summed over all rows.
        wide = torch.promote_types(features.dtype, torch.float32)
        biased = (features.to(wide) + bias.to(wide)).to(features.dtype)
        features = torch.where(geometry.valid[:, None], biased, 0)
    return voxels.on(geometry, features)


def convolve(
    features: torch.Tensor,
    weight: torch.Tensor,
    kernel_map: KernelMap,
    level: tuple[int, ...],
    options: str = _PLAIN,
) -> torch.Tensor:
    """Return ``y[m] = sum_k features[neighbors[m, k]] @ weight[k]``; any order of gradients."""
    dtype = torch.promote_types(features.dtype, weight.dtype)
    kind = weight_kind(weight)
    shape = tuple(weight.shape)
    name = str(dtype).removeprefix("torch.")
    text = layer_text(kernel_map.spec, kernel_map.same, level, options, kind, shape, name)
    views = [kernel_map.view(view) for view in view_names(text)]
    if is_planning():
        channels = shape[-1] * (shape[1] if kind == "grouped" else 1)
        return features.new_zeros((kernel_map.neighbors.shape[0], channels), dtype=dtype)
    return operators.apply(operators.forward, features.to(dtype), weight.to(dtype), views, text)


def weight_kind(weight: torch.Tensor) -> WeightKind:
    """Return the kind of a weight, from its number of axes."""
    kinds: dict[int, WeightKind] = {2: "depthwise", 3: "dense", 4: "grouped"}
    if weight.dim() not in kinds:
        raise InputError(
            f"weight of shape {tuple(weight.shape)}: expected [K, C_in, C_out], "
            "[K, G, C_in/G, C_out/G] or, depthwise, [K, C]"
        )
    return kinds[weight.dim()]


def sum_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
) -> Voxels:
    """Sum over the voxels under the kernel; ``stride=None`` takes ``kernel_size``.

    Arguments and errors as in :func:`voxax.nn.functional.sum_pool`.
    """
    kernel_map, out = _window(voxels, kernel_size, stride, dilation, out_voxels, capacity)
    ones = voxels.features.new_ones((kernel_map.neighbors.shape[1], voxels.num_channels))
    return voxels.on(out, convolve(voxels.features, ones, kernel_map, voxels.stride))


def mean_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
) -> Voxels:
    """Mean over the voxels under the kernel that exist. Arguments as in :func:`sum_pool`."""
    kernel_map, out = _window(voxels, kernel_size, stride, dilation, out_voxels, capacity)
    dtype = voxels.features.dtype
    wide = torch.promote_types(dtype, torch.float32)
    ones = voxels.features.new_ones(
        (kernel_map.neighbors.shape[1], voxels.num_channels), dtype=wide
    )
    total = convolve(voxels.features.to(wide), ones, kernel_map, voxels.stride)
    number = (kernel_map.neighbors >= 0).sum(1).clamp(min=1)
    return voxels.on(out, (total / number[:, None].to(wide)).to(dtype))


def max_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
) -> Voxels:
    """Maximum over the voxels under the kernel; of equal values the first tap's has the gradient.

    Arguments and errors as in :func:`sum_pool`.
    """
    window = _window(voxels, kernel_size, stride, dilation, out_voxels, capacity)
    return _extreme(voxels, *window, largest=True)


def min_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
) -> Voxels:
    """Minimum over the voxels under the kernel. Arguments and errors as in :func:`sum_pool`."""
    window = _window(voxels, kernel_size, stride, dilation, out_voxels, capacity)
    return _extreme(voxels, *window, largest=False)


def global_pool(voxels: Voxels, reduction: Literal["mean", "sum", "max"] = "mean") -> torch.Tensor:
    """Return one row per scene, ``[batch_size, C]``; an empty scene gives zeros.

    Raises:
      InputError: an unknown reduction, or features that are no floats.
    """
    check_known("reduction", reduction, ("mean", "sum", "max"))
    check_tensor(voxels.features, "features")
    valid, dtype = voxels.valid, voxels.features.dtype
    # Padding goes to a scene of its own, behind the last.
    scene = torch.where(valid, voxels.coords[:, 0], voxels.batch_size).long()
    rows = voxels.batch_size + 1
    if reduction == "max":
        x = voxels.replace_features(voxels.features).features
        index = scene[:, None].expand(x.shape)
        best = x.new_zeros((rows, x.shape[1])).scatter_reduce(
            0, index, x, "amax", include_self=False
        )
        return best[:-1]
    wide = torch.promote_types(dtype, torch.float32)
    x = torch.where(valid[:, None], voxels.features.to(wide), 0)
    total = x.new_zeros((rows, x.shape[1])).index_add(0, scene, x)[:-1]
    if reduction == "sum":
        return total.to(dtype)
    ones = torch.ones_like(scene, dtype=wide)
    number = ones.new_zeros(rows).index_add(0, scene, ones)[:-1].clamp(min=1)
    return (total / number[:, None]).to(dtype)


def _extreme(voxels: Voxels, kernel_map: KernelMap, out: VoxelGeometry, *, largest: bool) -> Voxels:
    x = voxels.features
    rows = window_extremes(x.detach(), kernel_map.neighbors, largest)
    taken = torch.take_along_dim(x, rows.clamp(min=0).long(), dim=0)
    return voxels.on(out, torch.where(rows >= 0, taken, 0))


def _window(
    voxels: Voxels,
    kernel_size: Size,
    stride: Size | None,
    dilation: Size,
    out_voxels: Voxels | None,
    capacity: int | None,
) -> tuple[KernelMap, VoxelGeometry]:
    check_tensor(voxels.features, "features")
    step = kernel_size if stride is None else stride
    ndim = voxels.geometry.ndim
    spec = spec_text(ndim, kernel_size, step, dilation, False, False, "box", None)
    target = None if out_voxels is None else out_voxels.geometry
    return voxels.geometry.relate(spec, target, capacity)
