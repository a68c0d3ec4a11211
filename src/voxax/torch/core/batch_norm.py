"""Batch normalization with a residual sum and a ReLU after it: one native pass each way.

One by one they are three passes of PyTorch, whose idle threads spin in the time of the native
kernels between them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from voxax._native import host, host_norm
from voxax.torch.core.known_calls import has_averages, is_known, nobody_listens
from voxax.torch.core.products import bits


class Statistics(NamedTuple):
    """Mean and variance, ``[C]``; of the rows themselves, or running averages."""

    mean: torch.Tensor
    variance: torch.Tensor
    own: bool


def is_native(rows: torch.Tensor, norm: nn.Module) -> bool:
    """Return whether calling the norm is :func:`statistics` and :func:`batch_norm`, and no more."""
    if not isinstance(norm, nn.BatchNorm1d) or not (is_known(norm) and nobody_listens()):
        return False
    if rows.dtype not in (torch.float32, torch.float64) or rows.shape[1] != norm.num_features:
        return False
    if not _takes_own(norm):
        return has_averages(norm, rows.dtype) and host.available()
    parts = norm.running_mean, norm.running_var, norm.weight, norm.bias
    same = all(part is None or part.dtype == rows.dtype for part in parts)
    return same and len(rows) > 1 and host.available()


def _takes_own(norm: nn.BatchNorm1d) -> bool:
    return norm.training or (norm.running_mean is None and norm.running_var is None)


@torch.no_grad()
def statistics(rows: torch.Tensor, norm: nn.BatchNorm1d) -> Statistics:
    """Return what rows are normalized by now; in training, move the running averages."""
    averages = norm.running_mean, norm.running_var
    if not _takes_own(norm):
        mean, variance = (average.clone() for average in averages if average is not None)
        return Statistics(mean, variance, False)
    given = bits(rows.new_zeros(rows.shape[1]))
    options: Any = {"momentum": 0.0, "epsilon": norm.eps, "training": True, "relu": False}
    channels = given, given, None, given, given, None
    found = host_norm.batch_norm(
        bits(rows), _all(rows), *channels, threads=torch.get_num_threads(), **options
    )
    mean, variance = map(torch.from_numpy, found[2:])
    if norm.training and norm.track_running_stats:
        share = norm.momentum or 0.0
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if norm.momentum is None:
                share = 1 / float(norm.num_batches_tracked)
        unbiased = variance * (len(rows) / (len(rows) - 1))
        for average, new in zip(averages, (mean, unbiased), strict=True):
            if average is not None:
                average.mul_(1 - share).add_(new, alpha=share)
    return Statistics(mean, variance, True)


def batch_norm(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    found: Statistics,
    eps: float,
    residual: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor:
    """Return ``(rows - mean) / sqrt(variance + eps) * weight + bias``, and what follows it.

    Gradients pass through the statistics where these are the rows' own.

    Args:
      rows: ``[N, C]`` of float32 or float64, as all others are.
      weight, bias: ``[C]``.
      found: what :func:`statistics` gives.
      eps: epsilon of the norm.
      residual: ``[N, C]``, added; None: nothing is.
      relu: set negative results to 0.
    """
    return _BatchNorm.apply(rows, weight, bias, residual, found, eps, relu)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        residual: torch.Tensor | None,
        found: Statistics,
        eps: float,
        relu: bool,
    ) -> torch.Tensor:
        y = x.new_empty(x.shape)
        options: Any = {"momentum": 0.0, "epsilon": eps, "training": False, "relu": relu}
        added = None if residual is None else bits(residual)
        channels = bits(weight), bits(bias), added, bits(found.mean), bits(found.variance)
        threads = torch.get_num_threads()
        host_norm.batch_norm(bits(x), _all(x), *channels, bits(y), threads=threads, **options)
        ctx.found, ctx.eps, ctx.relu = found, eps, relu
        ctx.save_for_backward(x, weight, y if relu else None)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (dy,) = grads
        x, weight, y = ctx.saved_tensors
        added = ctx.needs_input_grad[3]
        if torch.is_grad_enabled():
            *found, dz = _derivable(dy, x, weight, y, ctx.found, ctx.eps)
            return *found, dz if added else None, None, None, None
        dx = x.new_empty(x.shape)
        dresidual = x.new_empty(x.shape) if added and ctx.relu else None
        inverse = torch.rsqrt(ctx.found.variance + ctx.eps)
        rows = bits(dy), bits(x), bits(x if y is None else y), _all(x)
        channels = bits(ctx.found.mean), bits(inverse), bits(weight)
        out = bits(dx), None if dresidual is None else bits(dresidual)
        options: Any = {
            "training": ctx.found.own,
            "relu": ctx.relu,
            "threads": torch.get_num_threads(),
        }
        found = host_norm.batch_norm_gradients(*rows, *channels, *out, **options)
        dz = dy if added and not ctx.relu else dresidual
        return dx, *map(torch.from_numpy, found), dz, None, None, None


def _derivable(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor | None,
    found: Statistics,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients in operations of PyTorch, which have derivatives of their own."""
    mean, variance = found.mean, found.variance
    if found.own:
        variance, mean = torch.var_mean(x, 0, correction=0)
    inverse = torch.rsqrt(variance + eps)
    normal = (x - mean) * inverse
    dz = dy if y is None else dy * (y > 0)
    dweight, dbias = (dz * normal).sum(0), dz.sum(0)
    dx = dz - (dbias + normal * dweight) / len(x) if found.own else dz
    return dx * (weight * inverse), dweight, dbias, dz


def _all(rows: torch.Tensor) -> np.ndarray:
    return np.ones(len(rows), np.bool_)
