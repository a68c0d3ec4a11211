"""Set operations, other lattices and curves on sites, with Python integers."""

import itertools

import numpy as np

REDUCE = {
    "sum": lambda group: np.sum(group, axis=0),
    "mean": lambda group: np.mean(group, axis=0),
    "max": lambda group: np.max(group, axis=0),
    "min": lambda group: np.min(group, axis=0),
}


def merge(pairs, reduction):
    """Sites from ``(site, feature)`` pairs; features that meet are reduced."""
    groups = {}
    for site, feature in pairs:
        groups.setdefault(site, []).append(feature)
    return {site: REDUCE[reduction](group) for site, group in groups.items()}


def union(a, b, reduction="sum"):
    return merge([*a.items(), *b.items()], reduction)


def intersection(a, b, reduction="sum"):
    both = set(a) & set(b)
    return {site: f for site, f in union(a, b, reduction).items() if site in both}


def cat(operands, join, channels):
    """Channels side by side at the sites of any or of all operands."""
    together = set.union if join == "union" else set.intersection
    missing = np.zeros(channels)
    return {
        site: np.concatenate([operand.get(site, missing) for operand in operands])
        for site in together(*map(set, operands))
    }


def inject(sites, targets, channels):
    return {site: sites.get(site, np.zeros(channels)) for site in targets}


def top_k(sites, score, k):
    """The ``k`` best sites of each scene by ``score(feature)``; of equal ones the first."""
    kept = {}
    for scene in {site[0] for site in sites}:
        mine = sorted(site for site in sites if site[0] == scene)
        best = sorted(mine, key=lambda site: -score(sites[site]))[:k]
        kept |= {site: sites[site] for site in best}
    return kept


def crop(sites, low, high):
    return {
        site: feature
        for site, feature in sites.items()
        if all(a <= c < b for a, c, b in zip(low, site[1:], high, strict=True))
    }


def dilate(sites, offsets, channels, dilation=1):
    """Sites and every ``site - offset * dilation``, where new ones hold zeros."""
    reached = {
        (batch, *(c - o * dilation for c, o in zip(cell, offset, strict=True)))
        for batch, *cell in sites
        for offset in offsets
    }
    return inject(sites, reached | set(sites), channels)


def refine(sites, factor):
    """Every site copied to its ``prod(factor)`` children."""
    return {
        (batch, *(c * f + s for c, f, s in zip(cell, factor, step, strict=True))): feature
        for (batch, *cell), feature in sites.items()
        for step in itertools.product(*map(range, factor))
    }


def coarsen(sites, factor, reduction="mean"):
    return merge(
        (
            ((batch, *(c // f for c, f in zip(cell, factor, strict=True))), feature)
            for (batch, *cell), feature in sites.items()
        ),
        reduction,
    )


def to_bev(sites, axis, reduction, extent=None):
    """One site for each column along ``axis``; for ``concat`` slabs of channels side by side."""
    columns = {}
    for (batch, *cell), feature in sites.items():
        height = cell.pop(axis)
        if extent is None or extent[0] <= height < extent[1]:
            columns.setdefault((batch, *cell), {})[height] = feature
    if reduction != "concat":
        return {site: REDUCE[reduction](list(c.values())) for site, c in columns.items()}
    return {
        site: np.concatenate(
            [column.get(z, np.zeros_like(next(iter(column.values())))) for z in range(*extent)]
        )
        for site, column in columns.items()
    }


def relabel_scenes(sites, label):
    """Sites with scene ``label(scene)``; None leaves the scene out."""
    moved = ((label(batch), cell, feature) for (batch, *cell), feature in sites.items())
    return {(batch, *cell): feature for batch, cell, feature in moved if batch is not None}


def interleave(numbers, bits):
    """The lowest ``bits`` bits of all numbers in one, the first number's highest."""
    key = 0
    for bit in reversed(range(bits)):
        for number in numbers:
            key = 2 * key + (number >> bit & 1)
    return key


def hilbert_transpose(numbers, bits):
    """Skilling's ``AxestoTranspose`` (AIP Conference Proceedings 707, 2004, appendix)."""
    x, n = list(numbers), len(numbers)
    for q in (1 << bit for bit in range(bits - 1, 0, -1)):
        for i in range(n):
            if x[i] & q:
                x[0] ^= q - 1
            else:
                swap = (x[0] ^ x[i]) & (q - 1)
                x[0] ^= swap
                x[i] ^= swap
    for i in range(1, n):
        x[i] ^= x[i - 1]
    turn = 0
    for q in (1 << bit for bit in range(bits - 1, 0, -1)):
        if x[n - 1] & q:
            turn ^= q - 1
    return [value ^ turn for value in x]


def curve_key(cell, curve, bits=31):
    """Place of a lattice cell along a curve over ``[-2**(bits - 1), 2**(bits - 1))``."""
    numbers = [c + (1 << (bits - 1)) for c in cell]
    if curve == "lexicographic":
        return tuple(numbers)
    return interleave(hilbert_transpose(numbers, bits) if curve == "hilbert" else numbers, bits)


def in_order(sites, curve):
    """Sites by scene, then along the curve."""
    return sorted(sites, key=lambda site: (site[0], curve_key(site[1:], curve)))
