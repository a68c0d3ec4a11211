"""Normalization and ReLU behind a convolution, computed with it where no gradient is asked for."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

Epilogue = tuple[nn.BatchNorm1d | None, bool]

# What runs when a module is called. User code may replace any of it, on a module or on a class.
_CALLED = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "_compiled_call_impl")
_KNOWN: dict[type, list[Any]] = {}


def know(*kinds: type[nn.Module]) -> None:
    """Let modules of exactly these classes be fused while they are called as they are now.

    Classes of which another package has replaced a method are left out.
    """
    for kind in kinds:
        if all(call is None or _is_original(call) for call in _calls(kind)):
            _KNOWN[kind] = _calls(kind)


def _calls(kind: type) -> list[Any]:
    return [vars(base).get(name) for base in kind.__mro__ for name in _CALLED]


def _is_original(call: Any) -> bool:
    where = str(getattr(call, "__module__", None))
    if where.startswith("torch.nn.modules."):
        return not hasattr(call, "__wrapped__")
    return where.startswith("voxax.torch.spconv.")


know(nn.BatchNorm1d, nn.ReLU)


def epilogue_of(conv: nn.Module, behind: Sequence[nn.Module | None]) -> Epilogue:
    """Return the normalization and whether there is a ReLU that can be computed with ``conv``.

    None and False where gradients are on, a program is traced or under autocast, and for
    modules that run code of the user: subclasses, replaced methods and hooks.

    Args:
      conv: a convolution.
      behind: the modules that follow.
    """
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not _is_known(conv):
        return None, False
    if torch.compiler.is_compiling() or any(_GLOBAL_HOOKS):
        return None, False
    rest = list(behind[:2])
    norm = rest[0] if rest else None
    if isinstance(norm, nn.BatchNorm1d) and _foldable(norm, conv):
        rest.pop(0)
    else:
        norm = None
    relu = bool(rest) and isinstance(rest[0], nn.ReLU) and _is_known(rest[0])
    return norm, relu


# Of all modules; PyTorch changes these dictionaries in place.
_GLOBAL_HOOKS = (torch_modules._global_forward_hooks, torch_modules._global_forward_pre_hooks)


def _is_known(module: nn.Module) -> bool:
    """Return whether calling the module runs the code of a known class, and nothing else."""
    kind = type(module)
    if module._forward_hooks or module._forward_pre_hooks or _KNOWN.get(kind) != _calls(kind):
        return False
    return vars(module).keys().isdisjoint(_CALLED)


def _foldable(norm: nn.BatchNorm1d, conv: nn.Module) -> bool:
    if norm.training or norm.running_mean is None or norm.running_var is None:
        return False
    if not _is_known(norm):
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
