"""Pooling in windows, over scenes and back: outputs, gradients, kernel maps."""

from __future__ import annotations

import torch

from . import inputs

WINDOWS = {
    "k2_s2": {"kernel_size": 2, "stride": 2},
    "k3_s2": {"kernel_size": 3, "stride": 2},
    "k3": {"kernel_size": 3},
    "k2": {"kernel_size": 2},
    "k3_s3": {"kernel_size": 3, "stride": 3},
    "k2_s4": {"kernel_size": 2, "stride": 4},
    "k3_d2": {"kernel_size": 3, "dilation": 2},
    "k1_s2": {"kernel_size": 1, "stride": 2},
}
KINDS = {"sum": "MinkowskiSumPooling", "avg": "MinkowskiAvgPooling", "max": "MinkowskiMaxPooling"}


def finish(x, leaf, layer, out, window=True):
    inputs.backward(out)
    found = {"x": {"C": x.C}, "out": out, "grad": inputs.gradients(leaf), "repr": repr(layer)}
    if window and out.F.dtype == torch.float64:
        kernel = layer.kernel_generator
        found["kernel_map"] = inputs.pairs(
            x.coordinate_manager.kernel_map(
                x.coordinate_map_key,
                out.coordinate_map_key,
                stride=kernel.kernel_stride,
                kernel_size=kernel.kernel_size,
                dilation=kernel.kernel_dilation,
                region_type=kernel.region_type,
                region_offset=kernel.region_offsets,
                is_transpose=layer.is_transpose,
                is_pool=True,
            )
        )
    return found


def window(me, dtype, kind, dimension, cross=False, scenes=(0, 1), **arguments):
    x, leaf = inputs.tensor(me, dtype, inputs.scene(dimension, scenes))
    if cross:
        arguments = {
            "kernel_generator": me.KernelGenerator(
                **arguments, region_type=me.RegionType.HYPER_CROSS, dimension=dimension
            ),
            "kernel_size": -1,
        }
    layer = getattr(me, KINDS[kind])(**arguments, dimension=dimension)
    return finish(x, leaf, layer, layer(x))


def ties(me, dtype, **arguments):
    """Maxima that several rows share: who gets the gradient?"""
    rows = inputs.scene(3)
    values = (inputs.features(len(rows), 3, dtype) * 2).round().requires_grad_()
    layer = me.MinkowskiMaxPooling(**arguments, dimension=3)
    x = me.SparseTensor(values, coordinates=rows)
    return finish(x, values, layer, layer(x))


def onto(me, dtype, kind, **arguments):
    """Pooling at the sites of another sparse tensor."""
    x, leaf = inputs.tensor(me, dtype, inputs.scene(3))
    other, _ = inputs.tensor(
        me, dtype, inputs.scene(3, seed=5), coordinate_manager=x.coordinate_manager
    )
    layer = getattr(me, KINDS[kind])(**arguments, dimension=3)
    return finish(x, leaf, layer, layer(x, other))


def transposed(me, dtype, dimension, alone=False, **arguments):
    """Down by a sum, and back; ``alone`` starts coarse, where no fine sites are known."""
    layer = me.MinkowskiPoolingTranspose(**arguments, dimension=dimension)
    if alone:
        x, leaf = inputs.tensor(me, dtype, inputs.scene(dimension, step=4), tensor_stride=4)
    else:
        first, leaf = inputs.tensor(me, dtype, inputs.scene(dimension))
        x = me.MinkowskiSumPooling(kernel_size=2, stride=2, dimension=dimension)(first)
    return finish(x, leaf, layer, layer(x))


def whole(me, dtype, layer, mode=None, scenes=(0, 1), dimension=3, rows=None):
    """Pooling of each scene."""
    rows = inputs.scene(dimension, scenes) if rows is None else torch.IntTensor(rows)
    x, leaf = inputs.tensor(me, dtype, rows)
    arguments = {} if mode is None else {"mode": getattr(me.PoolingMode, mode)}
    made = getattr(me, layer)(**arguments)
    return finish(x, leaf, made, made(x), window=False)


def cases():
    """Return each case by name: a function of the library and the dtype."""
    found = inputs.Cases()
    add = found.add

    for kind in KINDS:
        for dimension in (1, 2, 3, 4):
            for name, arguments in WINDOWS.items():
                add(
                    f"{kind}{dimension}_{name}", window, kind=kind, dimension=dimension, **arguments
                )
        three = {"kernel_size": 3, "stride": 2}
        add(f"{kind}3_cross", window, kind=kind, dimension=3, cross=True, **three)
        add(f"{kind}3_empty_scene", window, kind=kind, dimension=3, scenes=(0, 2), **three)
        add(
            f"{kind}3_axes", window, kind=kind, dimension=3, kernel_size=(2, 1, 3), stride=(2, 1, 1)
        )
        add(f"{kind}3_onto", onto, kind=kind, kernel_size=3)
    add("max3_ties", ties, kernel_size=3, stride=2)
    add("max3_ties_k2_s2", ties, kernel_size=2, stride=2)
    for dimension in (1, 2, 3, 4):
        for size in (2, 3):
            add(
                f"transposed{dimension}_k{size}",
                transposed,
                dimension=dimension,
                kernel_size=size,
                stride=2,
            )
        add(
            f"transposed{dimension}_expand",
            transposed,
            dimension=dimension,
            kernel_size=2,
            stride=2,
            expand_coordinates=True,
        )
        add(
            f"transposed{dimension}_alone",
            transposed,
            dimension=dimension,
            kernel_size=2,
            stride=2,
            alone=True,
        )
    for kind in ("Sum", "Avg", "Max"):
        layer = f"MinkowskiGlobal{kind}Pooling"
        for dimension in (1, 2, 3, 4):
            add(f"global{kind}{dimension}", whole, layer=layer, dimension=dimension)
        add(f"global{kind}_one_scene", whole, layer=layer, scenes=(0,))
        add(f"global{kind}_scene3_alone", whole, layer=layer, scenes=(3,))
        add(f"global{kind}_empty_scene", whole, layer=layer, scenes=(0, 2))
        add(f"global{kind}_many_scenes", whole, layer=layer, scenes=tuple(range(9)))
        add(f"global{kind}_one_voxel", whole, layer=layer, rows=[[0, 4, 5, 6]])
        one_each = [[0, 4, 5, 6], [1, 0, 0, 0]]
        add(f"global{kind}_one_voxel_each", whole, layer=layer, rows=one_each)
        for mode in ("DEFAULT", "KERNEL", "PYTORCH_INDEX"):
            name = f"GLOBAL_{kind.upper()}_POOLING_{mode}"
            layer = "MinkowskiGlobalPooling"
            add(f"mode_{name}", whole, layer=layer, mode=name)
            add(f"mode_{name}_empty_scene", whole, layer=layer, mode=name, scenes=(0, 2))
            add(f"mode_{name}_many_scenes", whole, layer=layer, mode=name, scenes=tuple(range(9)))
    add("globalPooling", whole, layer="MinkowskiGlobalPooling")
    return found
