"""Check whether a call of a PyTorch module runs only known code: no hooks or replaced methods.

Only then may voxax compute the result in another way: fused with other layers, natively, or later.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_modules

from voxax.torch.core.uncompiled import is_traced

# Methods that run when a module is called. User code may replace them, on a module or a class.
_CALLED = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "_compiled_call_impl")
_KNOWN: dict[type, list[Any]] = {}

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Hooks of all modules; PyTorch changes these dictionaries in place.
_GLOBAL_HOOKS = [getattr(torch_modules, f"_global{name}") for name in _HOOKS]


def know(*kinds: type[nn.Module]) -> None:
    """Register module classes whose results voxax may compute without calling the modules.

    The present ``forward``, ``__call__`` and similar methods of the classes are stored, so that
    :func:`is_known` notices a later replacement. A class is left out if another package has already
    replaced a method.
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
    return where.startswith("voxax.torch.")


know(nn.BatchNorm1d, nn.ReLU)


def is_known(module: nn.Module) -> bool:
    """Return True if :func:`know` has the module's class, and its code is unchanged.

    False if the module has hooks, or if a method of the module or its class was replaced.
    """
    kind = type(module)
    if any(getattr(module, name) for name in _HOOKS) or _KNOWN.get(kind) != _calls(kind):
        return False
    return vars(module).keys().isdisjoint(_CALLED)


def nobody_listens() -> bool:
    """Return True if results may be computed without PyTorch's operations.

    False under autocast, compilation, tracing, ``torch.func``, forward-mode derivatives or global
    hooks.
    """
    compiled = torch.compiler.is_compiling() or is_traced()
    if compiled or torch.is_autocast_enabled("cpu"):
        return False
    # PyTorch itself has to compute forward derivatives and with the tensors of ``torch.func``.
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return False
    return not any(_GLOBAL_HOOKS)


def only_results_count() -> bool:
    """Return True if gradients are off and :func:`nobody_listens` returns True."""
    return not torch.is_grad_enabled() and nobody_listens()


def has_averages(norm: nn.BatchNorm1d, dtype: torch.dtype) -> bool:
    """Return True if ``norm`` uses running averages, and all its arrays have ``dtype``.

    False for a ``dtype`` other than float32 and float64.
    """
    if norm.training or norm.running_mean is None or norm.running_var is None:
        return False
    parts = [norm.running_mean, *(p for p in (norm.weight, norm.bias) if p is not None)]
    same = all(part.dtype == dtype for part in parts)
    return same and dtype in (torch.float32, torch.float64)
