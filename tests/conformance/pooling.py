"""Pooling, unpooling, and folding space into channels."""

import math

import jax.numpy as jnp
import numpy as np

from conformance.convolution import LOW, WITHIN_RANGE, Kernel, coarse_of, relabeled
from conformance.definition import Operator
from conformance.layouts import CAPACITY
from oracle import pooling as loops
from oracle.convolution import reached_sites
from voxax.nn import functional as F

POOLS = {"sum": F.sum_pool, "mean": F.mean_pool, "max": F.max_pool, "min": F.min_pool}


def arguments(kernel, ndim):
    """Return the arguments of the pooling functions."""
    given = kernel.arguments(ndim)
    del given["transposed"]
    return given


def pool(name, reduction, kernel, generative=False, **options):
    def run(voxels, params):
        del params
        given = arguments(kernel, voxels.geometry.ndim)
        if generative:
            taps = len(kernel.relation(voxels.geometry.ndim)["offsets"])
            given |= {"generative": True, "capacity": CAPACITY * taps}
        return POOLS[reduction](voxels, **given)

    def reference(sites, params, batch_size):
        del params, batch_size
        relation = kernel.relation(sites.ndim)
        outputs = reached_sites(sites, **relation) if generative else coarse_of(sites, kernel)
        return loops.pool(sites, outputs, reduction=reduction, channels=sites.channels, **relation)

    return Operator(name, run, reference, **options)


def global_pool(reduction):
    def run(voxels, params):
        del params
        return F.global_pool(voxels, reduction)

    def reference(sites, params, batch_size):
        del params
        return loops.global_pool(sites, reduction, sites.channels, batch_size)

    return Operator(f"global_pool_{reduction}", run, reference)


def unpool(name, kernel, **options):
    """Pool, then copy back."""

    def run(voxels, params):
        del params
        given = arguments(kernel, voxels.geometry.ndim)
        return F.unpool(F.sum_pool(voxels, **given), voxels, **given)

    def reference(sites, params, batch_size):
        del params, batch_size
        relation = kernel.relation(sites.ndim)
        channels = sites.channels
        coarse = coarse_of(sites, kernel)
        pooled = loops.pool(sites, coarse, reduction="sum", channels=channels, **relation)
        relation["transposed"] = True
        return loops.pool(pooled, sites, reduction="mean", channels=channels, **relation)

    return Operator(name, run, reference, **options)


def max_unpool(name, kernel, **options):
    """Back to the rows that the maxima were taken from."""

    def run(voxels, params):
        del params
        given = arguments(kernel, voxels.geometry.ndim)
        pooled, indices = F.max_pool(voxels, return_indices=True, **given)
        return F.unpool(pooled, voxels, indices)

    def reference(sites, params, batch_size):
        del params, batch_size
        relation = kernel.relation(sites.ndim)
        del relation["transposed"]
        return loops.max_unpool(sites, coarse_of(sites, kernel), **relation)

    return Operator(name, run, reference, **options)


FACTOR = (2, 3, 1, 2)


def run_space_to_channel(voxels, params):
    del params
    return F.space_to_channel(voxels, FACTOR[: voxels.geometry.ndim])


def space_to_channel(sites, params, batch_size):
    del params, batch_size
    return loops.space_to_channel(sites, FACTOR[: sites.ndim], sites.channels)


def run_channel_to_space(voxels, params):
    """Every cell of every block. The channels are repeated until they fill the cells."""
    del params
    ndim = voxels.geometry.ndim
    cells = math.prod(FACTOR[:ndim])
    coarse = relabeled(voxels, FACTOR[:ndim])
    stacked = coarse.map(lambda f: (f[:, None, :] * scale(cells, f.dtype)).reshape(len(f), -1))
    return F.channel_to_space(stacked, FACTOR[:ndim], capacity=cells * CAPACITY)


def scale(cells, dtype):
    """Small whole numbers, exact in every dtype."""
    return jnp.arange(1, cells + 1, dtype=dtype)[None, :, None]


def channel_to_space(sites, params, batch_size):
    del params, batch_size
    factor = FACTOR[: sites.ndim]
    numbers = range(1, math.prod(factor) + 1)
    stacked = {site: np.concatenate([value * n for n in numbers]) for site, value in sites.items()}
    return loops.channel_to_space(stacked, factor, sites.channels)


def run_there_and_back(voxels, params):
    del params
    factor = FACTOR[: voxels.geometry.ndim]
    return F.channel_to_space(F.space_to_channel(voxels, factor), factor, voxels)


def unchanged(sites, params, batch_size):
    del params, batch_size
    return sites


OPERATORS = (
    *(pool(f"{r}_pool", r, Kernel(2, 2)) for r in POOLS),
    *(pool(f"{r}_pool_overlapping", r, Kernel(3, 2), dims=LOW) for r in POOLS),
    *(pool(f"{r}_pool_same", r, Kernel(3, 1, 2), dims=(2, 3)) for r in POOLS),
    pool("max_pool_cross", "max", Kernel(3, 1, 1, "cross"), dims=(2, 3)),
    pool("max_pool_uneven", "max", Kernel((3, 2, 1, 2), (1, 2, 1, 3), (2, 1, 1, 1))),
    pool("max_pool_generative", "max", Kernel(3), True, layouts=WITHIN_RANGE, dims=(1, 2)),
    *(global_pool(r) for r in POOLS),
    unpool("unpool", Kernel(2, 2)),
    unpool("unpool_overlapping", Kernel(3, 2), dims=(2, 3)),
    max_unpool("max_unpool", Kernel(2, 2)),
    max_unpool("max_unpool_overlapping", Kernel(3, 2), dims=(2, 3)),
    Operator("space_to_channel", run_space_to_channel, space_to_channel),
    Operator("channel_to_space", run_channel_to_space, channel_to_space, layouts=WITHIN_RANGE),
    Operator("space_to_channel_and_back", run_there_and_back, unchanged),
)
