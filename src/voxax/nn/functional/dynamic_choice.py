"""A kernel size for each scene, chosen from scores."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from voxax.errors import InputError


def choose_size(
    scores: jax.Array, sizes: Sequence[int], *, fallback: int
) -> tuple[jax.Array, jax.Array]:
    """The size with the best score, and a gate through which the scores learn.

    Give the first to ``dynamic_conv(..., size=, method="selected")``, which runs the compiled
    kernel of that size, and multiply its result by the second: 1 in value, with the gradient of the
    chosen size's probability (straight-through; Bengio et al., "Estimating or propagating gradients
    through stochastic neurons", 2013).

    Args:
      scores: ``float[B, len(sizes)]``, of a selector.
      sizes: what there is to choose from.
      fallback: the size where a score is not finite.

    Returns:
      ``int32[B]``, and ``float[B]``.

    Raises:
      InputError: another shape.
    """
    if scores.ndim != 2 or scores.shape[1] != len(sizes):
        raise InputError(f"scores of shape {scores.shape}: expected [B, {len(sizes)}], one a size")
    known = jnp.all(jnp.isfinite(scores), axis=1)
    clean = jnp.where(known[:, None], scores, 0)
    best = jnp.argmax(clean, axis=1)
    size = jnp.where(known, jnp.asarray(sizes, jnp.int32)[best], fallback).astype(jnp.int32)
    chance = jnp.take_along_axis(jax.nn.softmax(clean, axis=1), best[:, None], axis=1)[:, 0]
    gate = 1 + chance - jax.lax.stop_gradient(chance)
    return size, jnp.where(known, gate, 1)
