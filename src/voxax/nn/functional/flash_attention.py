"""Attention by kernels that JAX provides: cuDNN on NVIDIA GPUs, splash attention on TPUs.

Both kernels have a gradient, but no second derivatives and no forward mode.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from voxax.errors import InputError, check_known
from voxax.nn.functional.attention_tiles import Logits, Side

AttentionAlgorithm = Literal["tiles", "cudnn", "splash"]
ROWS = 128  # splash attention takes patches of a multiple of this many rows
_BLOCK = 512


def choose(
    wanted: AttentionAlgorithm | None, query: jax.ShapeDtypeStruct, how: Logits, length: int
) -> AttentionAlgorithm:
    """Return ``wanted``; if None, the algorithm that suits the default device of this process.

    Args:
      wanted: name of an algorithm. None takes cuDNN on GPUs and splash attention on TPUs if they
        can run with the other arguments and the dtype has 16 bits, and else tiles.
      query: shape ``[..., H, d]`` and dtype of the queries.
      how: the rule for the logits.
      length: number of slots of a patch.

    Raises:
      InputError: the wanted kernel cannot run with the other arguments; the message says why.
    """
    if wanted is not None:
        check_known("algorithm", wanted, get_args(AttentionAlgorithm))
        if wanted != "tiles" and (reason := refusal(wanted, query, how, length)):
            raise InputError(f"algorithm={wanted!r} {reason}: leave it out, or take 'tiles'")
        return wanted
    here: dict[str, AttentionAlgorithm] = {"gpu": "cudnn", "tpu": "splash"}
    kernel = here.get(jax.default_backend(), "tiles")
    suits = kernel == "tiles" or refusal(kernel, query, how, length) is None
    # Splash attention multiplies float32 in one pass, so only half precision loses no digits.
    return kernel if suits and query.dtype.itemsize == 2 else "tiles"


def refusal(
    kernel: AttentionAlgorithm, query: jax.ShapeDtypeStruct, how: Logits, length: int
) -> str | None:
    """Return a text that says why ``kernel`` cannot run, or None if it can.

    The other arguments are those of :func:`choose`.
    """
    if how.table is not None:
        return "adds no relative table"
    if kernel == "cudnn":
        if query.dtype not in (jnp.float16, jnp.bfloat16):
            return f"takes float16 and bfloat16, not {query.dtype}"
        if query.shape[-1] % 8 or query.shape[-1] > 128:
            return f"takes heads of a multiple of 8 channels up to 128, not {query.shape[-1]}"
    elif query.dtype not in (jnp.float32, jnp.bfloat16):
        return f"takes float32 and bfloat16, not {query.dtype}"
    elif length % ROWS:
        return f"takes patches of a multiple of {ROWS} rows, not {length}"
    return None


def by_cudnn(query: Side, key: Side, value: jax.Array, how: Logits) -> jax.Array:
    """Return attention within each patch by cuDNN, ``[P, L, H, d]``: P patches, L slots, H heads.

    ``query`` and ``key`` have the same slots, and ``value`` is ``[P, L, H, d]``. Empty slots must
    come last in their patch; their results are zero.
    """
    group = query.group
    # A patch of length 0 would divide by zero, so its first empty slot counts as a row.
    number = jnp.maximum(jnp.sum(group >= 0, axis=1, dtype=jnp.int32), 1)
    lengths: dict[str, Any] = {"query_seq_lengths": number, "key_value_seq_lengths": number}
    out = jax.nn.dot_product_attention(
        query.vectors, key.vectors, value, scale=how.scale, implementation="cudnn", **lengths
    )
    return jnp.where((group >= 0)[..., None, None], out, jnp.zeros((), out.dtype))


def by_splash(query: Side, key: Side, value: jax.Array, how: Logits) -> jax.Array:
    """Return attention to keys of the same patch and group, ``[P, Lq, H, d]``, on TPUs.

    ``query`` and ``key`` have P patches of Lq and Lk slots, and ``value`` is ``[P, Lk, H, d]``.
    Results of empty slots are zero.
    """
    # This imports Pallas, which few programs need.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    heads, lengths = query.vectors.shape[2], (query.group.shape[1], key.group.shape[1])
    q, k = (next(b for b in (_BLOCK, 256, ROWS) if n % b == 0) for n in lengths)
    sizes = splash.BlockSizes(
        block_q=q,
        block_kv=k,
        block_kv_compute=k,
        block_q_dkv=q,
        block_kv_dkv=k,
        block_kv_dkv_compute=k,
        block_q_dq=q,
        block_kv_dq=k,
    )
    mask = splash.MultiHeadMask([splash.FullMask(lengths)] * heads)
    kernel = splash.make_splash_mha_single_device(mask=mask, block_sizes=sizes)

    def patch(query: Side, key: Side, value: jax.Array) -> Any:
        q, k, v = (x.swapaxes(0, 1) for x in (query.vectors, key.vectors, value))
        segments = splash.SegmentIds(query.group, key.group)
        out: Any = kernel((q * how.scale).astype(q.dtype), k, v, segments)
        return out.swapaxes(0, 1)

    out = jax.vmap(patch)(query, key, value)
    return jnp.where((query.group >= 0)[..., None, None], out, jnp.zeros((), out.dtype))
