"""The dropout module."""

from __future__ import annotations

import jax
from flax import nnx

from voxax.errors import InputError
from voxax.nn.functional import dropout
from voxax.nn.functional.dropout import DropoutMode, Scenes, check_dropout


class Dropout(nnx.Module):
    """Inverted dropout, switched by ``model.train()`` and ``model.eval()``.

    Args:
      rate: fraction that is dropped, in [0, 1].
      mode: ``feature``, ``voxel`` or ``channel``; see :func:`voxax.nn.functional.dropout`.
      deterministic: evaluation mode from the start: the input is handed on as it is.
      rng_collection: the stream of ``rngs`` that keys are drawn from, a new one at each call.
      rngs: None means that a key (or ``nnx.Rngs``) is given at each call.
    """

    def __init__(
        self,
        rate: float = 0.5,
        *,
        mode: DropoutMode = "feature",
        deterministic: bool = False,
        rng_collection: str = "dropout",
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> None:
        check_dropout(rate, mode)
        self.rate, self.deterministic, self.rng_collection = rate, deterministic, rng_collection
        self.mode: DropoutMode = mode
        stream = rngs[rng_collection] if isinstance(rngs, nnx.Rngs) else rngs
        self.rngs = nnx.data(None if stream is None else stream.fork())

    def __call__(
        self, voxels: Scenes, *, rngs: nnx.Rngs | nnx.RngStream | jax.Array | None = None
    ) -> Scenes:
        """Drop features; ``rngs`` (streams or one ``jax.random`` key) overrides the module's.

        Raises:
          InputError: in training, and there is no source of keys.
        """
        if self.deterministic or self.rate == 0:
            return voxels.replace_features(voxels.features)
        source = self.rngs if rngs is None else rngs
        if source is None:
            raise InputError(
                "Dropout in training draws random numbers: build it with rngs=nnx.Rngs(seed), "
                "call it with rngs=, or switch it off with model.eval()"
            )
        if isinstance(source, nnx.Rngs):
            source = source[self.rng_collection]
        key = source() if isinstance(source, nnx.RngStream) else source
        return dropout(voxels, self.rate, key, self.mode)
