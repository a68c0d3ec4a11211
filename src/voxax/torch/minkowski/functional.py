"""Apply functions of ``torch.nn.functional`` to the features of sparse tensors and fields.

Losses return a PyTorch tensor; other functions return a tensor or a field on the same sites.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from voxax.torch.minkowski.tensor import check_tensor

_FEATURES = """threshold hardtanh hardswish relu6 elu selu celu leaky_relu prelu rrelu glu gelu
logsigmoid hardshrink tanhshrink softsign softplus softmin softmax softshrink gumbel_softmax
log_softmax tanh sigmoid hardsigmoid silu batch_norm normalize linear dropout alpha_dropout"""
_LOSSES = """binary_cross_entropy binary_cross_entropy_with_logits poisson_nll_loss cross_entropy
hinge_embedding_loss kl_div l1_loss mse_loss multi_margin_loss multilabel_margin_loss
multilabel_soft_margin_loss nll_loss smooth_l1_loss soft_margin_loss"""


def _of_features(function: Callable[..., Any], loss: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        check_tensor(input)
        found = function(input.F, *args, **kwargs)
        return found if loss else input.replaced(found)

    return call


globals().update({name: _of_features(getattr(F, name), False) for name in _FEATURES.split()})
globals().update({name: _of_features(getattr(F, name), True) for name in _LOSSES.split()})


def relu(input: Any, inplace: bool = False) -> Any:
    """Return a sparse tensor or a field with :func:`torch.nn.functional.relu` of the features.

    If ``inplace``, the features of ``input`` change too.
    """
    check_tensor(input)
    return input.rectified(functools.partial(F.relu, inplace=inplace), inplace)
