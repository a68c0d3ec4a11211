"""Initial values by ``torch.manual_seed``, with the names and shapes of ``state_dict``."""

from __future__ import annotations

import functools

import torch


def short(values, limit=400):
    """Return an array, or of a large one its first values, its sum, its sum of squares and its
    product with a pattern."""
    if values.numel() < limit:
        return values
    flat = values.detach().double().reshape(-1)
    pattern = (torch.arange(len(flat)) * 7 % 11 - 5).double()
    return torch.cat([flat[:4], torch.stack([flat.sum(), flat @ flat, flat @ pattern])])


def initial(me, dtype, make, seed=3):
    torch.manual_seed(seed)
    module = make(me)
    state = module.state_dict()
    return {
        "names": list(state),
        "shapes": [str(tuple(value.shape)) for value in state.values()],
        "parameters": [name for name, _ in module.named_parameters()],
        "state": {name: short(value) for name, value in state.items()},
        "dtypes": [str(value.dtype) for value in state.values()],
        "next": torch.rand(3),
    }


def layer(me, name, *sizes, cross=False, **arguments):
    if cross:
        arguments["kernel_generator"] = me.KernelGenerator(
            kernel_size=3, region_type=me.RegionType.HYPER_CROSS, dimension=3
        )
    return getattr(me, name)(*sizes, **arguments)


def resnet_block(me, name, **arguments):
    from MinkowskiEngine.modules import resnet_block as home

    return getattr(home, name)(4, 4, dimension=3, **arguments)


def kaiming(me, **arguments):
    module = me.MinkowskiConvolution(3, 4, kernel_size=3, dimension=3)
    me.utils.kaiming_normal_(module.kernel, **arguments)
    return module


def kaiming_one(me):
    module = me.MinkowskiConvolution(3, 4, kernel_size=1, dimension=3)
    me.utils.kaiming_normal_(module.kernel, mode="fan_out", nonlinearity="relu")
    return module


def cases():
    """Return each case by name: a function of the library and the dtype."""
    found = {}

    def add(case, function, *sizes, **named):
        found[case] = functools.partial(initial, make=lambda me: function(me, *sizes, **named))

    for short, name in {
        "conv": "MinkowskiConvolution",
        "transposed": "MinkowskiConvolutionTranspose",
        "generative": "MinkowskiGenerativeConvolutionTranspose",
    }.items():
        for dimension in (1, 2, 3, 4):
            for size, stride in ((1, 1), (1, 2), (2, 2), (3, 1), (3, 2)):
                add(
                    f"{short}{dimension}_k{size}_s{stride}",
                    layer,
                    name,
                    3,
                    4,
                    kernel_size=size,
                    stride=stride,
                    bias=True,
                    dimension=dimension,
                )
        add(f"{short}3_cross", layer, name, 3, 4, cross=True, dimension=3)
        add(f"{short}3_axes", layer, name, 3, 4, kernel_size=(3, 1, 2), dimension=3)
        add(f"{short}3_wide", layer, name, 16, 32, kernel_size=3, dimension=3)
    channelwise = "MinkowskiChannelwiseConvolution"
    add("channelwise", layer, channelwise, 4, kernel_size=3, bias=True, dimension=3)
    for name, sizes in {
        "MinkowskiLinear": (3, 4),
        "MinkowskiBatchNorm": (4,),
        "MinkowskiInstanceNorm": (4,),
        "MinkowskiStableInstanceNorm": (4,),
        "MinkowskiSinusoidal": (3, 4),
        "MinkowskiPReLU": (),
    }.items():
        add(name, layer, name, *sizes)
    add("BasicBlock", resnet_block, "BasicBlock")
    add("BasicBlock_s2", resnet_block, "BasicBlock", stride=2)
    add("Bottleneck", resnet_block, "Bottleneck")
    add("kaiming", kaiming)
    add("kaiming_out", kaiming, mode="fan_out", nonlinearity="relu")
    add("kaiming_one", kaiming_one)
    return found
