"""Convolutions, transposed, generative and channelwise ones: outputs, gradients, kernel maps."""

from __future__ import annotations

import torch

from . import inputs

CONVOLUTION = "MinkowskiConvolution"
TRANSPOSED = "MinkowskiConvolutionTranspose"
GENERATIVE = "MinkowskiGenerativeConvolutionTranspose"
CHANNELWISE = "MinkowskiChannelwiseConvolution"

# Name, then arguments of every layer in one to four dimensions.
EVERYWHERE = {
    "k1": {"kernel_size": 1},
    "k2": {"kernel_size": 2},
    "k3": {"kernel_size": 3},
    "k4": {"kernel_size": 4},
    "k5": {"kernel_size": 5},
    "k1_s2": {"kernel_size": 1, "stride": 2},
    "k2_s2": {"kernel_size": 2, "stride": 2},
    "k3_s2": {"kernel_size": 3, "stride": 2},
    "k4_s2": {"kernel_size": 4, "stride": 2},
    "k5_s2": {"kernel_size": 5, "stride": 2},
    "k2_s3": {"kernel_size": 2, "stride": 3},
    "k3_s3": {"kernel_size": 3, "stride": 3},
    "k3_d2": {"kernel_size": 3, "dilation": 2},
    "k2_d3": {"kernel_size": 2, "dilation": 3},
    "k3_s2_d2": {"kernel_size": 3, "stride": 2, "dilation": 2},
    "k3_bias": {"kernel_size": 3, "bias": True},
    "k1_bias": {"kernel_size": 1, "bias": True},
    "k3_cross": {"kernel_size": 3, "region": "HYPER_CROSS"},
    "k5_cross": {"kernel_size": 5, "region": "HYPER_CROSS"},
    "k3_s2_cross": {"kernel_size": 3, "stride": 2, "region": "HYPER_CROSS"},
    "k3_d2_cross": {"kernel_size": 3, "dilation": 2, "region": "HYPER_CROSS"},
    "k3_expand": {"kernel_size": 3, "expand_coordinates": True},
    "k2_expand": {"kernel_size": 2, "expand_coordinates": True},
    "k3_s2_expand": {"kernel_size": 3, "stride": 2, "expand_coordinates": True},
    "k2_s2_expand": {"kernel_size": 2, "stride": 2, "expand_coordinates": True},
}
# In three dimensions too.
PER_AXIS = {
    "axes_kernel": {"kernel_size": (3, 1, 2)},
    "axes_stride": {"kernel_size": 3, "stride": (2, 1, 1)},
    "axes_dilation": {"kernel_size": 3, "dilation": (1, 2, 3)},
    "axes_all": {"kernel_size": (3, 2, 1), "stride": (1, 2, 1), "dilation": (2, 1, 1)},
    "axes_list": {"kernel_size": [1, 3, 3], "stride": [1, 2, 2]},
    "axes_cross": {"kernel_size": (3, 5, 1), "region": "HYPER_CROSS"},
}
BACK = {
    "k1": {"kernel_size": 1, "stride": 2},
    "k2": {"kernel_size": 2, "stride": 2},
    "k3": {"kernel_size": 3, "stride": 2},
    "k4": {"kernel_size": 4, "stride": 2},
    "k5": {"kernel_size": 5, "stride": 2},
    "k3_bias": {"kernel_size": 3, "stride": 2, "bias": True},
    "k3_d2": {"kernel_size": 3, "stride": 2, "dilation": 2},
    "k3_cross": {"kernel_size": 3, "stride": 2, "region": "HYPER_CROSS"},
}


def make(me, dtype, layer, dimension, region=None, channels=(3, 2), **arguments):
    """Make a layer with weights by seed."""
    arguments["dimension"] = dimension
    if region is not None:
        names = ("kernel_size", "stride", "dilation")
        own = {name: arguments.pop(name) for name in names if name in arguments}
        region = getattr(me.RegionType, region)
        arguments["kernel_generator"] = me.KernelGenerator(
            **own, region_type=region, dimension=dimension
        )
    sizes = channels[:1] if layer == CHANNELWISE else channels
    return inputs.fill(getattr(me, layer)(*sizes, **arguments), dtype)


def kernel_map(x, out, layer):
    kernel = layer.kernel_generator
    found = x.coordinate_manager.kernel_map(
        x.coordinate_map_key,
        out.coordinate_map_key,
        stride=kernel.kernel_stride,
        kernel_size=kernel.kernel_size,
        dilation=kernel.kernel_dilation,
        region_type=kernel.region_type,
        region_offset=kernel.region_offsets,
        is_transpose=getattr(layer, "is_transpose", False),
    )
    return inputs.pairs(found)


def result(x, leaf, layer, out):
    inputs.backward(out)
    found = {"x": {"C": x.C}, "out": out, "grad": inputs.gradients(leaf, layer)}
    found["repr"] = repr(layer)
    if out.F.dtype == torch.float64:
        found["kernel_map"] = kernel_map(x, out, layer)
    return found


def one(me, dtype, layer, dimension, scenes=(0, 1), step=1, **arguments):
    x, leaf = inputs.tensor(
        me, dtype, inputs.scene(dimension, scenes, step=step), tensor_stride=step
    )
    made = make(me, dtype, layer, dimension, **arguments)
    return result(x, leaf, made, made(x))


def there_and_back(me, dtype, dimension, **arguments):
    """A strided layer, then a transposed one of the same arguments: the first sites return."""
    first, leaf = inputs.tensor(me, dtype, inputs.scene(dimension))
    down = make(me, dtype, CONVOLUTION, dimension, kernel_size=2, stride=2)
    up = make(me, dtype, TRANSPOSED, dimension, channels=(2, 3), **arguments)
    middle = down(first)
    out = up(middle)
    found = result(middle, leaf, up, out)
    found["same_key"] = out.coordinate_map_key == first.coordinate_map_key
    return found


def two_levels(me, dtype, dimension):
    """A small network: strides 1, 2, 4, back to 2 and 1, with layers between."""
    x, leaf = inputs.tensor(me, dtype, inputs.scene(dimension))
    three = {"kernel_size": 3}
    layers = torch.nn.Sequential(
        make(me, dtype, CONVOLUTION, dimension, channels=(3, 4), **three, stride=2),
        make(me, dtype, CONVOLUTION, dimension, channels=(4, 4), **three),
        make(me, dtype, CONVOLUTION, dimension, channels=(4, 5), kernel_size=2, stride=2),
        make(me, dtype, CONVOLUTION, dimension, channels=(5, 5), **three, dilation=2),
        make(me, dtype, TRANSPOSED, dimension, channels=(5, 4), kernel_size=2, stride=2),
        make(me, dtype, CONVOLUTION, dimension, channels=(4, 4), **three),
        make(me, dtype, TRANSPOSED, dimension, channels=(4, 2), **three, stride=2),
    )
    steps, out = [], x
    for layer in layers:
        out = layer(out)
        steps.append(out)
    inputs.backward(out)
    return {"steps": steps, "grad": inputs.gradients(leaf, layers)}


def onto(me, dtype, dimension, target, layer=CONVOLUTION, **arguments):
    """Outputs at given coordinates: a tensor of them, a sparse tensor or its key."""
    x, leaf = inputs.tensor(me, dtype, inputs.scene(dimension))
    rows = inputs.scene(dimension, seed=5)
    if target != "rows":
        other, _ = inputs.tensor(me, dtype, rows, coordinate_manager=x.coordinate_manager)
        rows = other if target == "tensor" else other.coordinate_map_key
    made = make(me, dtype, layer, dimension, **arguments)
    return result(x, leaf, made, made(x, rows))


def generate_and_prune(me, dtype, dimension):
    """A generative layer, pruned by the sum of coordinates, twice."""
    x, leaf = inputs.tensor(me, dtype, inputs.scene(dimension, step=4), tensor_stride=4)
    first = make(me, dtype, GENERATIVE, dimension, kernel_size=3, stride=2)
    second = make(me, dtype, GENERATIVE, dimension, channels=(2, 3), kernel_size=2, stride=2)
    prune = me.MinkowskiPruning()
    grown = first(x)
    kept = prune(grown, grown.C.sum(1) % 4 != 0)
    again = second(kept)
    out = prune(again, again.C.sum(1) % 3 == 0)
    inputs.backward(out)
    layers = torch.nn.ModuleList([first, second])
    return {"kept": kept, "out": out, "grad": inputs.gradients(leaf, layers)}


def custom(me, dtype, late):
    """A region of given offsets; ``late`` sets them on a generator that is made without."""
    x, leaf = inputs.tensor(me, dtype, inputs.scene(3))
    offsets = torch.IntTensor([[0, 0, 0], [1, 0, 0], [0, -1, 2], [-2, 1, 0]])
    if late:
        kernel = me.KernelGenerator(kernel_size=3, dimension=3)
        kernel.region_type = me.RegionType.CUSTOM
        kernel.region_offsets = offsets
        kernel.kernel_volume = len(offsets)
    else:
        kernel = me.KernelGenerator(
            kernel_size=3, region_type=me.RegionType.CUSTOM, region_offsets=offsets, dimension=3
        )
    layer = me.MinkowskiConvolution(3, 2, kernel_generator=kernel, dimension=3)
    inputs.fill(layer, dtype)
    return result(x, leaf, layer, layer(x))


def special(me, dtype, coordinates, layer=CONVOLUTION, **arguments):
    """Given sites: one voxel, duplicates, far ones."""
    rows = torch.IntTensor(coordinates)
    x, leaf = inputs.tensor(me, dtype, rows)
    made = make(me, dtype, layer, rows.shape[1] - 1, **arguments)
    return result(x, leaf, made, made(x))


def cases():
    """Return each case by name: a function of the library and the dtype."""
    found = inputs.Cases()
    add = found.add

    for dimension in (1, 2, 3, 4):
        each = EVERYWHERE if dimension != 3 else {**EVERYWHERE, **PER_AXIS}
        for name, arguments in each.items():
            kernel = arguments["kernel_size"]
            if dimension == 4 and kernel in (4, 5) and "region" not in arguments:
                continue  # hundreds of taps say nothing new
            add(f"conv{dimension}_{name}", one, layer=CONVOLUTION, dimension=dimension, **arguments)
        for name, arguments in BACK.items():
            if dimension == 4 and name in ("k4", "k5"):
                continue
            add(f"back{dimension}_{name}", there_and_back, dimension=dimension, **arguments)
            if name == "k1":
                continue
            for grow in (TRANSPOSED, GENERATIVE):
                short = "alone" if grow == TRANSPOSED else "generative"
                add(
                    f"{short}{dimension}_{name}",
                    one,
                    layer=grow,
                    dimension=dimension,
                    step=4,
                    **arguments,
                )
        for name in ("k1", "k3", "k2_s2", "k3_s2", "k3_d2", "k3_bias", "k3_cross"):
            arguments = EVERYWHERE[name]
            add(
                f"channelwise{dimension}_{name}",
                one,
                layer=CHANNELWISE,
                dimension=dimension,
                **arguments,
            )
        add(f"two_levels{dimension}", two_levels, dimension=dimension)
        add(f"generate_and_prune{dimension}", generate_and_prune, dimension=dimension)
    add("conv5_k2_s2", one, layer=CONVOLUTION, dimension=5, kernel_size=2, stride=2)
    add("back3_s3", there_and_back, dimension=3, kernel_size=3, stride=3)
    add("generative3_s1", one, layer=GENERATIVE, dimension=3, kernel_size=3)
    add("transposed3_s1", one, layer=TRANSPOSED, dimension=3, kernel_size=3)
    add("conv3_tensor_stride2", one, layer=CONVOLUTION, dimension=3, step=2, kernel_size=3)
    add("conv3_empty_scene", one, layer=CONVOLUTION, dimension=3, scenes=(0, 2), kernel_size=3)
    add(
        "conv3_empty_scene_s2",
        one,
        layer=CONVOLUTION,
        dimension=3,
        scenes=(0, 3),
        kernel_size=3,
        stride=2,
    )
    for target in ("rows", "tensor", "key"):
        add(f"onto_{target}", onto, dimension=3, target=target, kernel_size=3)
        add(f"onto_{target}_s2", onto, dimension=3, target=target, kernel_size=3, stride=2)
        add(
            f"onto_{target}_transposed",
            onto,
            dimension=3,
            target=target,
            layer=TRANSPOSED,
            kernel_size=3,
        )
    add("custom", custom, late=False)
    add("custom_late", custom, late=True)
    sites = {
        "one_voxel": [[0, 1, -2, 3]],
        "one_voxel_of_scene5": [[5, 1, -2, 3]],
        "duplicates": [[0, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]],
        "far": [[0, 1 << 20, -(1 << 20), 5], [0, 1 << 20, -(1 << 20), 6], [0, 0, 0, 0]],
    }
    for name, rows in sites.items():
        add(name, special, coordinates=rows, kernel_size=3)
        add(f"{name}_s2", special, coordinates=rows, kernel_size=2, stride=2)
        add(f"{name}_generative", special, coordinates=rows, layer=GENERATIVE, kernel_size=3)
    return found
