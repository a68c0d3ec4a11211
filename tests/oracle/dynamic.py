"""Dynamic convolution as the definition reads, position by position, in float64."""

import itertools

import numpy as np


def ramp(size, offset, tau, soft):
    """Whether, or how far, a tap is part of a kernel of this size: from the rule of sizes."""
    first = next(s for s in range(1, 99) if has(s, offset))
    if soft:
        return min(max((size - first) / tau + 1, 0.0), 1.0)
    return float(size >= first)


def has(size, offset):
    return all(-((size - 1) // 2) <= o <= size // 2 for o in offset)


def sample(x, place):
    """Linear interpolation of ``x [*spatial, C]`` at a real place, zero outside."""
    base = np.floor(place).astype(int)
    total = np.zeros(x.shape[-1])
    for corner in itertools.product((0, 1), repeat=len(place)):
        cell = base + corner
        if all(0 <= c < n for c, n in zip(cell, x.shape[:-1], strict=True)):
            part = np.prod([1 - abs(p - c) for p, c in zip(place, cell, strict=True)])
            if part:
                total += part * x[tuple(cell)]
    return total


def dynamic_conv(
    x, weight, size=None, dilation=1, offsets=None, mask=None, mixture=None, stride=1, tau=1.0
):
    """``y[u] = sum_k m_k(u) W_k(u) x<stride u + dilation(u) o_k + offsets_k(u)>``."""
    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    ndim = x.ndim - 2
    weight = weight if mixture is not None else weight[None]
    shape = weight.shape[1 : 1 + ndim]
    strides = (stride,) * ndim if isinstance(stride, int) else stride
    outputs = [-(-n // s) for n, s in zip(x.shape[1:-1], strides, strict=True)]
    soft = size is not None and np.issubdtype(np.asarray(size).dtype, np.floating)
    offs = list(itertools.product(*(range(-((t - 1) // 2), t // 2 + 1) for t in shape)))
    flat = weight.reshape(weight.shape[0], len(offs), *weight.shape[-2:])
    y = np.zeros((x.shape[0], *outputs, weight.shape[-1]))
    for u in itertools.product(range(x.shape[0]), *map(range, outputs)):
        apart = np.asarray(dilation)
        apart = apart[u] if apart.ndim > 1 else apart
        mix = np.ones(1) if mixture is None else np.asarray(mixture)
        mix = mix[u] if mix.ndim > 2 else (mix[u[0]] if mix.ndim == 2 else mix)
        for k, o in enumerate(offs):
            place = np.multiply(u[1:], strides) + apart * np.asarray(o)
            if offsets is not None:
                place = place + np.asarray(offsets)[(*u, k)]
            m = 1.0
            if size is not None:
                m = ramp(np.asarray(size)[u], o, tau, soft)
            if mask is not None:
                m = m * np.asarray(mask, np.float64)[(*u, k)]
            if m:
                y[u] += m * (sample(x[u[0]], place) @ np.einsum("m,mio->io", mix, flat[:, k]))
    return y


def along(product, x, weight, t):
    """Return operands of the function: its own, or for a derivative ``t``, since it is bilinear."""
    if product == "dgrad":
        return t.reshape(x.shape), weight
    return x, t.reshape(weight.shape) if product == "wgrad" else weight
