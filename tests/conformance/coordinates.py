"""The coordinate algebra: sets, selections, other lattices, curves."""

import math

import jax.numpy as jnp
import numpy as np

import voxax as vx
from conformance.convolution import WITHIN_RANGE
from conformance.definition import Operator
from conformance.layouts import BATCH_SIZE, CAPACITY
from oracle import coordinates as loops
from oracle.convolution import make_offsets

REDUCTIONS = ("sum", "mean", "max", "min")
OTHERS = ("mean", "max", "min")
TOGETHER = 2 * CAPACITY


def partner(voxels):
    """Voxels whose first coordinate has the lowest bit flipped, so that none leaves the range."""
    moved = voxels.coords.at[:, 1].set(voxels.coords[:, 1] ^ 1)
    coords = jnp.where(voxels.valid[:, None], moved, vx.PAD)
    return vx.Voxels.from_coords(
        coords, 2 * voxels.features, voxels.batch_size, capacity=voxels.capacity
    )


def partner_sites(sites):
    return {(b, x ^ 1, *rest): 2 * feature for (b, x, *rest), feature in sites.items()}


def other_set(rng, ndim, channels):
    """Twelve fixed voxels around the origin."""
    cells = np.indices((BATCH_SIZE, *(4,) * ndim)).reshape(1 + ndim, -1).T
    cells[:, 1:] -= 2
    return {
        "rows": rng.permutation(cells)[:12].astype(np.int32),
        "values": rng.normal(size=(12, channels)),
    }


def other(voxels, params):
    return vx.Voxels.from_coords(
        params["rows"], params["values"], voxels.batch_size, capacity=CAPACITY
    )


def other_sites(params):
    return {tuple(r): v for r, v in zip(params["rows"].tolist(), params["values"], strict=True)}


def with_partner(name, function, reference, **options):
    """An operator of the voxels and their partner."""

    def run(voxels, params):
        del params
        return function(voxels, partner(voxels))

    def expected(sites, params, batch_size):
        del params, batch_size
        return reference(sites, partner_sites(sites))

    return Operator(name, run, expected, **options)


def with_other(name, function, reference, **options):
    """An operator of the voxels and a fixed set of others."""

    def run(voxels, params):
        return function(voxels, other(voxels, params))

    def expected(sites, params, batch_size):
        del batch_size
        return reference(sites, other_sites(params))

    return Operator(name, run, expected, other_set, **options)


def of_voxels(name, function, reference, **options):
    """An operator of the voxels alone."""

    def run(voxels, params):
        del params
        return function(voxels)

    def expected(sites, params, batch_size):
        del params, batch_size
        return reference(sites)

    return Operator(name, run, expected, **options)


def union(reduction, **options):
    return with_partner(
        f"union_{reduction}",
        lambda a, b: vx.union(a, b, reduction=reduction, capacity=TOGETHER),
        lambda a, b: loops.union(a, b, reduction),
        **options,
    )


def intersection(reduction, **options):
    return with_partner(
        f"intersection_{reduction}",
        lambda a, b: vx.intersection(a, b, reduction=reduction, capacity=CAPACITY),
        lambda a, b: loops.intersection(a, b, reduction),
        **options,
    )


def cat(join):
    return with_partner(
        f"cat_{join}",
        lambda a, b: vx.cat([a, b, a], join, capacity=TOGETHER),
        lambda a, b: loops.cat([a, b, a], join, a.channels),
    )


def dilate(name, size=3, shape="box", dilation=1, **options):
    def run(voxels):
        taps = len(make_offsets(voxels.geometry.ndim, size, kernel_shape=shape)) + 1
        return vx.dilate(
            voxels, size, kernel_shape=shape, dilation=dilation, capacity=taps * CAPACITY
        )

    def reference(sites):
        offsets = make_offsets(sites.ndim, size, kernel_shape=shape)
        return loops.dilate(sites, offsets, sites.channels, dilation)

    return of_voxels(name, run, reference, layouts=WITHIN_RANGE, **options)


def refine(name, factor):
    def run(voxels):
        factors = factor[: voxels.geometry.ndim]
        return vx.refine(voxels, factors, capacity=math.prod(factors) * CAPACITY)

    return of_voxels(
        name, run, lambda sites: loops.refine(sites, factor[: sites.ndim]), layouts=WITHIN_RANGE
    )


def coarsen(name, factor, reduction, **options):
    return of_voxels(
        name,
        lambda v: vx.coarsen(v, factor[: v.geometry.ndim], reduction=reduction, capacity=CAPACITY),
        lambda sites: loops.coarsen(sites, factor[: sites.ndim], reduction),
        **options,
    )


def to_bev(name, reduction, axis=-1, extent=None, **options):
    options = {"dims": (2, 3, 4), **options}
    return of_voxels(
        name,
        lambda v: vx.to_bev(v, axis, reduction=reduction, extent=extent, capacity=CAPACITY),
        lambda sites: loops.to_bev(sites, axis, reduction, extent),
        **options,
    )


def crop(name, low, high):
    return of_voxels(
        name,
        lambda v: vx.crop(v, low[: v.geometry.ndim], high[: v.geometry.ndim], capacity=CAPACITY),
        lambda sites: loops.crop(sites, low[: sites.ndim], high[: sites.ndim]),
    )


def curve(name):
    """Features along the curve, zeros behind them."""

    def run(voxels):
        clean = voxels.map(lambda f: f)
        return clean.features[vx.curve_order(voxels, name).order]

    def reference(sites):
        rows = np.zeros((CAPACITY, sites.channels))
        for place, site in enumerate(loops.in_order(sites, name)):
            rows[place] = sites[site]
        return rows

    return of_voxels(f"curve_order_{name}", run, reference, dtypes=("float32",))


def run_there_and_back(voxels):
    scenes = vx.unbatch(voxels, capacity=CAPACITY)
    return vx.batch(scenes[::-1], capacity=CAPACITY)


def positive(feature):
    return feature[0] > 0


LAST = -vx.coords.COORD_LIMIT

OPERATORS = (
    union("sum"),
    *(union(reduction, dims=(2, 3)) for reduction in OTHERS),
    with_other("union_with_fixed", lambda a, b: vx.union(a, b, capacity=TOGETHER), loops.union),
    intersection("sum"),
    *(intersection(reduction, dims=(2, 3)) for reduction in OTHERS),
    of_voxels(
        "cat_same",
        lambda v: vx.cat([v, v.map(lambda f: 2 * f)]),
        lambda sites: {site: np.concatenate([f, 2 * f]) for site, f in sites.items()},
    ),
    cat("union"),
    cat("intersection"),
    with_partner("inject", vx.inject, lambda a, b: loops.inject(a, b, a.channels)),
    with_other(
        "inject_fixed", lambda a, b: vx.inject(b, a), lambda a, b: loops.inject(b, a, a.channels)
    ),
    of_voxels(
        "prune",
        lambda v: vx.prune(v, positive(v.features.T), capacity=CAPACITY),
        lambda sites: {site: f for site, f in sites.items() if positive(f)},
    ),
    of_voxels(
        "top_k",
        lambda v: vx.top_k(v, v.features[:, 0], 5, capacity=CAPACITY),
        lambda sites: loops.top_k(sites, lambda f: f[0], 5),
    ),
    crop("crop", (-1, 0, -2, 0), (2, 13, 14, 13)),
    crop("crop_at_the_edge", (LAST,) * 4, (LAST + 2, LAST + 3, LAST + 2, LAST + 4)),
    dilate("dilate", dims=(1, 2, 3)),
    dilate("dilate_cross", shape="cross"),
    dilate("dilate_one_sided", size=2, dilation=3, dims=(1, 2)),
    dilate("dilate_custom", shape=((0, 2), (-1, 1)), dims=(2,)),
    refine("refine", (2, 2, 2, 2)),
    refine("refine_uneven", (3, 1, 2, 1)),
    coarsen("coarsen_mean", (2, 2, 2, 2), "mean"),
    *(coarsen(f"coarsen_{r}", (2, 2, 2, 2), r, dims=(2, 3)) for r in ("sum", "max", "min")),
    coarsen("coarsen_uneven", (2, 3, 1, 2), "mean"),
    of_voxels(
        "batch_of_unbatched",
        run_there_and_back,
        lambda sites: loops.relabel_scenes(sites, lambda b: BATCH_SIZE - 1 - b),
    ),
    of_voxels(
        "scene",
        lambda v: v.scene(1),
        lambda sites: loops.relabel_scenes(sites, lambda b: 0 if b == 1 else None),
    ),
    to_bev("to_bev_sum", "sum"),
    *(to_bev(f"to_bev_{reduction}", reduction, dims=(3,)) for reduction in OTHERS),
    to_bev("to_bev_first_axis", "max", 0),
    to_bev("to_bev_slab", "sum", extent=(-1, 12), dims=(3,)),
    to_bev("to_bev_concat", "concat", extent=(-2, 13)),
    *(curve(name) for name in ("lexicographic", "morton", "hilbert")),
)
