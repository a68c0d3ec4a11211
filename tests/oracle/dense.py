"""Convolutions of XLA on the densified grid."""

import jax
import jax.numpy as jnp
import numpy as np

from oracle.rows import lowest_offset, per_axis


def dense_conv(x, w, rows, out_rows, kernel_size=3, stride=1, dilation=1, batch_size=1):
    """``jax.lax.conv_general_dilated`` on the densified grid, read at ``out_rows``.

    Args:
      x: ``[N, C_in]``, row i at ``rows[i]``; w: ``[K, C_in, C_out]``, or grouped
        ``[K, G, C_in/G, C_out/G]``.
      rows, out_rows: NumPy ``int[N, 1 + D]`` and ``int[M, 1 + D]`` without padding.
    """
    ndim = rows.shape[1] - 1
    kernel_size, stride, dilation = (per_axis(v, ndim) for v in (kernel_size, stride, dilation))
    groups = w.shape[1] if w.ndim == 4 else 1
    if not len(out_rows):
        return jnp.zeros((0, w.shape[-1] * groups), x.dtype)
    k, s, d = map(np.asarray, (kernel_size, stride, dilation))
    low = np.array([lowest_offset(*axis) for axis in zip(kernel_size, stride, strict=True)])
    # The grid is exactly what the windows of all outputs cover.
    first, last = out_rows[:, 1:].min(0), out_rows[:, 1:].max(0)
    corner = first * s + low * d
    shape = (last - first) * s + (k - 1) * d + 1
    cell = rows[:, 1:] - corner
    inside = ((cell >= 0) & (cell < shape)).all(1)
    grid = jnp.zeros((batch_size, *shape.tolist(), x.shape[1]), x.dtype)
    grid = grid.at[(rows[inside, 0], *cell[inside].T)].set(x[inside])
    if w.ndim == 4:
        w = jnp.moveaxis(w, 1, 2)  # output channels are ordered by group
        w = w.reshape(w.shape[0], w.shape[1], -1)
    kernel = w.reshape(*kernel_size, *w.shape[1:])
    spatial = tuple(range(1, ndim + 1))
    layout = jax.lax.ConvDimensionNumbers(
        (0, ndim + 1, *spatial), (ndim + 1, ndim, *range(ndim)), (0, ndim + 1, *spatial)
    )
    out = jax.lax.conv_general_dilated(
        grid,
        kernel,
        window_strides=stride,
        padding="VALID",
        rhs_dilation=dilation,
        dimension_numbers=layout,
        feature_group_count=groups,
        precision=jax.lax.Precision.HIGHEST,
    )
    return out[(out_rows[:, 0], *(out_rows[:, 1:] - first).T)]


def dense_conv_adjoint(x, w, rows, out_rows, **options):
    """The transposed convolution: the dense convolution from ``out_rows`` to ``rows``, adjoint."""

    def forward(fine):
        return dense_conv(fine, jnp.swapaxes(w, -1, -2), out_rows, rows, **options)

    zero = jnp.zeros((len(out_rows), w.shape[-1]), x.dtype)
    return jax.vjp(forward, zero)[1](x)[0]
