"""A batch normalization of rows that is computed when its result is asked for, with what follows.

One native pass then computes the normalization, a residual sum and a ReLU.
"""

from __future__ import annotations

import copy
import weakref
from typing import Self

import torch
from torch import nn

from voxax.torch.core.batch_norm import batch_norm, statistics
from voxax.torch.core.known_calls import nobody_listens


class Later:
    """The rows of a normalization, and of a sum and a ReLU behind it.

    Running averages have moved when it is made, and its numbers and gradients are of that moment.

    Args:
      rows: ``[N, C]``, to which nothing is written before :meth:`result`.
      norm: that :func:`voxax.torch.core.batch_norm.is_native` takes.
    """

    def __init__(self, rows: torch.Tensor, norm: nn.BatchNorm1d) -> None:
        self._rows, self._eps, self._statistics = rows, norm.eps, statistics(rows, norm)
        like = self._statistics.mean
        self._weight = torch.ones_like(like) if norm.weight is None else norm.weight.clone()
        self._bias = torch.zeros_like(like) if norm.bias is None else norm.bias.clone()
        self._modes = _modes()
        self._residual: torch.Tensor | None = None
        self._relu = False
        self._found: torch.Tensor | None = None
        self._behind: weakref.WeakSet[Later] = weakref.WeakSet()

    def added(self, residual: torch.Tensor, inplace: bool) -> Self | None:
        """Return what waits for the sum too, None where a sum does not fit any more.

        Args:
          residual: ``[N, C]``, to which nothing is written before :meth:`result`.
          inplace: this result is the sum; otherwise it stays what it is.
        """
        if not self._is_open() or self._residual is not None or self._relu:
            return None
        if residual.shape != self._rows.shape or residual.dtype != self._rows.dtype:
            return None
        made = self if inplace else self._copy()
        made._residual = residual
        return made

    def rectified(self, inplace: bool) -> Self | None:
        """Return what waits for a ReLU too, None where the result is there; see :meth:`added`."""
        if not self._is_open():
            return None
        made = self if inplace else self._copy()
        made._relu = True
        return made

    def _is_open(self) -> bool:
        return self._found is None and self._modes == _modes() and nobody_listens()

    def _copy(self) -> Self:
        made = copy.copy(self)
        made._behind = weakref.WeakSet()
        self._behind.add(made)
        return made

    def result(self) -> torch.Tensor:
        """Return ``[N, C]``, the same tensor in every call; what was made of it is computed too."""
        if self._found is None:
            grad, inference = self._modes
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                rest = self._statistics, self._eps, self._residual, self._relu
                self._found = batch_norm(self._rows, self._weight, self._bias, *rest)
            del self._rows, self._residual
            for later in list(self._behind):
                later.result()
        return self._found


def _modes() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()
