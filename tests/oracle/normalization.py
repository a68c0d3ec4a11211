"""Normalization on sites."""

import numpy as np


def normalized(group, epsilon):
    """``group``, an array, to mean 0 and variance 1 over all its entries."""
    return (group - group.mean()) / np.sqrt(group.var() + epsilon)


def affine(sites, scale=None, bias=None):
    return {
        site: value * (1 if scale is None else scale) + (0 if bias is None else bias)
        for site, value in sites.items()
    }


def batch_norm(sites, epsilon):
    """Each channel over all sites."""
    return _over_sites(sites, list(sites), sites.channels, epsilon)


def layer_norm(sites, epsilon):
    """Each site over its channels."""
    return {site: normalized(value, epsilon) for site, value in sites.items()}


def rms_norm(sites, epsilon):
    return {site: value / np.sqrt((value**2).mean() + epsilon) for site, value in sites.items()}


def group_norm(sites, num_groups, epsilon):
    """Each group of channels over the sites of a scene."""
    out = {}
    for scene in {site[0] for site in sites}:
        members = [site for site in sites if site[0] == scene]
        out |= _over_sites(sites, members, num_groups, epsilon)
    return out


def instance_norm(sites, epsilon):
    """Each channel over the sites of a scene."""
    return group_norm(sites, sites.channels, epsilon)


def _over_sites(sites, members, num_groups, epsilon):
    if not members:
        return {}
    stacked = np.stack([sites[site] for site in members])
    parts = np.split(stacked, num_groups, axis=1)
    rows = np.concatenate([normalized(part, epsilon) for part in parts], axis=1)
    return dict(zip(members, rows, strict=True))
