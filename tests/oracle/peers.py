"""Convolutions of other libraries on their own weights, as their sources define them.

spconv 2.3.8: ``weight[o, *tap, i]`` meets the input at ``out * stride - padding + tap * dilation``;
SubMConv pads by ``dilation * (size // 2)``. Where there is one tap and no stride, the memory of the
weight is the matrix ``[in, out]``.

MinkowskiEngine 0.5.4 (``kernel_region.hpp``): the number of a box's tap is taken apart by
remainders, first axis first; even sizes begin at offset 0, odd ones at ``-(size // 2)``. A cross
has its center first, then each axis with 1 to r and -r to -1.

TorchSparse 2.1.0 (``sparsemapping_cuda.cu``) and WarpConvNet 1.8.1 (``kernel_map.cuh``): see below.
"""

import itertools

import numpy as np


def spconv_taps(weight, *, padding=None, dilation=1, layout="KRSC", stride=1):
    """``{offset: matrix [in, out]}`` of a weight; ``padding=None`` is that of SubMConv."""
    size = {"KRSC": weight.shape[1:-1]}.get(layout, weight.shape[:-2])
    c_in = weight.shape[-2] if layout == "RSCK" else weight.shape[-1]
    if np.prod(size) == 1 and stride == 1:
        return {(0,) * len(size): weight.reshape(c_in, -1)}
    taps = {}
    for tap in itertools.product(*map(range, size)):
        pads = [dilation * (k // 2) for k in size] if padding is None else padding
        offset = tuple(t * dilation - p for t, p in zip(tap, pads, strict=True))
        if layout == "KRSC":
            taps[offset] = weight[(slice(None), *tap)].T
        elif layout == "RSKC":
            taps[offset] = weight[tap].T
        else:
            taps[offset] = weight[tap]
    return taps


def minkowski_taps(kernel, size, *, cross=False, dilation=1):
    """``{offset: matrix [in, out], or vector [C]}`` of a kernel ``[K, ...]``."""
    if kernel.ndim == 2 and np.prod(size) == 1:
        return {(0,) * len(size): kernel}
    taps = {}
    for number in range(len(kernel)):
        offset = [0] * len(size)
        if not cross:
            rest = number
            for axis, k in enumerate(size):
                step = rest % k
                offset[axis] = step if k % 2 == 0 else step - k // 2
                rest //= k
        elif number:
            rest, axis = number - 1, 0
            while rest >= size[axis] - 1:
                rest -= size[axis] - 1
                axis += 1
            reach = (size[axis] - 1) // 2
            offset[axis] = rest + 1 if rest < reach else rest - 2 * reach
        taps[tuple(o * dilation for o in offset)] = kernel[number]
    return taps


def convolved(inputs, outputs, taps, stride=1, bias=0.0, transposed=False):
    """``{site: float64[C]}`` at the sites ``outputs``; transposed reads the relation backwards."""
    result = {}
    for batch, *site in outputs:
        total = np.zeros(())
        for offset, weight in taps.items():
            if transposed:
                found = [divmod(c - o, stride) for c, o in zip(site, offset, strict=True)]
                if any(rest for _, rest in found):
                    continue
                place = (batch, *(quotient for quotient, _ in found))
            else:
                place = (batch, *(c * stride + o for c, o in zip(site, offset, strict=True)))
            if place in inputs:
                row = inputs[place].astype(np.float64)
                total = total + (row @ weight if weight.ndim == 2 else row * weight)
        result[batch, *site] = total + bias
    return result


def torchsparse_taps(kernel, size, *, stride=1, padding=0):
    """``{offset: matrix [in, out]}`` of a TorchSparse 2.1.0 kernel ``[K, in, out]``.

    As its CUDA threads find their tap: the number is taken apart by remainders, from the first axis
    on where K is odd, from the last where it is even. At stride 1 an odd kernel is moved by
    ``(k - 1) / 2`` and another not at all. A strided kernel visits the outputs of each input:
    number n, which is weight ``K - 1 - n``, goes to the output at ``(in + padding + digit -
    (k - 1)) / stride``.
    """
    volume = int(np.prod(size))
    if kernel.ndim == 2:
        return {(0, 0, 0): kernel}
    axes = range(3) if volume % 2 else range(2, -1, -1)
    taps = {}
    for number in range(volume):
        rest, digits = number, [0, 0, 0]
        for axis in axes:
            digits[axis] = rest % size[axis]
            rest //= size[axis]
        if stride == 1:
            shift = [(k - 1) // 2 if volume % 2 else 0 for k in size]
            taps[tuple(d - s for d, s in zip(digits, shift, strict=True))] = kernel[number]
        else:
            # out * stride = in + padding + digit - (k - 1), solved for in - out * stride.
            places = zip(digits, size, strict=True)
            offset = tuple(k - 1 - d - padding for d, k in places)
            taps[offset] = kernel[volume - 1 - number]
    return taps


def warpconvnet_taps(weight, size):
    """``{offset: matrix}`` of a WarpConvNet 1.8.1 kernel ``[K, ...]``, by its index arithmetic."""
    kx, ky, kz = size
    center = [k // 2 if k % 2 else 0 for k in size]
    taps = {}
    for number in range(kx * ky * kz):
        place = (number // (kz * ky), (number // kz) % ky, number % kz)
        taps[tuple(p - c for p, c in zip(place, center, strict=True))] = weight[number]
    return taps
