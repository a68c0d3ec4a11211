"""Initialize kernels, check gradients, and print a table of a network's layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from voxax.torch.core.errors import ArgumentError


def kaiming_normal_(
    tensor: torch.Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: Any = "leaky_relu"
) -> torch.Tensor:
    """Fill a kernel with He initialization: a normal distribution scaled by the fan.

    For a kernel ``[C_in, C_out]``, the fan-in is ``C_out``, as in MinkowskiEngine.

    Args:
      tensor: kernel ``[K, C_in, C_out]`` or ``[C_in, C_out]``, which is overwritten.
      a, nonlinearity: as in :func:`torch.nn.init.kaiming_normal_`.
      mode: ``fan_in`` or ``fan_out``.

    Raises:
      ArgumentError: the kernel has fewer than two axes, or the mode is unknown.
    """
    if tensor.dim() < 2 or mode.lower() not in ("fan_in", "fan_out"):
        raise ArgumentError(
            f"mode={mode!r} for a kernel of {tensor.dim()} axes: expected fan_in or fan_out, and "
            "2 axes or more"
        )
    if tensor.dim() == 2:
        fan_out, fan_in = tensor.shape
    else:
        fan_in, fan_out = (tensor.shape[0] * channels for channels in tensor.shape[1:3])
    fan = fan_in if mode.lower() == "fan_in" else fan_out
    gain = torch.nn.init.calculate_gain(nonlinearity, a)
    with torch.no_grad():
        return tensor.normal_(0, gain / math.sqrt(fan))


def gradcheck(func: Any, inputs: Any, *args: Any, **kwargs: Any) -> bool:
    """Return True if the gradients of ``func.apply`` pass :func:`torch.autograd.gradcheck`.

    The arguments after ``func`` are as in that function.
    """
    return torch.autograd.gradcheck(lambda *x: func.apply(*x), inputs, *args, **kwargs)


def summary(model: nn.Module, summary_input: Any) -> tuple[int, int]:
    """Print each layer with the shape of its output and its number of parameters.

    Run the network once, and return the numbers of all parameters and of trainable parameters.
    """
    lines: list[str] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        outputs = output if isinstance(output, list | tuple) else [output]
        shapes = ", ".join(str(list(getattr(one, "shape", ()))) for one in outputs)
        number = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        name = f"{type(module).__name__}-{len(lines) + 1}"
        lines.append(f"{name:>40}  {shapes:>25} {number:>15,}")

    containers = nn.Sequential | nn.ModuleList
    hooks = [
        module.register_forward_hook(note)
        for module in model.modules()
        if not isinstance(module, containers)
    ]
    try:
        model(summary_input)
    finally:
        for hook in hooks:
            hook.remove()
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    head = f"{'Layer (type)':>40}  {'Output Shape':>25} {'Param #':>15}"
    foot = f"Total params: {total:,}\nTrainable params: {trained:,}"
    print("\n".join([head, *lines, foot]))  # noqa: T201 (its task)
    return total, trained
