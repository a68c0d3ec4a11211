"""Named dynamic operators as their definitions read, position by position, in float64."""

import itertools

import numpy as np

from oracle.dynamic import sample


def offsets_of(shape):
    return list(itertools.product(*(range(-((t - 1) // 2), t // 2 + 1) for t in shape)))


def positions(x, stride):
    outputs = [-(-n // s) for n, s in zip(x.shape[1:-1], stride, strict=True)]
    return outputs, itertools.product(range(x.shape[0]), *map(range, outputs))


def read(x, place):
    """The cell of ``x [*spatial, C]``, zero outside."""
    inside = all(0 <= p < n for p, n in zip(place, x.shape[:-1], strict=True))
    return x[tuple(place)] if inside else np.zeros(x.shape[-1])


def conv(x, weight, stride, dilation, groups=1, bias=0.0):
    """``weight [*T, C / groups, C_out]``."""
    ndim = x.ndim - 2
    outputs, where = positions(x, stride)
    c_in, c_out = weight.shape[-2:]
    taps = offsets_of(weight.shape[:ndim])
    flat = weight.reshape(len(taps), c_in, groups, c_out // groups)
    y = np.zeros((x.shape[0], *outputs, groups, c_out // groups))
    for u in where:
        for k, o in enumerate(taps):
            v = read(x[u[0]], np.multiply(u[1:], stride) + np.multiply(o, dilation))
            y[u] += np.einsum("gi,igo->go", v.reshape(groups, c_in), flat[k])
    return y.reshape(x.shape[0], *outputs, c_out) + bias


def deform_conv(x, weight, offsets, mask, taps, stride, dilation, groups=1):
    """``offsets [B, *outputs, G, K, D]``, ``mask [B, *outputs, G, K]`` already modulated."""
    outputs, where = positions(x, stride)
    parts, channels = offsets.shape[-3], x.shape[-1]
    c_out = channels if weight is None else weight.shape[-1]
    y = np.zeros((x.shape[0], *outputs, c_out))
    by_part = x.reshape(*x.shape[:-1], parts, channels // parts)
    for u in where:
        for k, o in enumerate(offsets_of(taps)):
            v = np.zeros((parts, channels // parts))
            for g in range(parts):
                place = np.multiply(u[1:], stride) + np.multiply(o, dilation)
                place = place + offsets[(*u, g, k)]
                v[g] = mask[(*u, g, k)] * sample(by_part[u[0]][..., g, :], place)
            if weight is None:
                y[u] += v.reshape(-1)
            else:
                w = weight.reshape(-1, channels // groups, groups, c_out // groups)[k]
                y[u] += np.einsum("gi,igo->go", v.reshape(groups, -1), w).reshape(-1)
    return y


def local_conv(x, kernels, taps, stride, dilation):
    """``kernels [B, *outputs, K, G]``."""
    outputs, where = positions(x, stride)
    groups = kernels.shape[-1]
    y = np.zeros((x.shape[0], *outputs, x.shape[-1]))
    for u in where:
        for k, o in enumerate(offsets_of(taps)):
            v = read(x[u[0]], np.multiply(u[1:], stride) + np.multiply(o, dilation))
            y[u] += (v.reshape(groups, -1) * kernels[(*u, k)][:, None]).reshape(-1)
    return y


def pixel_adaptive_conv(x, guide, weight, bias, stride, dilation, normalize):
    ndim = x.ndim - 2
    outputs, where = positions(x, stride)
    taps = offsets_of(weight.shape[:ndim])
    flat = weight.reshape(len(taps), *weight.shape[-2:])
    y = np.zeros((x.shape[0], *outputs, weight.shape[-1]))
    for u in where:
        center = np.multiply(u[1:], stride)
        total = 0.0
        for k, o in enumerate(taps):
            q = center + np.multiply(o, dilation)
            if all(0 <= p < n for p, n in zip(q, x.shape[1:-1], strict=True)):
                apart = guide[(u[0], *center)] - guide[(u[0], *q)]
                affinity = np.exp(-np.sum(apart**2) / 2)
                total += affinity
                y[u] += affinity * (x[(u[0], *q)] @ flat[k])
        y[u] = y[u] / (total if normalize else 1) + bias
    return y


def gaussian_blur(x, sigma, radius, normalize_edges=False):
    """``sigma [B, *spatial, D]``."""
    y = np.zeros(x.shape)
    for u in itertools.product(*map(range, x.shape[:-1])):
        axes = []
        for s, r in zip(sigma[u], radius, strict=True):
            steps = np.arange(-r, r + 1)
            w = np.exp(-(steps**2) / (2 * s**2)) if s > 0 else (steps == 0) * 1.0
            axes.append(w / w.sum())
        inside = 0.0
        for o in itertools.product(*(range(-r, r + 1) for r in radius)):
            w = np.prod([a[step + r] for a, step, r in zip(axes, o, radius, strict=True)])
            q = np.add(u[1:], o)
            if all(0 <= p < n for p, n in zip(q, x.shape[1:-1], strict=True)):
                inside += w
                y[u] += w * x[(u[0], *q)]
        if normalize_edges:
            y[u] /= inside
    return y


def scene_kernels(weight, mixture, tap=None, into=None, out=None, groups=1):
    """``[B, *T, C / groups, C_out]`` of a bank ``[M, *T, C / groups, C_out]`` and its gates."""
    scenes, number = mixture.shape
    shape, (c_in, c_out) = weight.shape[1:-2], weight.shape[-2:]
    kernels = np.zeros((scenes, *weight.shape[1:]))

    def of(gate, b, m, extent):
        if gate is None:
            return np.ones(extent)
        return gate[b, m] if gate.ndim == 3 else gate[b]

    for b, m in np.ndindex(scenes, number):
        t = of(tap, b, m, int(np.prod(shape))).reshape(*shape, 1, 1)
        i = of(into, b, m, c_in * groups).reshape(groups, c_in)
        # Output channel o belongs to group o // (C_out / groups).
        i = i[np.arange(c_out) // (c_out // groups)].T
        o = of(out, b, m, c_out)
        kernels[b] += mixture[b, m] * weight[m] * t * i * o
    return kernels


def spectral_stride(x, strides, smoothness):
    """Every axis by NumPy's FFT: masked, cropped to the frequencies that are left, and back."""
    for axis, stride in enumerate(strides, start=1):
        cells = x.shape[axis]
        signed = np.rint(np.fft.fftfreq(cells) * cells).astype(int)
        mask = np.clip((smoothness + cells / (2 * stride) - abs(signed)) / smoothness, 0, 1)
        last = abs(signed)[mask > 0].max()
        number = min(2 * last + 1, cells)
        shape = [1] * x.ndim
        shape[axis] = cells
        spectrum = np.fft.fft(x, axis=axis) * mask.reshape(shape)
        kept = np.rint(np.fft.fftfreq(number) * number).astype(int)
        x = np.fft.ifft(np.take(spectrum, kept, axis=axis), axis=axis).real * number / cells
    return x
