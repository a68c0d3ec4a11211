"""Space-filling curves, along which rows that are near in space are near in memory.

Keys cover the whole coordinate range ``[-2**30, 2**30)`` with 31 bits per axis, in as many 32-bit
words as there are axes. Loops over bits are ``lax.fori_loop``, which keeps the compiled programs
small; under ``jax.disable_jit`` its counter is a Python integer.
"""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from voxax.coords.lattice import COORD_LIMIT
from voxax.coords.ordering import sort_rows
from voxax.errors import check_known

Curve = Literal["lexicographic", "morton", "hilbert"]
CURVES = ("lexicographic", "morton", "hilbert")

_BITS = 31
_Axes = tuple[jax.Array, ...]


@jax.jit
def morton_keys(coords: jax.Array) -> jax.Array:
    """Return the position of each row along the Morton (Z-order) curve: all axes' bits interleaved.

    Args:
      coords: ``int32[N, 1 + D]``, D from 1 to 4; the batch index is ignored. Keys of rows outside
        the coordinate range, such as padding, have no meaning.

    Returns:
      ``uint32[N, D]``, most significant word first; the first axis has the highest bits.

    Source: Morton, "A computer oriented geodetic data base", IBM 1966.
    """
    return _interleaved(_unsigned_axes(coords))


@jax.jit
def hilbert_keys(coords: jax.Array) -> jax.Array:
    """Return each row's position on the Hilbert curve, whose consecutive cells are neighbors.

    Arguments and result are as in :func:`morton_keys`.

    Source: Skilling, "Programming the Hilbert curve", AIP Conference Proceedings 707, 2004.
    """
    axes = _unsigned_axes(coords)

    def undo_turns(step: jax.Array, axes: _Axes) -> _Axes:
        bit = jnp.uint32(1 << (_BITS - 1)) >> jnp.asarray(step, jnp.uint32)
        lower = bit - jnp.uint32(1)
        first, *others = axes
        first = jnp.where(first & bit != 0, first ^ lower, first)
        turned = []
        for axis in others:
            # Mirror the lower bits of the first axis, or exchange them with this axis.
            mirror = axis & bit != 0
            exchanged = (first ^ axis) & lower
            turned.append(jnp.where(mirror, axis, axis ^ exchanged))
            first = first ^ jnp.where(mirror, lower, exchanged)
        return (first, *turned)

    axes = list(jax.lax.fori_loop(0, _BITS - 1, undo_turns, axes))
    for index in range(1, len(axes)):
        axes[index] = axes[index] ^ axes[index - 1]
    # Each bit of `parity` is the parity of all higher bits of the last axis.
    parity = axes[-1] >> jnp.uint32(1)
    for shift in (1, 2, 4, 8, 16):
        parity = parity ^ (parity >> jnp.uint32(shift))
    return _interleaved(tuple(axis ^ parity for axis in axes))


@functools.partial(jax.jit, static_argnames="curve")
def sort_by_curve(coords: jax.Array, curve: Curve) -> jax.Array:
    """Return the order of rows by batch index, then along a curve, padding last, by a stable sort.

    Args:
      coords: ``int32[N, 1 + D]``.
      curve: ``"lexicographic"``, ``"morton"`` or ``"hilbert"``.

    Returns:
      ``int32[N]``, a permutation: ``coords[order]`` is sorted along the curve.

    Raises:
      InputError: the curve is unknown.
    """
    check_known("curve", curve, CURVES)
    if curve == "lexicographic":
        return sort_rows(coords)[1]
    keys = morton_keys(coords) if curve == "morton" else hilbert_keys(coords)
    # Signed integers in the order of the unsigned keys.
    signed = jax.lax.bitcast_convert_type(keys ^ jnp.uint32(1 << 31), jnp.int32)
    return sort_rows(jnp.concatenate([coords[:, :1], signed], axis=1))[1]


def _unsigned_axes(coords: jax.Array) -> _Axes:
    """Return each axis as ``uint32[N]``, counted from the lower end of the coordinate range."""
    return tuple(
        (coords[:, axis] + COORD_LIMIT).astype(jnp.uint32) for axis in range(1, coords.shape[1])
    )


def _interleaved(axes: _Axes) -> jax.Array:
    """Return ``uint32[N, D]``: bit 30 of every axis, then bit 29 of every axis, and so on."""
    ndim = len(axes)
    push, carry = jnp.uint32(ndim), jnp.uint32(32 - ndim)

    def push_bits(step: jax.Array, words: _Axes) -> _Axes:
        place = jnp.uint32(_BITS - 1) - jnp.asarray(step, jnp.uint32)
        group = jnp.zeros_like(axes[0])
        for axis in axes:
            group = (group << jnp.uint32(1)) | ((axis >> place) & jnp.uint32(1))
        incoming = (*(word >> carry for word in words[1:]), group)
        return tuple((word << push) | low for word, low in zip(words, incoming, strict=True))

    words = jax.lax.fori_loop(0, _BITS, push_bits, tuple(map(jnp.zeros_like, axes)))
    return jnp.stack(words, axis=1)
