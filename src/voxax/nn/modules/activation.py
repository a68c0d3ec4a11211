"""Pointwise modules."""

from __future__ import annotations

from collections.abc import Callable

import jax
from flax import nnx

from voxax.geometry import Voxels


class Activation(nnx.Module):
    """Apply ``fn`` to the features ``[capacity, C]``; padding stays zero."""

    def __init__(self, fn: Callable[[jax.Array], jax.Array]) -> None:
        self.fn = fn

    def __call__(self, voxels: Voxels) -> Voxels:
        return voxels.map(self.fn)


class ReLU(Activation):
    """``max(x, 0)``."""

    def __init__(self) -> None:
        super().__init__(jax.nn.relu)


class GELU(Activation):
    """Gaussian error linear unit (tanh form)."""

    def __init__(self) -> None:
        super().__init__(jax.nn.gelu)


class SiLU(Activation):
    """``x * sigmoid(x)``."""

    def __init__(self) -> None:
        super().__init__(jax.nn.silu)


class LeakyReLU(Activation):
    """``x`` where positive, else ``0.01 x``."""

    def __init__(self) -> None:
        super().__init__(jax.nn.leaky_relu)
