"""A convolution whose pairs each carry a factor: ``y[m] = sum_k f[m, k] x[neighbors[m, k]] w[k]``.

Linear in three operands, so none of the three bilinear products: written out in JAX, tile by tile,
and differentiated by it, to any order and in both modes. A tile gathers its rows under all K taps,
scales them and multiplies once; for derivatives it gathers them again instead of keeping them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from voxax.algorithms.rows import clear_missing, split_rows, with_zero_row
from voxax.geometry import KernelMap
from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.products.convolve import precision_name

# Elements of one gathered tile, as in im2col; and at most so many tiles, since each adds its part
# to the whole gradient of the features.
_TILE_ELEMENTS, _MOST_TILES = 2**20, 16


def convolve_modulated(
    features: jax.Array,
    weight: jax.Array,
    factors: jax.Array,
    kernel_map: KernelMap,
    *,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """``y[m] = sum_k factors[m, k] * features[neighbors[m, k]] @ weight[k]``.

    Args:
      features: ``[in_capacity, C_in]``.
      weight: ``[K, C_in, C_out]`` or ``[K, G, C_in/G, C_out/G]``.
      factors: ``[out_capacity, K]``, floating-point; read only where the map has a pair.
      kernel_map: the relation.
      precision: as of :func:`voxax.products.convolve`.

    Returns:
      ``[out_capacity, C_out]`` in the promoted dtype of features and weight; factors are applied
      in at least float32.
    """
    dtype = jnp.promote_types(features.dtype, weight.dtype)
    wide, name = accumulator(dtype), precision_name(precision)
    neighbors, taps = kernel_map.neighbors, kernel_map.num_offsets
    w = weight.astype(dtype)
    if w.ndim == 3:
        w = w[:, None]
    groups, c_in, c_out = w.shape[1:]
    source = with_zero_row(features.astype(dtype))
    # Whatever stands where there is no pair, NaN included, reaches no result and no gradient.
    scale = jnp.where(neighbors >= 0, factors, jnp.zeros((), factors.dtype)).astype(wide)

    def tile(rows: tuple[jax.Array, jax.Array]) -> jax.Array:
        index, factor = rows
        gathered = source[index].astype(wide) * factor[:, :, None]
        parts = gathered.astype(dtype).reshape(len(index), taps, groups, c_in)
        out = jnp.einsum(
            "tkgi,kgio->tgo", parts, w, precision=name, preferred_element_type=wide
        )  # fmt: skip
        return out.reshape(len(index), groups * c_out).astype(product_dtype(dtype))

    number = kernel_map.out_capacity
    size = max(64, _TILE_ELEMENTS // max(taps * groups * c_in, 1), -(-number // _MOST_TILES))
    index = clear_missing(neighbors, features)
    if size >= number:
        return tile((index, scale))
    tiles = split_rows(index, size, features.shape[0]), split_rows(scale, size, 0)
    out = jax.lax.map(jax.checkpoint(tile), tiles)
    return out.reshape(out.shape[0] * size, out.shape[-1])[:number]
