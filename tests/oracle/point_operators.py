"""Neighbors of points, and convolutions over them, as their definitions read, in float64."""

import itertools
import math

import numpy as np


def neighbors(positions, scenes, around, own, radius=np.inf):
    """For each query the rows of its neighbors, nearest first, then by row."""
    lists = []
    for q, scene in zip(around, own, strict=True):
        apart = ((positions - q) ** 2).sum(1)
        near = np.flatnonzero((scenes == scene) & (apart <= radius**2))
        lists.append(near[np.argsort(apart[near], kind="stable")])
    return lists


def ball_to_cube(p):
    """Griepentrog et al. 2008, as the appendix of Ummenhofer et al. 2020 gives it."""
    if len(p) == 1:
        return np.array(p)
    x, y, z = (*p, 0.0) if len(p) == 2 else p
    norm = math.sqrt(x * x + y * y + z * z)
    if norm == 0:
        return np.zeros(len(p))
    if len(p) == 3:
        if 5 / 4 * z * z > x * x + y * y:
            s = math.sqrt(3 * norm / (norm + abs(z)))
            x, y, z = x * s, y * s, math.copysign(norm, z)
        else:
            s = norm / math.sqrt(x * x + y * y)
            x, y, z = x * s, y * s, 1.5 * z
    flat = math.sqrt(x * x + y * y)
    if flat == 0:
        x = y = 0.0
    elif abs(y) <= abs(x):
        x, y = (math.copysign(flat, x), math.copysign(flat, x) * 4 / math.pi * math.atan(y / x))
    else:
        x, y = (math.copysign(flat, y) * 4 / math.pi * math.atan(x / y), math.copysign(flat, y))
    return np.array([x, y, z][: len(p)])


def radial(p):
    longest = np.abs(p).max()
    return p * np.linalg.norm(p) / longest if longest else p


MAPPINGS = {"volume_preserving": ball_to_cube, "radial": radial, "identity": lambda p: p}


def filter_at(weight, place):
    """The grid of matrices ``[*T, C, C_out]`` at a place of the cube, corner to corner."""
    sizes = weight.shape[:-2]
    at = np.clip((np.clip(place, -1, 1) + 1) / 2 * (np.array(sizes) - 1), 0, None)
    low = np.minimum(np.floor(at).astype(int), np.maximum(np.array(sizes) - 2, 0))
    total = np.zeros(weight.shape[-2:])
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        node = low + corner
        part = np.prod([1 - abs(a - n) for a, n in zip(at, node, strict=True)])
        if part > 0 and all(n < s for n, s in zip(node, sizes, strict=True)):
            total += part * weight[tuple(node)]
    return total


def continuous_conv(p, x, w, lists, q, radius, mapping="volume_preserving", normalize=False):
    y = np.zeros((len(q), w.shape[-1]))
    for m, rows in enumerate(lists):
        total = 0.0
        for i in rows:
            r = (p[i] - q[m]) / radius
            a = max(1 - r @ r, 0) ** 3
            total += a
            y[m] += a * (x[i] @ filter_at(w, MAPPINGS[mapping](r)))
        if normalize and total:
            y[m] /= total
    return y


def kernel_point_conv(p, x, w, lists, q, nodes, extent, offsets=None, factors=None, kind="linear"):
    y = np.zeros((len(q), w.shape[-1]))
    for m, rows in enumerate(lists):
        for i, k in itertools.product(rows, range(len(w))):
            node = nodes[k] + (0 if offsets is None else offsets[m, k])
            d = np.linalg.norm(p[i] - q[m] - node)
            h = {
                "linear": max(0, 1 - d / extent),
                "gaussian": np.exp(-(d**2) / (2 * (0.3 * extent) ** 2)),
                "constant": 1.0,
            }[kind]
            y[m] += h * (1 if factors is None else factors[m, k]) * (x[i] @ w[k])
    return y


def kernel_point_penalty(p, lists, q, nodes, offsets, extent):
    fitting = repulsive = 0.0
    for m, rows in enumerate(lists):
        own = nodes + offsets[m]
        for k, node in enumerate(own):
            if len(rows):
                near = min(np.sum((p[i] - q[m] - node) ** 2) for i in rows)
                fitting += near / extent**2
            for other, place in enumerate(own):
                if other != k:
                    h = max(0, 1 - np.linalg.norm(node - place) / extent)
                    repulsive += h**2
    return fitting / len(q), repulsive / len(q)


def point_conv(p, x, w, lists, q, weight_net, density, density_net):
    y = np.zeros((len(q), w.shape[-1]))
    for m, rows in enumerate(lists):
        most = max((1 / density[i] for i in rows), default=1.0)
        for i in rows:
            g = weight_net(p[i] - q[m])
            s = density_net(np.array([1 / density[i] / most]))[0]
            y[m] += s * np.einsum("t,c,tco->o", g, x[i], w)
    return y


def point_density(p, lists, q, bandwidth):
    ndim = p.shape[1]
    scale = (math.sqrt(2 * math.pi) * bandwidth) ** ndim
    return np.array(
        [
            sum(np.exp(-np.sum((p[i] - q[m]) ** 2) / (2 * bandwidth**2)) for i in rows) / scale
            for m, rows in enumerate(lists)
        ]
    )
