"""Coordinate rules on NumPy rows, by dictionaries and Python integers."""

import itertools
import math

import numpy as np

PAD = 2**31 - 1


def per_axis(value, ndim):
    return (value,) * ndim if isinstance(value, int) else tuple(value)


def lowest_offset(size, stride):
    """First offset of a kernel along one axis, as the semantics contract words it."""
    return 0 if stride == size else -((size - 1) // 2)


def box_offsets(kernel_size, stride):
    ranges = [
        range(lowest_offset(k, s), lowest_offset(k, s) + k)
        for k, s in zip(kernel_size, stride, strict=True)
    ]
    return list(itertools.product(*ranges))


def coarse_rows(rows, stride):
    """``unique(floor(rows / stride))`` with Python integers."""
    stride = (1, *per_axis(stride, rows.shape[1] - 1))
    sites = {
        tuple(math.floor(c / s) for c, s in zip(r, stride, strict=True)) for r in rows.tolist()
    }
    return sorted_rows(sites, rows.shape[1])


def reached_rows(rows, kernel_size, stride=1, dilation=1, transposed=False):
    """Every site that a tap reaches: the outputs of a generative map."""
    ndim = rows.shape[1] - 1
    size, step, dilations = (per_axis(v, ndim) for v in (kernel_size, stride, dilation))
    sites = set()
    for batch, *site in rows.tolist():
        for offset in box_offsets(size, step):
            shift = [o * d for o, d in zip(offset, dilations, strict=True)]
            if transposed:
                sites.add((batch, *(c * s + o for c, s, o in zip(site, step, shift, strict=True))))
            else:
                found = [divmod(c - o, s) for c, o, s in zip(site, shift, step, strict=True)]
                if all(remainder == 0 for _, remainder in found):
                    sites.add((batch, *(quotient for quotient, _ in found)))
    return sorted_rows(sites, ndim + 1)


def sorted_rows(sites, width):
    return np.asarray(sorted(sites), np.int32).reshape(-1, width)


def neighbor_dictionary(rows, out_rows, offsets, stride=1, dilation=1, transposed=False):
    """``int32[M, K]``: the input row under each tap, or -1, by looking every one up."""
    ndim = rows.shape[1] - 1
    stride, dilation = per_axis(stride, ndim), per_axis(dilation, ndim)
    table = np.full((len(out_rows), len(offsets)), -1, np.int32)
    coarse, fine = (rows, out_rows) if transposed else (out_rows, rows)
    index = {tuple(row): i for i, row in enumerate(fine.tolist())}
    for i, (batch, *site) in enumerate(coarse.tolist()):
        for k, offset in enumerate(offsets):
            steps = zip(site, stride, offset, dilation, strict=True)
            j = index.get((batch, *(c * s + o * d for c, s, o, d in steps)), -1)
            if j >= 0:
                table[(j, k) if transposed else (i, k)] = i if transposed else j
    return table


def merge_rows(rows, features, reduction):
    """``(unique rows, features, inverse)`` by looping over the input once."""
    unique = sorted_rows({tuple(r) for r in rows.tolist()}, rows.shape[1])
    index = {tuple(row): i for i, row in enumerate(unique.tolist())}
    inverse = np.asarray([index[tuple(r)] for r in rows.tolist()], np.int32)
    merge = {
        "mean": lambda group: group.mean(0),
        "sum": lambda group: group.sum(0),
        "max": lambda group: group.max(0),
        "min": lambda group: group.min(0),
        "first": lambda group: group[0],
    }[reduction]
    groups = [merge(features[inverse == i]) for i in range(len(unique))]
    return unique, np.asarray(groups, features.dtype).reshape(-1, features.shape[1]), inverse
