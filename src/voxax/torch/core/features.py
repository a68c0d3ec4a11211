"""Delay batch norms, so that one native kernel computes the norm and the layers after it.

These layers are a residual sum and a ReLU. PyTorch would compute norm, sum and ReLU one after the
other, and its idle threads would busy-wait while native kernels run in between.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import numpy as np
import torch
from torch import nn

from voxax._native import host, host_norm
from voxax.torch.core.known_calls import has_averages, is_known, nobody_listens
from voxax.torch.core.products import bits


class Statistics(NamedTuple):
    """Mean and variance with which a batch norm normalizes C channels.

    Attributes:
      mean: mean of each channel, ``[C]``.
      variance: biased variance of each channel, ``[C]``.
      own: True if they were computed from the rows to normalize, False if they are running
        averages.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    own: bool


def is_native(rows: torch.Tensor, norm: nn.Module) -> bool:
    """Return whether :func:`statistics` and :func:`batch_norm` may replace ``norm(rows)``.

    They run native kernels. If False, PyTorch must compute the norm.
    """
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
    """Return the mean and variance with which ``norm`` normalizes ``rows``.

    In training, also update the running averages of ``norm``.
    """
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
    """Return ``(rows - mean) / sqrt(variance + eps) * weight + bias + residual``, ``[N, C]``.

    Gradients also pass through the mean and the variance if ``found.own``.

    Args:
      rows: features ``[N, C]``, float32 or float64; the other arrays have the same dtype.
      weight, bias: scale and shift of each channel, ``[C]``.
      found: mean and variance, the result of :func:`statistics`.
      eps: epsilon of the norm.
      residual: ``[N, C]``, added to the normalized rows; None adds nothing.
      relu: whether to set negative results to 0 at the end.
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
    """Return the gradients of a batch norm's x, weight, bias and residual, for second derivatives.

    ``dy`` is the gradient of the output. ``y`` is the output if there is a ReLU, else None.
    ``found`` are the statistics that normalized ``x``.
    """
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


class Later:
    """Delayed result of a batch norm, optionally followed by a residual sum and a ReLU.

    The constructor updates the norm's running averages. Results and gradients use the statistics
    and parameters at the time of construction.

    Args:
      rows: input ``[N, C]`` of the norm; no code may write to it before :meth:`result`.
      norm: a layer that :func:`voxax.torch.core.features.is_native` accepts.
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
        """Return a delayed result with ``residual`` added; None if the sum cannot be delayed.

        Args:
          residual: ``[N, C]``; no code may write to it before :meth:`result`.
          inplace: whether to change and return this object instead of a copy.
        """
        if not self._is_open() or self._residual is not None or self._relu:
            return None
        if residual.shape != self._rows.shape or residual.dtype != self._rows.dtype:
            return None
        made = self if inplace else self._copy()
        made._residual = residual
        return made

    def rectified(self, inplace: bool) -> Self | None:
        """Return a delayed result with a ReLU at the end; None if the ReLU cannot be delayed.

        ``inplace`` is as in :meth:`added`.
        """
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
        """Compute the result ``[N, C]`` in the first call; return the same tensor in later calls.

        Also compute the copies of this object that :meth:`added` and :meth:`rectified` returned.
        """
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
    """Feature rows of sparse tensors, either computed or the delayed result of a batch norm.

    Several tensors with the same rows may share one object.

    Args:
      rows: features ``[N, C]``; None if ``later`` is given.
      later: delayed result that computes the rows, or None.
      own: whether only layers have had access to the rows, so that no other code can write to them.
      read: for each array that ``later`` needs, the set of all delayed results that need it.
    """

    def __init__(
        self, rows: Any, later: Later | None = None, own: bool = False, read: tuple[Any, ...] = ()
    ) -> None:
        self._rows, self._later, self._read = rows, later, read
        # The delayed results that read these rows. They are computed before other code gets the
        # rows and could write to them. None after that.
        self._readers: WeakSet[Later] | None = WeakSet() if own else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Features, (self.rows(),)

    @property
    def waits(self) -> bool:
        """Whether the rows are not computed yet."""
        return self._later is not None

    def rows(self) -> Any:
        """Return the rows ``[N, C]``, computed if still delayed; callers must not write to them."""
        if self._later is not None:
            self._rows, self._later = self._later.result(), None
        return self._rows

    def shown(self) -> Any:
        """Return the rows ``[N, C]`` for code that may write to them.

        First compute all delayed results that need the rows.
        """
        rows, readers, self._readers = self.rows(), self._readers, None
        for later in list(readers or ()):
            later.result()
        return rows

    def normalized(self, norm: nn.Module) -> Features | None:
        """Return the result of the batch norm ``norm``; None if PyTorch must compute it.

        If code other than layers may write to the rows, the result is computed immediately.
        Otherwise it is delayed.
        """
        if not is_native(self.rows(), norm):
            return None
        later = Later(self.rows(), norm)  # type: ignore[arg-type]
        if self._readers is None:
            return Features(later.result(), own=True)
        return _waiting(later, self._readers)

    def rectified(self, inplace: bool) -> Features | None:
        """Return these features with a delayed ReLU; None if the ReLU cannot be delayed.

        If ``inplace``, change and return this object. Otherwise return a new object.
        """
        later = None if self._later is None else self._later.rectified(inplace)
        if later is None:
            return None
        return self if inplace else _waiting(later, *self._read)

    def added(self, other: Features, inplace: bool = False) -> Features | None:
        """Return the delayed sum of these features and ``other``; None if it cannot be delayed.

        If ``inplace``, change and return this object, or return None if its features are not
        delayed. Otherwise return a new object.
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
