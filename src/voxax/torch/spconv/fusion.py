"""Normalization and ReLU behind a convolution, computed with it where no gradient is asked for."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

Epilogue = tuple[nn.BatchNorm1d | None, bool]


def epilogue_of(conv: nn.Module, behind: Sequence[nn.Module | None]) -> Epilogue:
    """Return the normalization and whether there is a ReLU that can be computed with ``conv``.

    None and False where gradients are on, a program is traced or under autocast, and for
    modules with hooks, which have to be called.

    Args:
      conv: a convolution.
      behind: the modules that follow.
    """
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or _hooked(conv):
        return None, False
    if torch.compiler.is_compiling() or any(_GLOBAL_HOOKS):
        return None, False
    rest = list(behind[:2])
    norm = rest[0] if rest else None
    if isinstance(norm, nn.BatchNorm1d) and _foldable(norm, conv):
        rest.pop(0)
    else:
        norm = None
    relu = bool(rest) and isinstance(rest[0], nn.ReLU) and not _hooked(rest[0])
    return norm, relu


# Of all modules; PyTorch changes these dictionaries in place.
_GLOBAL_HOOKS = (torch_modules._global_forward_hooks, torch_modules._global_forward_pre_hooks)


def _hooked(module: nn.Module) -> bool:
    own = (nn.BatchNorm1d, nn.ReLU)
    replaced = isinstance(module, own) and not _computes_as(module, own)
    return bool(replaced or module._forward_hooks or module._forward_pre_hooks)


def _computes_as(module: nn.Module, kinds: tuple[type, ...]) -> bool:
    """Return whether no subclass changed what the module computes."""
    own = [kind for kind in type(module).__mro__ if "forward" in kind.__dict__]
    allowed = ("torch.nn.modules", "voxax.torch.spconv.modules")
    return isinstance(module, kinds) and all(kind.__module__.startswith(allowed) for kind in own)


def _foldable(norm: nn.BatchNorm1d, conv: nn.Module) -> bool:
    if norm.training or norm.running_mean is None or norm.running_var is None or _hooked(norm):
        return False
    weight = conv.weight
    parts = [norm.running_mean, *(p for p in (norm.weight, norm.bias) if p is not None)]
    same = all(part.dtype == weight.dtype for part in parts)
    channels = norm.num_features == conv.out_channels
    return same and channels and weight.dtype in (torch.float32, torch.float64)


def folded(norm: nn.BatchNorm1d, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factor of each output channel and the new bias, ``[C_out]`` both."""
    assert norm.running_var is not None
    assert norm.running_mean is not None
    factor = torch.rsqrt(norm.running_var + norm.eps)
    factor = factor if norm.weight is None else factor * norm.weight
    shift = -norm.running_mean if bias is None else bias - norm.running_mean
    shift = shift * factor
    return factor, shift if norm.bias is None else shift + norm.bias
