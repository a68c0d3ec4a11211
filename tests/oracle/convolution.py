"""Convolution on sites, straight from the semantics contract.

``weight[k]`` multiplies the input at ``out * stride + offset[k] * dilation``; transposed, an
input at ``u`` feeds the output at ``u * stride + offset[k] * dilation``.
"""

import numpy as np

from oracle.rows import box_offsets, per_axis


def make_offsets(ndim, kernel_size=3, stride=1, kernel_shape="box"):
    """Taps of a kernel: box, cross (one non-zero entry at most), or given ones."""
    if not isinstance(kernel_shape, str):
        return [tuple(int(v) for v in offset) for offset in kernel_shape]
    box = box_offsets(per_axis(kernel_size, ndim), per_axis(stride, ndim))
    if kernel_shape == "box":
        return box
    return [offset for offset in box if sum(v != 0 for v in offset) <= 1]


def pairs(inputs, outputs, offsets, stride=1, dilation=1, transposed=False):
    """Every ``(input site, tap, output site)`` of the relation, by trying them all."""
    found = []
    fine, coarse = (outputs, inputs) if transposed else (inputs, outputs)
    for site in coarse:
        batch, *center = site
        ndim = len(center)
        steps, dilations = per_axis(stride, ndim), per_axis(dilation, ndim)
        for k, offset in enumerate(offsets):
            place = (
                batch,
                *(
                    c * s + o * d
                    for c, s, o, d in zip(center, steps, offset, dilations, strict=True)
                ),
            )
            if place in fine:
                found.append((site, k, place) if transposed else (place, k, site))
    return found


def strided_sites(sites, stride):
    """``unique(floor(site / stride))``."""
    return {
        (batch, *(c // s for c, s in zip(center, per_axis(stride, len(center)), strict=True)))
        for batch, *center in sites
    }


def reached_sites(sites, offsets, stride=1, dilation=1, transposed=False, spatial_shape=None):
    """Every output site that some tap of some input reaches, clipped to the output grid."""
    reached = set()
    for batch, *center in sites:
        ndim = len(center)
        steps, dilations = per_axis(stride, ndim), per_axis(dilation, ndim)
        for offset in offsets:
            shift = [o * d for o, d in zip(offset, dilations, strict=True)]
            if transposed:
                place = [c * s + o for c, s, o in zip(center, steps, shift, strict=True)]
            else:
                place = [c - o for c, o in zip(center, shift, strict=True)]
                if any(p % s for p, s in zip(place, steps, strict=True)):
                    continue
                place = [p // s for p, s in zip(place, steps, strict=True)]
            reached.add((batch, *place))
    if spatial_shape is None:
        return reached
    ndim = len(offsets[0])
    grid = output_grid(
        per_axis(spatial_shape, ndim), offsets, per_axis(stride, ndim), per_axis(dilation, ndim),
        transposed,
    )  # fmt: skip
    return {
        site for site in reached if all(0 <= c < n for c, n in zip(site[1:], grid, strict=True))
    }


def output_grid(shape, offsets, stride, dilation, transposed):
    """Size of PyTorch's dense (transposed) convolution, padded by the kernel's lower reach."""
    grid = []
    for axis, (n, s, d) in enumerate(zip(shape, stride, dilation, strict=True)):
        taps = [offset[axis] for offset in offsets]
        padding, span = max(-min(taps) * d, 0), (max(taps) - min(taps)) * d
        if transposed:
            grid.append((n - 1) * s - 2 * padding + span + 1)
        else:
            grid.append((n + 2 * padding - span - 1) // s + 1)
    return grid


def conv(sites, weight, outputs, offsets, stride=1, dilation=1, transposed=False, bias=None):
    """Sum of ``weight[k]^T x`` over the pairs of every output.

    Args:
      sites: inputs.
      weight: ``[K, C_in, C_out]``, ``[K, G, C_in/G, C_out/G]`` or, depthwise, ``[K, C]``.
      outputs: the sites to produce.
    """
    per_group = weight.shape[-1]
    channels = per_group if weight.ndim < 4 else weight.shape[1] * per_group
    result = {site: np.zeros(channels) for site in outputs}
    for source, k, target in pairs(sites, outputs, offsets, stride, dilation, transposed):
        x = sites[source]
        if weight.ndim == 2:
            result[target] += x * weight[k]
        elif weight.ndim == 3:
            result[target] += x @ weight[k]
        else:
            parts = np.split(x, weight.shape[1])
            result[target] += np.concatenate([p @ weight[k, g] for g, p in enumerate(parts)])
    if bias is not None:
        result = {site: value + bias for site, value in result.items()}
    return result
