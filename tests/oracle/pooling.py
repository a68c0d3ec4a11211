"""Pooling on sites."""

import itertools

import numpy as np

from oracle.convolution import pairs


def windows(sites, outputs, offsets, stride=1, dilation=1, transposed=False):
    """For every output the features under its taps, in the taps' order."""
    found = {site: [] for site in outputs}
    for source, _, target in pairs(sites, outputs, offsets, stride, dilation, transposed):
        found[target].append(sites[source])
    return found


def pool(sites, outputs, offsets, reduction, channels, stride=1, dilation=1, transposed=False):
    """``reduction`` of the features under the taps; zeros where there are none."""
    reduce = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[reduction]
    return {
        site: reduce(group, axis=0) if group else np.zeros(channels)
        for site, group in windows(sites, outputs, offsets, stride, dilation, transposed).items()
    }


def max_unpool(sites, outputs, offsets, stride=1, dilation=1):
    """Every maximum at the first site that holds it, zeros elsewhere; meeting values add up."""
    result = {site: np.zeros_like(value) for site, value in sites.items()}
    best = {}
    for source, _, target in pairs(sites, outputs, offsets, stride, dilation):
        for channel, value in enumerate(sites[source]):
            if (target, channel) not in best or value > best[target, channel][0]:
                best[target, channel] = (value, source)
    for (_, channel), (value, source) in best.items():
        result[source][channel] += value
    return result


def global_pool(sites, reduction, channels, batch_size):
    """``[batch_size, C]``; zeros for an empty scene."""
    rows = []
    for scene in range(batch_size):
        group = [value for site, value in sites.items() if site[0] == scene]
        reduce = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[reduction]
        rows.append(reduce(group, axis=0) if group else np.zeros(channels))
    return np.asarray(rows)


def cells(factor):
    """The cells of one block, lexicographic."""
    return list(itertools.product(*(range(f) for f in factor)))


def space_to_channel(sites, factor, channels):
    """Channels of a block's cells side by side."""
    order = cells(factor)
    result = {}
    for (batch, *center), value in sites.items():
        block = (batch, *(c // f for c, f in zip(center, factor, strict=True)))
        slot = order.index(tuple(c % f for c, f in zip(center, factor, strict=True)))
        row = result.setdefault(block, np.zeros(len(order) * channels))
        row[slot * channels : (slot + 1) * channels] = value
    return result


def channel_to_space(sites, factor, channels, outputs=None):
    """Every cell of every block, or only those in ``outputs``."""
    result = {}
    for (batch, *center), value in sites.items():
        for slot, cell in enumerate(cells(factor)):
            place = (batch, *(c * f + o for c, f, o in zip(center, factor, cell, strict=True)))
            if outputs is None or place in outputs:
                result[place] = value[slot * channels : (slot + 1) * channels]
    return result
