"""Layers that apply PyTorch's activations and dropouts to the features of tensors and fields."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from voxax.torch.core.known_calls import is_known
from voxax.torch.minkowski.module import MinkowskiModuleBase
from voxax.torch.minkowski.tensor import check_tensor


class MinkowskiNonlinearityBase(MinkowskiModuleBase):
    """Base of layers that apply a PyTorch module, ``MODULE``, to a tensor's or field's features."""

    MODULE: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.MODULE(*args, **kwargs)

    def forward(self, input: Any) -> Any:
        """Return a tensor or a field with the module's results on the same sites."""
        check_tensor(input)
        if type(self.module) is nn.ReLU and is_known(self.module):
            return input.rectified(self.module, self.module.inplace)
        return input.replaced(self.module(input.F))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


_NAMES = """ELU Hardshrink Hardsigmoid Hardtanh Hardswish LeakyReLU LogSigmoid PReLU ReLU ReLU6
RReLU SELU CELU GELU Sigmoid SiLU Softplus Softshrink Softsign Tanh Tanhshrink Threshold Softmin
Softmax LogSoftmax AdaptiveLogSoftmaxWithLoss Dropout AlphaDropout"""


def _layer(name: str) -> Any:
    made = {"MODULE": getattr(nn, name), "__module__": __name__}
    made["__doc__"] = f":class:`torch.nn.{name}` of the features."
    return type(f"Minkowski{name}", (MinkowskiNonlinearityBase,), made)


LAYERS = {f"Minkowski{name}": _layer(name) for name in _NAMES.split()}
"""Maps names such as ``MinkowskiReLU`` to layers, which are also attributes of the package."""
globals().update(LAYERS)


class MinkowskiSinusoidal(MinkowskiModuleBase):
    """Layer ``sin(x @ kernel + bias) * coef``; initial parameters are uniform from 0 to 1.

    Args:
      in_channel, out_channel: numbers of channels.
    """

    def __init__(self, in_channel: int, out_channel: int) -> None:
        super().__init__()
        self.in_channel, self.out_channel = in_channel, out_channel
        self.kernel = nn.Parameter(torch.rand(in_channel, out_channel))
        self.bias = nn.Parameter(torch.rand(1, out_channel))
        self.coef = nn.Parameter(torch.rand(1, out_channel))

    def forward(self, input: Any) -> Any:
        """Return a tensor or a field with the results on the same sites."""
        check_tensor(input, self.in_channel)
        return input.replaced(torch.sin(input.F.mm(self.kernel) + self.bias) * self.coef)
