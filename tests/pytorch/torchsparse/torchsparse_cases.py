"""What TorchSparse 1.4 computes on a CPU, case by case: run on it by ``record.py``, here by a test.

``torchsparse`` is the library or ``voxax.torch.torchsparse.version_1_4``, whichever has the name.
There is one scene: the CPU code of 1.4 gives all voxels the batch index of the first.
"""

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import nn

LAYERS = [
    ((3, 3, 3), 1),
    ((5, 3, 1), 1),
    ((2, 2, 2), 1),
    ((3, 1, 2), 1),
    ((1, 1, 1), 1),
    ((2, 2, 2), 2),
    ((3, 3, 3), 2),
    ((3, 3, 3), 3),
    ((4, 4, 4), 2),
    ((4, 2, 3), (2, 2, 1)),
    ((1, 2, 3), (1, 2, 1)),
]
NETWORKS = ["SPVCNN", "MinkUNet", "mmdet3d MinkUNet", "mmdet3d SPVCNN", "mmdet3d MinkUNetV2"]


def values(shape, seed):
    return torch.from_numpy(np.random.RandomState(seed).normal(size=shape).astype(np.float32))


def scene(rows=300, low=-5, size=12, channels=3, seed=0):
    """Coordinates x, y, z, 0 in no order, and features."""
    cells = np.random.RandomState(seed).permutation(size**3)[:rows]
    axes = [cells // size**2, cells // size % size, cells % size]
    coords = np.stack([*(axis + low for axis in axes), 0 * cells], 1)
    return torch.from_numpy(coords.astype(np.int32)), values((rows, channels), seed)


def surface(rows=1500, size=80):
    """A scene with voxels on a surface, as a scan has them."""
    cells = np.random.RandomState(0).permutation(size**2)[:rows]
    x, y = cells // size, cells % size
    height = 8 * np.sin(x / 9) + 5 * np.cos(y / 7) + 13
    coords = np.stack([x, y, height.astype(np.int64), 0 * x], 1)
    return torch.from_numpy(coords.astype(np.int32)), values((rows, 4), 0)


def filled(module, seed=0):
    """Give all parameters values of a usual size that follow the seed in any library."""
    for number, (name, parameter) in enumerate(module.named_parameters()):
        drawn = values(tuple(parameter.shape), 1000 * seed + number)
        if parameter.dim() > 1:  # a kernel has its inputs before the last axis, a matrix behind
            last = name.endswith("kernel")
            fan = parameter[..., 0].numel() if last else parameter[0].numel()
            drawn = drawn * (2 / fan) ** 0.5
        else:
            drawn = 1 + drawn / 8 if name.endswith("weight") else drawn / 8
        parameter.data.copy_(drawn)
    return module


def gradients(found, name, out, inputs):
    weights = values(tuple(out.shape), 7)
    flags = {"allow_unused": True, "retain_graph": True}
    grads = torch.autograd.grad((out * weights).sum(), list(inputs.values()), **flags)
    for label, grad in zip(inputs, grads, strict=True):
        if grad is not None:
            found[f"{name}.grad.{label}"] = grad


def layers(found):
    import torchsparse
    import torchsparse.nn as spnn

    coords, feats = scene()
    for size, stride in LAYERS:
        name = f"conv {size} {stride}"
        x = torchsparse.SparseTensor(feats.clone().requires_grad_(), coords)
        x.cmaps[x.stride] = coords  # as SPVNAS does: the way back looks it up
        conv = filled(spnn.Conv3d(3, 5, size, stride, bias=True))
        out = conv(x)
        found[f"{name}.coords"], found[f"{name}.feats"] = out.coords, out.feats
        found[f"{name}.stride"] = torch.tensor(out.stride)
        inputs = {"x": x.feats, "kernel": conv.kernel, "bias": conv.bias}
        gradients(found, name, out.feats, inputs)
        if stride == 1:
            continue
        deep = filled(spnn.Conv3d(5, 4, 3), 1)
        up = filled(spnn.Conv3d(4, 2, size, stride, transposed=True), 2)
        back = up(deep(out))
        found[f"{name} back.coords"], found[f"{name} back.feats"] = back.coords, back.feats
        inputs |= {"deep": deep.kernel, "up": up.kernel}
        gradients(found, f"{name} back", back.feats, inputs)


def points(found):
    import torchsparse.nn.functional as F
    from torchsparse.nn.utils import get_kernel_offsets
    from torchsparse.utils.quantize import sparse_quantize

    coords, feats = scene()
    found["hash"] = hashes = F.sphash(coords)
    for size in (2, 3, (3, 1, 5)):
        found[f"offsets {size}"] = offsets = get_kernel_offsets(size, 2)
        found[f"hash {size}"] = F.sphash(coords, offsets)
        found[f"query {size}"] = F.sphashquery(found[f"hash {size}"], hashes)
    for size, stride, of in ((2, 2, 1), (3, 2, 1), (4, 2, 1), (3, 2, 2), ((2, 3, 1), (2, 1, 1), 1)):
        rows = coords * torch.tensor([of, of, of, 1], dtype=torch.int32)
        found[f"downsample {size} {stride} {of}"] = F.spdownsample(rows, stride, size, of)
    rows = torch.from_numpy(np.random.RandomState(1).randint(0, 80, 300).astype(np.int32))
    found["count"] = counts = F.spcount(rows, 90)
    x = feats.clone().requires_grad_()
    found["voxelize"] = F.spvoxelize(x, rows, counts)
    gradients(found, "voxelize", found["voxelize"], {"x": x})
    places = values((200, 4), 3) * 4
    for scale in (1, 2):
        cells = (torch.floor(places / scale) * scale).int()
        cells[:, 3] = 0
        taps = get_kernel_offsets(2, scale, 1)
        query = F.sphashquery(F.sphash(cells, taps), F.sphash(coords))
        weights = F.calc_ti_weights(places, query, scale=scale)
        found[f"query of points {scale}"], found[f"weights {scale}"] = query, weights
        x = feats.clone().requires_grad_()
        query, weights = (of.transpose(0, 1).contiguous() for of in (query, weights))
        query, weights = query.clamp(min=0), weights * (query >= 0)  # -1 is written outside there
        found[f"devoxelize {scale}"] = out = F.spdevoxelize(x, query, weights)
        gradients(found, f"devoxelize {scale}", out, {"x": x})
    cloud = np.random.RandomState(2).normal(size=(400, 3)) * 3
    for size in (1.0, (0.5, 1.0, 2.0)):
        parts = sparse_quantize(cloud, size, return_index=True, return_inverse=True)
        for part, array in zip(("voxels", "index", "inverse"), parts, strict=True):
            found[f"quantize {size}.{part}"] = torch.from_numpy(np.array(array))


def network(found, name):
    """Record one network in training mode; of most gradients the sizes and a few numbers.

    Gradients are with softplus for ReLU: in float32 some input of a ReLU is so near 0 that rounding
    decides its side.
    """
    net = filled(BUILDERS[name](), 1).train()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0
    found[f"{name}.out"] = called(net, name)[1]
    relu = nn.ReLU.forward
    nn.ReLU.forward = lambda self, x: nn.functional.softplus(x)
    try:
        feats, found[f"{name}.smooth"] = called(net, name)
    finally:
        nn.ReLU.forward = relu
    grads = {}
    inputs = {"x": feats, **dict(net.named_parameters())}
    gradients(grads, name, found[f"{name}.smooth"], inputs)
    found[f"{name}.grad.x"] = grads.pop(f"{name}.grad.x")
    found[f"{name}.norms"] = torch.stack([grad.double().norm() for grad in grads.values()])
    found[f"{name}.few"] = torch.cat([grad.flatten()[:4] for grad in grads.values()])
    found[f"{name}.state"] = torch.tensor(list("\n".join(net.state_dict()).encode()))


def called(net, name):
    """Return the features, and what the network makes of them."""
    import torchsparse

    coords, feats = surface()
    feats.requires_grad_()
    if name.startswith("mmdet3d"):
        return feats, net(feats, coords)
    return feats, net(torchsparse.SparseTensor(feats, coords))


def clone_of(variable):
    folder = os.environ.get(variable)
    if not folder:
        raise LookupError(f"set {variable} to a clone")
    return Path(folder)


def package(name, folder=None, **contents):
    """A package whose ``__init__`` does not run, or a stub."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    vars(module).update(contents)
    sys.modules[name] = module


def spvnas(module):
    root = clone_of("VOXAX_TEST_SPVNAS_1_4")
    for name in ("core", "core.models", "core.models.semantic_kitti"):
        package(name, root / name.replace(".", "/"))
    return __import__(f"core.models.semantic_kitti.{module}", fromlist=["x"])


class Registry(dict):
    """mmengine's, as much as the backbones use."""

    def register_module(self):
        return lambda kind: kind

    def _register_module(self, kind, name):
        self[name] = kind


def mmdetection3d(module):
    root = clone_of("VOXAX_TEST_MMDETECTION3D")
    models, registry = "mmdet3d.models", Registry()

    def norm(config, channels):
        return "", registry[config["type"]](channels)

    def activation(config):
        return registry[config["type"]](**{key: config[key] for key in config if key != "type"})

    class BaseModule(nn.Module):
        def __init__(self, init_cfg=None):
            super().__init__()

    package("mmengine")
    package("mmengine.model", BaseModule=BaseModule)
    package("mmengine.registry", MODELS=registry)
    package("mmcv")
    package("mmcv.cnn", build_norm_layer=norm, build_activation_layer=activation)
    package("mmdet3d", root / "mmdet3d")
    package("mmdet3d.utils", ConfigType=dict, OptConfigType=dict, OptMultiConfig=dict)
    package(models, root / "mmdet3d/models")
    package(f"{models}.layers", root / "mmdet3d/models/layers")
    package(f"{models}.backbones", root / "mmdet3d/models/backbones")
    # Of the other backends.
    names = "BasicBlock", "Bottleneck", "ConvModule"
    empty = {f"Minkowski{name}": None for name in names}
    package(f"{models}.layers.minkowski_engine_block", IS_MINKOWSKI_ENGINE_AVAILABLE=False, **empty)
    names = "SparseBasicBlock", "SparseBottleneck", "make_sparse_convmodule", "replace_feature"
    package(f"{models}.layers.sparse_block", **dict.fromkeys(names))
    package(f"{models}.layers.spconv", IS_SPCONV2_AVAILABLE=False)
    package("mmcv.ops", SparseConvTensor=None)
    return __import__(f"{models}.backbones.{module}", fromlist=["x"])


def narrow(kind):
    channels = {"encoder_channels": [8, 16, 24, 32], "decoder_channels": [32, 24, 16, 16]}
    return kind(base_channels=8, **channels)


BUILDERS = {
    "SPVCNN": lambda: spvnas("spvcnn").SPVCNN(num_classes=5, cr=0.25, pres=1, vres=2),
    "MinkUNet": lambda: spvnas("minkunet").MinkUNet(num_classes=5, cr=0.25),
    "mmdet3d MinkUNet": lambda: narrow(mmdetection3d("minkunet_backbone").MinkUNetBackbone),
    "mmdet3d SPVCNN": lambda: narrow(mmdetection3d("spvcnn_backone").SPVCNNBackbone),
    "mmdet3d MinkUNetV2": lambda: narrow(mmdetection3d("spvcnn_backone").MinkUNetBackboneV2),
}
