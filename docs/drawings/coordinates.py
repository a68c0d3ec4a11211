"""Pictures of docs/operators/coordinates.md."""

import numpy as np

import voxax as vx

from .panel import Panel
from .samples import CAPACITY, shown, voxels_at

FIRST = ((0, 1), (1, 1), (1, 2), (2, 2), (3, 2))
SECOND = ((1, 2), (2, 2), (3, 2), (3, 3), (4, 4))
FIT = {"capacity": CAPACITY}


def _pair() -> tuple[vx.Voxels, vx.Voxels]:
    return voxels_at(FIRST), voxels_at(SECOND, [10, 20, 30, 40, 50])


def _by_origin(title: str, voxels: vx.Voxels, separator: str = "+", sign: str = "") -> Panel:
    """Voxels of one or two channels; the color tells which operand they come from."""
    sites = [tuple(site) for site in voxels.valid_coords()[:, 1:].tolist()]
    groups = [(site in SECOND) + (site in FIRST and site in SECOND) for site in sites]
    labels = [separator.join(f"{v:g}" for v in row) for row in voxels.valid_features()]
    return Panel(title, voxels, groups=groups, labels=labels, sign=sign)


def capacity() -> list[Panel]:
    """Arrays have more rows than there are voxels."""
    coords = np.pad(np.asarray(FIRST, np.int32), ((0, 0), (1, 0)))
    ones = np.ones((len(FIRST), 1), np.float32)
    voxels = vx.Voxels.from_coords(coords, ones, batch_size=1, capacity=8)
    count = int(voxels.count)
    rows = np.arange(voxels.capacity)
    sites = [",".join(map(str, site)) for site in voxels.valid_coords()[:, 1:].tolist()]
    return [
        Panel("voxels", voxels, labels="rows", extent=((0, 4), (0, 3))),
        Panel(
            "rows of the arrays",
            rows[:, None],
            groups=(rows >= count).astype(int),
            labels=[*sites, *["-"] * (voxels.capacity - count)],
            sign="→",
            extent=((0, voxels.capacity), (0, 1)),
            note=f"capacity {voxels.capacity}, count {count}; the rest is padding",
        ),
    ]


def sets() -> list[Panel]:
    """Union and intersection."""
    a, b = _pair()
    return [
        _by_origin("a", a),
        _by_origin("b", b),
        _by_origin("union", vx.union(a, b, **FIT)),
        _by_origin("intersection", vx.intersection(a, b, **FIT)),
    ]


def joined() -> list[Panel]:
    """Channels side by side."""
    a, b = _pair()
    return [
        _by_origin("a", a),
        _by_origin("b", b),
        _by_origin('join="union"', vx.cat([a, b], join="union", **FIT), " "),
        _by_origin('join="intersection"', vx.cat([a, b], join="intersection", **FIT), " "),
    ]


def inject() -> list[Panel]:
    """Features of one set read at another."""
    a, b = _pair()
    return [
        shown("voxels", a),
        Panel("out_voxels", b, sign=","),
        shown("inject", vx.inject(a, b), sign="→"),
    ]


def selections() -> list[Panel]:
    """Fewer voxels: by mask, by score, by box."""
    voxels = voxels_at(values=[3, 8, 1, 6, 9, 2, 7, 5, 4])
    scores = voxels.features[:, 0]
    return [
        shown("input", voxels),
        shown("prune, value > 4", vx.prune(voxels, scores > 4, **FIT)),
        shown("top_k, k=3", vx.top_k(voxels, scores, 3, **FIT)),
        shown("crop to [1, 4) × [1, 3)", vx.crop(voxels, (1, 1), (4, 3), **FIT)),
    ]


def dilated() -> list[Panel]:
    """More voxels."""
    voxels = voxels_at([(1, 1), (2, 1), (4, 4)], [1, 2, 3])
    return [
        shown("input", voxels),
        shown("dilate", vx.dilate(voxels, 3, **FIT)),
        shown('kernel_shape="cross"', vx.dilate(voxels, 3, kernel_shape="cross", **FIT)),
    ]


def levels() -> list[Panel]:
    """Draw the way to a coarser lattice and back."""
    voxels = voxels_at()
    coarse = vx.coarsen(voxels, 2, reduction="mean", **FIT)
    return [
        shown("stride 1", voxels),
        shown("coarsen, mean", coarse, sign="→"),
        shown("refine", vx.refine(coarse, 2, **FIT), sign="→"),
    ]


def scenes() -> list[Panel]:
    """Batches."""
    first, second = voxels_at([(0, 0), (1, 1), (1, 2)]), voxels_at([(0, 2), (2, 0)], [4, 5])
    both = vx.batch([first, second], **FIT)
    parts = vx.unbatch(both, **FIT)
    return [
        shown("a", first),
        shown("b", second),
        shown("batch([a, b])", both, sign="→"),
        shown("scene(1)", parts[1], sign="→"),
    ]


def bird() -> list[Panel]:
    """One axis folded away."""
    voxels = voxels_at([(0, 0), (0, 1), (1, 0), (1, 2), (3, 1), (4, 0), (4, 1), (4, 2)])
    line = ((0, 6), (0, 1))
    slabs = vx.to_bev(voxels, reduction="concat", extent=(0, 3), **FIT)
    columns = slabs.valid_coords()[:, 1]
    cells = [(x, channel) for x in columns for channel in range(3)]
    return [
        shown("input", voxels, highlight=[(4, 0), (4, 1), (4, 2)], extent=((0, 6), (0, 3))),
        shown("sum", vx.to_bev(voxels, **FIT), highlight=[(4,)], extent=line, sign="→"),
        shown("max", vx.to_bev(voxels, reduction="max", **FIT), highlight=[(4,)], extent=line),
        Panel(
            "concat",
            np.asarray(cells),
            values=slabs.valid_features().reshape(-1),
            labels="values",
            highlight=[(4, 0), (4, 1), (4, 2)],
            extent=((0, 6), (0, 3)),
            note="↑ channel",
        ),
    ]


PICTURES = (capacity, sets, joined, inject, selections, dilated, levels, scenes, bird)
