"""Define what the suite knows of an operator."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

ALL_DTYPES = ("float32", "bfloat16", "float16", "float64")

Params = dict[str, Any]


def no_params(rng: np.random.Generator, ndim: int, channels: int) -> Params:
    """For operators that need nothing but voxels."""
    del rng, ndim, channels
    return {}


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator with fixed static arguments, and what it must compute.

    Attributes:
      name: unique, in snake case.
      run: ``(voxels, params, **pins) -> Voxels | Array``, under ``jax.jit`` too. ``pins`` are
        ``fwd_algo`` and ``bwd_algo``, given only where ``takes_algorithm``.
      reference: ``(sites, params, batch_size) -> sites | ndarray``, in float64; ``sites`` map
        ``(batch, *coordinate)`` to a feature vector ``float64[C]``.
      params: ``(rng, ndim, channels) -> {name: ndarray}``. Floating-point arrays are weights:
        cast to the case's dtype and differentiated. Others are passed as they are.
      dims: numbers of spatial axes it is run for.
      dtypes: feature dtypes.
      channels: input channels.
      layouts: names of layouts it is run for; None is all of them.
      smooth: differentiable where the suite's random inputs lie.
      takes_algorithm: a convolution: affine in features and in each weight, and run in the
        forms of all algorithms too.
    """

    name: str
    run: Callable[..., Any]
    reference: Callable[..., Any]
    params: Callable[[np.random.Generator, int, int], Params] = no_params
    dims: tuple[int, ...] = (1, 2, 3, 4)
    dtypes: tuple[str, ...] = ALL_DTYPES
    channels: int = 4
    layouts: tuple[str, ...] | None = None
    smooth: bool = True
    takes_algorithm: bool = False

    @property
    def weighted(self) -> bool:
        """Return whether the operator has weights."""
        return any(
            np.issubdtype(np.asarray(value).dtype, np.floating)
            for value in self.params(np.random.default_rng(0), self.dims[0], self.channels).values()
        )
