"""The part of ``cumm.tensorview`` that networks name: activations of fused layers."""

from __future__ import annotations

from voxax.torch.spconv.algo import Activation as _Activation


class gemm:
    """Namespace of :class:`Activation`."""

    Activation = _Activation
