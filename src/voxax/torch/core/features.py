"""Features that wait for a batch norm, so that one native pass computes it with what follows.

What follows may be a residual sum and a ReLU.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import nn

from voxax.torch.core.batch_norm import batch_norm, is_native, statistics
from voxax.torch.core.known_calls import nobody_listens


class Later:
    """The rows of a normalization, and of a sum and a ReLU after it.

    Running averages have moved when it is made, and its numbers and gradients are of that moment.

    Args:
      rows: ``[N, C]``, to which nothing is written before :meth:`result`.
      norm: a layer that :func:`voxax.torch.core.batch_norm.is_native` accepts.
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


class Features:
    """Rows, or rows that wait for ``later``. Tensors that share memory share these.

    They are ``own`` until code other than layers has seen them: before, no other code can write to
    them. ``read`` lists the readers of what ``later`` reads.
    """

    def __init__(
        self, rows: Any, later: Later | None = None, own: bool = False, read: tuple[Any, ...] = ()
    ) -> None:
        self._rows, self._later, self._read = rows, later, read
        # What waits and reads these rows: computed before anybody gets them and could write to
        # them. None from then on.
        self._readers: WeakSet[Later] | None = WeakSet() if own else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Features, (self.rows(),)

    @property
    def waits(self) -> bool:
        """Whether the rows wait."""
        return self._later is not None

    def rows(self) -> Any:
        """Return the rows for a layer, which does not write to them."""
        if self._later is not None:
            self._rows, self._later = self._later.result(), None
        return self._rows

    def shown(self) -> Any:
        """Return the rows for any caller."""
        rows, readers, self._readers = self.rows(), self._readers, None
        for later in list(readers or ()):
            later.result()
        return rows

    def normalized(self, norm: nn.Module) -> Features | None:
        """Return features that wait for the norm of these; None where PyTorch must compute it."""
        if not is_native(self.rows(), norm):
            return None
        later = Later(self.rows(), norm)  # type: ignore[arg-type]
        if self._readers is None:
            return Features(later.result(), own=True)
        return _waiting(later, self._readers)

    def rectified(self, inplace: bool) -> Features | None:
        """Return features that wait for a ReLU of these; None where it must be computed now."""
        later = None if self._later is None else self._later.rectified(inplace)
        if later is None:
            return None
        return self if inplace else _waiting(later, *self._read)

    def added(self, other: Features, inplace: bool = False) -> Features | None:
        """Return features that wait for the sum of both; None where it must be computed now.

        In place they are these, and wait already.
        """
        pairs = ((self, other), (other, self))
        for one, two in pairs[:1] if inplace else pairs:
            if one is not two and one._later is not None and two._readers is not None:
                later = one._later.added(two.rows(), inplace)
                if later is None:
                    continue
                if not inplace:
                    return _waiting(later, two._readers, *one._read)
                two._readers.add(later)
                one._read = (*one._read, two._readers)
                return one
        return None


def _waiting(later: Later, *read: WeakSet[Later]) -> Features:
    for readers in read:
        readers.add(later)
    return Features(None, later, own=True, read=read)
