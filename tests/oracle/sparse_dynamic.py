"""Sparse convolution with a kernel of its own at every voxel: one loop over voxels, in float64."""

import numpy as np

from oracle.rows import per_axis


def reaching(offset):
    """The smallest size that covers an offset, found by trying sizes from 1."""
    size = 1
    while not all(-((size - 1) // 2) <= o <= size // 2 for o in offset):
        size += 1
    return size


def dynamic_convolution(
    features, coords, out_coords, offsets, weight, *, stride=1, dilation=1, size=None, tau=None,
    mask=None, mixture=None,
):  # fmt: skip
    """``(y [M, C_out], number of pairs that a hard size leaves)``.

    ``features [N, C_in]`` at ``coords [N, 1 + D]``, no padding; ``size``, ``dilation`` (an integer
    or one each), ``mask``, ``mixture`` by output row; ``weight [K, C_in, C_out]``, with a mixture
    ``[M, K, C_in, C_out]``.
    """
    where = {tuple(map(int, row)): i for i, row in enumerate(coords)}
    rates = np.broadcast_to(dilation, len(out_coords))
    out = np.zeros((len(out_coords), weight.shape[-1]))
    pairs = 0
    for m, (batch, *center) in enumerate(out_coords.tolist()):
        steps = per_axis(stride, len(center))
        w = weight if mixture is None else np.einsum("b,bkio->kio", mixture[m], weight)
        for k, offset in enumerate(offsets):
            place = (c * s + o * rates[m] for c, s, o in zip(center, steps, offset, strict=True))
            row = where.get((batch, *(int(p) for p in place)))
            if row is None:
                continue
            factor = 1.0
            if size is not None:
                short = size[m] - reaching(offset)
                factor = float(short >= 0) if tau is None else min(max(short / tau + 1, 0), 1)
            pairs += factor > 0
            if mask is not None:
                factor *= mask[m, k]
            out[m] += factor * (features[row] @ w[k])
    return out, pairs
