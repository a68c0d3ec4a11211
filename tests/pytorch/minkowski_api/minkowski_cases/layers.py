"""Layers that keep the sites or join them: norms, activations, pruning, union, blocks."""

from __future__ import annotations

import torch

from . import inputs

ACTIVATIONS = {
    "ELU": (),
    "Hardshrink": (),
    "Hardsigmoid": (),
    "Hardtanh": (),
    "Hardswish": (),
    "LeakyReLU": (0.2,),
    "LogSigmoid": (),
    "PReLU": (),
    "ReLU": (),
    "ReLU6": (),
    "SELU": (),
    "CELU": (),
    "GELU": (),
    "Sigmoid": (),
    "SiLU": (),
    "Softplus": (),
    "Softshrink": (),
    "Softsign": (),
    "Tanh": (),
    "Tanhshrink": (),
    "Threshold": (0.1, -3.0),
    "Softmin": (1,),
    "Softmax": (1,),
    "LogSoftmax": (1,),
    "Sinusoidal": (3, 4),
}
FUNCTIONS = {
    "threshold": (0.1, -3.0),
    "relu": (),
    "hardtanh": (),
    "hardswish": (),
    "relu6": (),
    "elu": (),
    "selu": (),
    "celu": (),
    "leaky_relu": (0.2,),
    "gelu": (),
    "logsigmoid": (),
    "hardshrink": (),
    "tanhshrink": (),
    "softsign": (),
    "softplus": (),
    "softmin": (1,),
    "softmax": (1,),
    "softshrink": (),
    "log_softmax": (1,),
    "tanh": (),
    "sigmoid": (),
    "hardsigmoid": (),
    "silu": (),
    "normalize": (),
}


def sample(me, dtype, scenes=(0, 1), channels=3, seed=1, dimension=3):
    return inputs.tensor(me, dtype, inputs.scene(dimension, scenes), channels, seed)


def finish(leaf, layer, out):
    inputs.backward(out)
    return {"out": out, "grad": inputs.gradients(leaf, layer)}


def activation(me, dtype, name):
    x, leaf = sample(me, dtype)
    layer = getattr(me, f"Minkowski{name}")(*ACTIVATIONS[name])
    inputs.fill(layer, dtype)
    return {**finish(leaf, layer, layer(x)), "repr": repr(layer)}


def functional(me, dtype, name):
    x, leaf = sample(me, dtype)
    return finish(leaf, None, getattr(me.MinkowskiFunctional, name)(x, *FUNCTIONS[name]))


def loss(me, dtype, name):
    x, leaf = sample(me, dtype)
    if name in ("cross_entropy", "nll_loss"):
        target = x.C.sum(1).long() % 3
    else:
        target = inputs.upstream(x.C, 3, dtype)
    value = getattr(me.MinkowskiFunctional, name)(x, target)
    value.backward()
    return {"value": value, "grad": inputs.gradients(leaf)}


def norm(me, dtype, name, training=True, scenes=(0, 1), **arguments):
    x, leaf = sample(me, dtype, scenes)
    layer = inputs.fill(getattr(me, name)(3, **arguments), dtype)
    layer.train(training)
    if not training and hasattr(layer, "bn"):
        layer.bn.running_mean.copy_(inputs.features(1, 3, dtype, seed=7)[0])
        layer.bn.running_var.copy_(1 + inputs.features(1, 3, dtype, seed=8)[0] / 2)
    found = finish(leaf, layer, layer(x))
    return {**found, "repr": repr(layer), "buffers": dict(layer.named_buffers())}


def synchronized(me, dtype):
    """A converted network's names and modules; it runs on GPUs alone."""
    net = torch.nn.Sequential(me.MinkowskiBatchNorm(3), me.MinkowskiReLU())
    net = me.MinkowskiSyncBatchNorm.convert_sync_batchnorm(net).to(dtype)
    return {"repr": repr(net), "names": list(net.state_dict())}


def linear(me, dtype, bias):
    x, leaf = sample(me, dtype)
    layer = inputs.fill(me.MinkowskiLinear(3, 4, bias=bias), dtype)
    return {**finish(leaf, layer, layer(x)), "repr": repr(layer)}


def broadcast(me, dtype, name, scenes=(0, 1)):
    x, leaf = sample(me, dtype, scenes)
    pooled = me.MinkowskiGlobalAvgPooling()(x)
    layer = getattr(me, name)()
    return {**finish(leaf, layer, layer(x, pooled)), "repr": repr(layer)}


def prune(me, dtype, dimension, keep="some"):
    x, leaf = sample(me, dtype, dimension=dimension)
    mask = x.C.sum(1) % 3 != 0
    if keep != "some":
        mask = torch.full_like(mask, keep == "all")
    out = me.MinkowskiPruning()(x, mask)
    return {**finish(leaf, None, out), "x": {"C": x.C}}


def after_nothing(me, dtype, name):
    """A layer on the tensor that is left when everything is pruned."""
    x, leaf = sample(me, dtype)
    nothing = me.MinkowskiPruning()(x, torch.zeros(len(x), dtype=torch.bool))
    kernel = {"kernel_size": 3, "dimension": 3}
    if name == "convolution":
        layer = me.MinkowskiConvolution(3, 2, **kernel)
    elif name == "strided":
        layer = me.MinkowskiConvolution(3, 2, **kernel, stride=2)
    elif name == "generative":
        layer = me.MinkowskiGenerativeConvolutionTranspose(3, 2, **kernel)
    elif name == "pooling":
        layer = me.MinkowskiMaxPooling(**kernel)
    elif name == "global":
        layer = me.MinkowskiGlobalAvgPooling()
    elif name == "dense":
        values, lowest, stride = nothing.dense(shape=torch.Size([2, 3, 4, 4, 4]))
        return {"dense": values, "min_coordinate": lowest, "stride": list(stride)}
    elif name == "add":
        out = nothing + x
        return finish(leaf, None, out)
    else:
        layer = me.MinkowskiReLU()
    inputs.fill(layer, dtype)
    return finish(leaf, layer, layer(nothing))


def products(me, dtype):
    """Products of a sparse matrix with rows, and maxima by map."""
    rows = torch.IntTensor([0, 2, 2, 1, 0])
    columns = torch.IntTensor([1, 0, 3, 3, 2])
    values = inputs.features(5, 1, dtype)[:, 0]
    found, grads = {}, {}
    for name in ("spmm", "average", "max"):
        leaf = inputs.features(4, 3, dtype).requires_grad_()
        size = torch.Size([3, 4])
        if name == "spmm":
            out = me.MinkowskiSPMMFunction.apply(rows, columns, values, size, leaf)
        elif name == "average":
            out = me.MinkowskiSPMMAverageFunction.apply(rows, columns, size, leaf)
        else:
            out = me.MinkowskiDirectMaxPoolingFunction.apply(columns, rows, leaf, 3)
        inputs.backward_rows(out)
        found[name], grads[name] = out, leaf.grad
    found["function"] = me.spmm(rows, columns, values, torch.Size([3, 4]), leaf)
    return {"out": found, "grad": grads}


def join(me, dtype, how, dimension=3):
    """Sums of two or three tensors of different sites, by a union or by an operator."""
    x, leaf = sample(me, dtype, dimension=dimension)
    others = []
    for seed in (5, 6):
        rows = inputs.scene(dimension, seed=seed)
        others.append(
            inputs.tensor(
                me, dtype, rows, channels=3, seed=seed, coordinate_manager=x.coordinate_manager
            )
        )
    (y, other), (z, third) = others
    if how == "union2":
        out = me.MinkowskiUnion()(x, y)
    elif how == "union3":
        out = me.MinkowskiUnion()(x, y, z)
    elif how == "add":
        out = x + y
    elif how == "subtract":
        out = x - y
    elif how == "multiply":
        out = x * y
    else:
        out = x + y + z
    inputs.backward(out)
    grads = {"x": leaf.grad, "y": other.grad, "z": third.grad}
    found = {name: grad for name, grad in grads.items() if grad is not None}
    return {"out": out, "grad": found, "key_stride": list(out.tensor_stride)}


def stack(me, dtype, name):
    """Layers side by side, joined."""
    x, leaf = sample(me, dtype)
    layer = getattr(me, name)(
        me.MinkowskiConvolution(3, 2, kernel_size=3, dimension=3),
        me.MinkowskiConvolution(3, 2, kernel_size=1, dimension=3),
    )
    inputs.fill(layer, dtype)
    return {**finish(leaf, layer, layer(x)), "names": list(layer.state_dict())}


def joined(me, dtype, name):
    x, leaf = sample(me, dtype)
    y = me.MinkowskiConvolution(3, 3, kernel_size=3, dimension=3)
    inputs.fill(y, dtype)
    out = getattr(me, name)(x, y(x), x)
    return finish(leaf, y, out)


def interpolate(me, dtype, dimension, step=1, method=False):
    """Values between the sites, some where no site is."""
    x, leaf = inputs.tensor(me, dtype, inputs.scene(dimension, step=step), tensor_stride=step)
    rng = inputs.generator(9)
    rows = x.C[torch.from_numpy(rng.permutation(len(x.C)))]
    points = rows.to(dtype)
    points[:, 1:] += torch.from_numpy(rng.randint(-8, 9, points[:, 1:].shape) / 16).to(dtype) * step
    points[0] = x.C[0].to(dtype)  # a site itself
    points[1, 1:] = 1000  # nothing near
    if method:
        values, found = x.features_at_coordinates(points), {}
    else:
        layer = me.MinkowskiInterpolation(return_kernel_map=True, return_weights=True)
        values, (inside, outside), weights = layer(x, points)
        order = torch.argsort(outside.long() * len(x.C) + inside.long())
        found = {
            "weights": weights[order],
            "map": torch.stack([inside, outside], 1)[order],
            "repr": repr(layer),
        }
    inputs.backward_rows(values)
    return {
        "x": {"C": x.C},
        "points": points,
        "values": values,
        "grad": inputs.gradients(leaf),
        **found,
    }


def block(me, dtype, name, dimension=3, **arguments):
    """A residual block of ``modules``, training."""
    x, leaf = sample(me, dtype, channels=4, dimension=dimension)
    expansion = 4 if "Bottleneck" in name else 1
    if arguments.get("stride", 1) != 1 or expansion != 1:
        arguments["downsample"] = torch.nn.Sequential(
            me.MinkowskiConvolution(
                4,
                4 * expansion,
                kernel_size=1,
                stride=arguments.get("stride", 1),
                dimension=dimension,
            ),
            me.MinkowskiBatchNorm(4 * expansion),
        )
    if name.startswith("SE"):
        from MinkowskiEngine.modules import senet_block as home

        arguments["D"] = dimension
    else:
        from MinkowskiEngine.modules import resnet_block as home

        arguments["dimension"] = dimension
    layer = inputs.fill(getattr(home, name)(4, 4, **arguments), dtype)
    found = finish(leaf, layer, layer(x))
    return {**found, "repr": repr(layer), "names": list(layer.state_dict())}


def squeeze(me, dtype):
    """The squeeze-and-excitation layer by itself."""
    from MinkowskiEngine.modules.senet_block import SELayer

    x, leaf = sample(me, dtype, channels=4)
    layer = inputs.fill(SELayer(4, reduction=2, D=3), dtype)
    return {**finish(leaf, layer, layer(x)), "names": list(layer.state_dict())}


def cases():
    """Return each case by name: a function of the library and the dtype."""
    found = inputs.Cases()
    add = found.add

    for name in ACTIVATIONS:
        add(f"activation_{name}", activation, name=name)
    for name in FUNCTIONS:
        add(f"functional_{name}", functional, name=name)
    for name in ("cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "nll_loss"):
        add(f"loss_{name}", loss, name=name)
    add("batch_norm", norm, name="MinkowskiBatchNorm")
    add("batch_norm_eval", norm, name="MinkowskiBatchNorm", training=False)
    add("batch_norm_plain", norm, name="MinkowskiBatchNorm", affine=False, momentum=0.02, eps=1e-3)
    add("batch_norm_untracked", norm, name="MinkowskiBatchNorm", track_running_stats=False)
    add("sync_batch_norm", synchronized)
    for name in ("MinkowskiInstanceNorm", "MinkowskiStableInstanceNorm"):
        add(name, norm, name=name)
        add(f"{name}_empty_scene", norm, name=name, scenes=(0, 2))
        add(f"{name}_scene3_alone", norm, name=name, scenes=(3,))
    add("linear", linear, bias=True)
    add("linear_without_bias", linear, bias=False)
    for name in ("Addition", "Multiplication", "Concatenation", ""):
        layer = f"MinkowskiBroadcast{name}"
        add(layer, broadcast, name=layer)
        add(f"{layer}_empty_scene", broadcast, name=layer, scenes=(0, 2))
        add(f"{layer}_many_scenes", broadcast, name=layer, scenes=tuple(range(9)))
    for dimension in (1, 2, 3, 4):
        add(f"prune{dimension}", prune, dimension=dimension)
        add(f"union{dimension}", join, how="union2", dimension=dimension)
        add(f"interpolate{dimension}", interpolate, dimension=dimension)
        add(f"interpolate{dimension}_stride2", interpolate, dimension=dimension, step=2)
        add(f"features_at_coordinates{dimension}", interpolate, dimension=dimension, method=True)
    add("prune_all_kept", prune, dimension=3, keep="all")
    add("prune_none_kept", prune, dimension=3, keep="none")
    for name in (
        "relu",
        "convolution",
        "strided",
        "generative",
        "pooling",
        "global",
        "dense",
        "add",
    ):
        add(f"after_nothing_{name}", after_nothing, name=name)
    add("products", products)
    for how in ("union3", "add", "subtract", "multiply", "add_twice"):
        add(f"join_{how}", join, how=how)
    for name in ("Cat", "Sum", "Mean", "Var"):
        add(f"stack_{name}", stack, name=f"MinkowskiStack{name}")
    for name in ("cat", "sum", "mean", "var"):
        add(f"joined_{name}", joined, name=name)
    for name in ("BasicBlock", "Bottleneck", "SEBasicBlock", "SEBottleneck"):
        for stride in (1, 2):
            add(f"{name}_s{stride}", block, name=name, stride=stride)
    add("BasicBlock_2d", block, name="BasicBlock", dimension=2)
    add("BasicBlock_d2", block, name="BasicBlock", dilation=2)
    add("SELayer", squeeze)
    return found
