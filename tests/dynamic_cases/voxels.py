"""Operators over voxels: kernels of each voxel's own, and sets that the input decides."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

import voxax as vx
from oracle.rows import box_offsets
from oracle.sparse_dynamic import dynamic_convolution
from recipes import recipe
from samples import make_voxels
from voxax.nn.functional import focal_conv, sparse_dynamic_conv

CAPACITY, GROWN, TAPS = 64, 256, 9
OFFSETS = list(itertools.product((-1, 0, 1), repeat=2))


def sites(r):
    """Two axes, two scenes, negative coordinates; features in the padding rows too."""
    rows = np.unique(np.c_[r.integers(0, 2, 50), r.integers(-4, 4, (50, 2))], axis=0)
    rows[0, 0], rows[-1, 0] = 0, 1
    rows = np.unique(rows, axis=0)
    with jax.enable_x64(False):
        geometry = make_voxels(rows, capacity=CAPACITY).geometry
    return {"geometry": geometry, "x": r.standard_normal((CAPACITY, 3))}


def coords(v):
    geometry = v["geometry"]
    return np.asarray(geometry.coords)[: int(geometry.count)]


def by_rows(part, rows):
    """Pad with rows of zeros."""
    y = np.zeros((rows, part.shape[1]))
    y[: len(part)] = part
    return y


# What an output voxel chooses.
CHOICES = {
    "size": lambda r: r.integers(0, 5, CAPACITY).astype(np.int32),
    # Away from where the ramp begins and ends.
    "soft": lambda r: r.integers(0, 16, CAPACITY) / 4 + 1 / 8,
    "mask": lambda r: r.standard_normal((CAPACITY, TAPS)),
    "mixture": lambda r: r.standard_normal((CAPACITY, 2)),
    "dilation": lambda r: r.integers(1, 3, CAPACITY).astype(np.int32),
}


def sparse(r, choices, stride=1, **options):
    v = sites(r)
    bank = (2,) if "mixture" in choices else ()
    v |= {"w": r.standard_normal((*bank, TAPS, 3, 4)), "bias": r.standard_normal(4)}
    v |= {("size" if name == "soft" else name): CHOICES[name](r) for name in choices}
    if "soft" in choices:
        options["tau"] = 1.75
    names = [name for name in ("size", "mask", "mixture", "dilation") if name in v]

    def run(v):
        given = {name: jnp.asarray(v[name]) for name in names}
        of = vx.Voxels(v["geometry"], v["x"])
        out = sparse_dynamic_conv(of, v["w"], 3, stride, bias=v["bias"], **given, **options)
        return out.features

    def want(v):
        rows = coords(v)
        coarse = rows.copy()
        coarse[:, 1:] //= stride
        out = np.unique(coarse, axis=0)
        given = {name: np.asarray(v[name])[: len(out)] for name in names}
        y, _ = dynamic_convolution(
            v["x"][: len(rows)], rows, out, box_offsets((3, 3), (1, 1)), v["w"], stride=stride,
            tau=options.get("tau"), **given,
        )  # fmt: skip
        return by_rows(y + v["bias"], CAPACITY)

    return v, run, want


def focal(r):
    v = sites(r) | {
        "w": r.standard_normal((TAPS, 3, 4)),
        "importance": r.uniform(0, 1, (CAPACITY, TAPS)),
    }

    def run(v):
        of = vx.Voxels(v["geometry"], v["x"])
        return focal_conv(of, v["w"], v["importance"], threshold=0.6, capacity=GROWN).features

    def want(v):
        rows, importance = coords(v), v["importance"]
        grown = {tuple(row) for row in rows.tolist()}
        for row, of in zip(rows.tolist(), importance, strict=False):
            if of[4] > 0.6:
                near = [o for o, i in zip(OFFSETS, of, strict=True) if i > 0.6]
                grown |= {(row[0], row[1] + o[0], row[2] + o[1]) for o in near}
        gated = v["x"][: len(rows)] * importance[: len(rows), 4:5]
        y, _ = dynamic_convolution(gated, rows, np.array(sorted(grown)), OFFSETS, v["w"])
        return by_rows(y, GROWN)

    return v, run, want


def positional(r):
    v = sites(r) | {
        "w": r.standard_normal((TAPS, 3, 4)),
        "stride": r.choice([0, 1, 2, 4], CAPACITY).astype(np.int32),
    }

    def run(v):
        of = vx.Voxels(v["geometry"], v["x"])
        return recipe("positional_stride_conv")(of, v["w"], jnp.asarray(v["stride"])).features

    def want(v):
        rows, strides = coords(v), np.asarray(v["stride"])
        keep = [s > 0 and not (c[1] % s or c[2] % s) for c, s in zip(rows, strides, strict=False)]
        y, _ = dynamic_convolution(v["x"][: len(rows)], rows, rows[keep], OFFSETS, v["w"])
        return by_rows(y, CAPACITY)

    return v, run, want


CASES = {
    **{
        f"sparse_{algorithm}": functools.partial(sparse, choices=("size",), algorithm=algorithm)
        for algorithm in ("grouped", "masked")
    },
    "sparse_bank": functools.partial(sparse, choices=("size", "mixture"), algorithm="grouped"),
    "sparse_dilation": functools.partial(sparse, choices=("size", "dilation"), dilations=(1, 2)),
    "sparse_soft_grouped": functools.partial(
        sparse, choices=("soft", "mixture"), algorithm="grouped"
    ),
    "sparse_soft_masked": functools.partial(sparse, choices=("soft",), algorithm="masked"),
    "sparse_everything": functools.partial(sparse, choices=("soft", "mask", "mixture"), stride=2),
    "focal": focal,
    "positional_stride": positional,
}
