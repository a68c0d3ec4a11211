"""Points and voxels on sites, one point at a time.

A *cloud* is a list of ``(scene, position)``: an integer and D float64 numbers. A *lattice* is
``(size, origin)``, D numbers each, or None for unit cells at zero: the site with coordinate c
covers ``origin + size * c`` to ``origin + size * (c + 1)``.
"""

import itertools
import math

import numpy as np

from oracle.sites import Sites


def cells(position, lattice=None):
    """The position in units of cells."""
    size, origin = lattice or ((1,) * len(position), (0,) * len(position))
    return [(p - o) / s for p, s, o in zip(position, size, origin, strict=True)]


def containing(scene, position, lattice=None):
    """The site that the point lies in."""
    return (scene, *(math.floor(x) for x in cells(position, lattice)))


def around(scene, position, lattice=None):
    """``{site: weight}`` of multilinear interpolation between centers."""
    inner = [x - 0.5 for x in cells(position, lattice)]
    low = [math.floor(x) for x in inner]
    corners = {}
    for step in itertools.product((0, 1), repeat=len(inner)):
        weights = [1 - abs(x - (b + s)) for x, b, s in zip(inner, low, step, strict=True)]
        site = (scene, *(b + s for b, s in zip(low, step, strict=True)))
        corners[site] = math.prod(weights)
    return corners


def taps(scene, position, interpolation, lattice=None):
    """``{site: weight}``, whether or not these sites exist."""
    if interpolation == "nearest":
        return {containing(scene, position, lattice): 1.0}
    return around(scene, position, lattice)


def devoxelize(sites, cloud, interpolation, normalize=False, lattice=None):
    """``float64[N, C]``: what the sites hold at the positions."""
    out = np.zeros((len(cloud), sites.channels))
    for row, (scene, position) in enumerate(cloud):
        found = taps(scene, position, interpolation, lattice)
        found = {site: weight for site, weight in found.items() if site in sites}
        total = sum(found.values()) if normalize else 1.0
        for site, weight in found.items():
            if total > 0:
                out[row] += weight / total * sites[site]
    return out


def splat(sites, cloud, features, interpolation, lattice=None):
    """Sites: what the points leave on the sites that exist."""
    out = {site: np.zeros(features.shape[1]) for site in sites}
    for (scene, position), feature in zip(cloud, features, strict=True):
        for site, weight in taps(scene, position, interpolation, lattice).items():
            if site in out:
                out[site] += weight * feature
    return Sites(out, sites.ndim, features.shape[1])


def groups(cloud, lattice=None):
    """``{site: [point numbers]}``."""
    found = {}
    for number, (scene, position) in enumerate(cloud):
        found.setdefault(containing(scene, position, lattice), []).append(number)
    return found


def encode(cloud, features, weights, lattice, axes, reduction="max", center=False, epsilon=1e-5):
    """Sites: points with offsets, through layers of linear map, batch norm and ReLU, by voxel.

    Args:
      cloud: all axes of the points; ``axes`` are those of the lattice.
      features: ``float64[N, C]``.
      weights: ``[C_in, C_out]`` of each layer.
      center: offsets from the centers enter too.
    """
    size, origin = lattice
    found = groups([(scene, [p[a] for a in axes]) for scene, p in cloud], lattice)
    positions = np.asarray([position for _, position in cloud], np.float64)
    from_mean, from_center = np.zeros_like(positions), np.zeros((len(cloud), len(axes)))
    for (_, *cell), members in found.items():
        from_mean[members] = positions[members] - positions[members].mean(0)
        middle = (np.asarray(cell) + 0.5) * size + origin
        from_center[members] = positions[members][:, axes] - middle
    rows = [np.asarray(features, np.float64), positions, from_mean]
    rows = np.concatenate([*rows, *([from_center] if center else [])], axis=1)
    merge = {"max": np.max, "mean": np.mean}[reduction]
    for weight in weights:
        rows = rows @ np.asarray(weight, np.float64)
        rows = np.maximum((rows - rows.mean(0)) / np.sqrt(rows.var(0) + epsilon), 0)
        merged = {site: merge(rows[members], axis=0) for site, members in found.items()}
        of_voxel = np.zeros_like(rows)
        for site, members in found.items():
            of_voxel[members] = merged[site]
        rows = np.concatenate([rows, of_voxel], axis=1)
    return Sites(merged, len(axes), weights[-1].shape[1])
