"""MinkUNet in the layers of MinkowskiEngine, TorchSparse or spconv: theirs, or voxax's.

    network = build("minkowski", in_channels, classes, *MINKUNET34C)
    logits = run(network, rows, features)                  # torch.Tensor [N, classes]

A residual U-Net: a stem, four levels down and four up by kernels of 2 and stride 2, blocks of two
3x3x3 layers. Weights are drawn from one seed in one layout, so the networks of all libraries are
the same function. Runs in Python 3.8, for the builds of MinkowskiEngine and TorchSparse.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

# It mends TorchSparse, and reads SPVCNN.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "pytorch" / "torchsparse"))

STEM = 32
PLANES = (32, 64, 128, 256, 256, 128, 96, 96)
# Kernel sizes of the stem, and blocks at each stage.
MINKUNET34C = (5,), (2, 3, 4, 6, 2, 2, 2, 2)
MINKUNET18 = (3, 3), (2,) * 8
STRIDE = 16  # of the coarsest level


class Minkowski:
    """The layers of MinkowskiEngine 0.5, from whichever package has its API."""

    def __init__(self, package: Any) -> None:
        self.package, self.chain = package, nn.Sequential
        self.cat, self.norm = package.cat, package.MinkowskiBatchNorm

    def conv(self, kind: str, c_in: int, c_out: int, size: int, level: int) -> nn.Module:
        del level
        end = "Transpose" if kind == "up" else ""
        make = getattr(self.package, f"MinkowskiConvolution{end}")
        stride = {"down": 2, "up": 2}.get(kind, 1)
        bias = kind == "head"
        return make(c_in, c_out, kernel_size=size, stride=stride, bias=bias, dimension=3)

    def relu(self) -> nn.Module:
        return self.package.MinkowskiReLU(inplace=True)

    def added(self, x: Any, y: Any) -> Any:
        x += y
        return x

    def tensor(self, rows: torch.Tensor, features: torch.Tensor) -> Any:
        return self.package.SparseTensor(features, coordinates=rows)

    def logits(self, x: Any) -> torch.Tensor:
        return x.F

    def coordinates(self, x: Any) -> torch.Tensor:
        return x.C


class TorchSparse:
    """The layers of TorchSparse, from whichever package has its API.

    Args:
      package: of version 2.1, or of 1.4, where the scene is the last of a row.
      batch_first: the former.
    """

    def __init__(self, package: Any, batch_first: bool) -> None:
        self.package, self.batch_first, self.chain = package, batch_first, nn.Sequential
        self.nn = importlib.import_module(f"{package.__name__}.nn")
        self.norm = self.nn.BatchNorm

    def conv(self, kind: str, c_in: int, c_out: int, size: int, level: int) -> nn.Module:
        del level
        stride = {"down": 2, "up": 2}.get(kind, 1)
        own = {"stride": stride, "bias": kind == "head", "transposed": kind == "up"}
        return self.nn.Conv3d(c_in, c_out, size, **own)

    def relu(self) -> nn.Module:
        return self.nn.ReLU(True)

    def added(self, x: Any, y: Any) -> Any:
        return x + y

    def cat(self, x: Any, y: Any) -> Any:
        return self.package.cat([x, y])

    def tensor(self, rows: torch.Tensor, features: torch.Tensor) -> Any:
        if self.batch_first:  # without a range, 2.1 drops voxels at the border
            shape = ((rows[:, 1:].amax(0) // STRIDE + 1) * STRIDE).tolist()
            scenes = int(rows[:, 0].max()) + 1
            return self.package.SparseTensor(features, rows.clone(), 1, (scenes, *shape))
        x = self.package.SparseTensor(features, torch.cat([rows[:, 1:], rows[:, :1]], 1))
        x.cmaps[x.stride] = x.coords  # as SPVNAS does: the way back looks it up
        return x

    def logits(self, x: Any) -> torch.Tensor:
        return x.F

    def coordinates(self, x: Any) -> torch.Tensor:
        return x.C if self.batch_first else torch.cat([x.C[:, 3:], x.C[:, :3]], 1)


class Spconv:
    """The layers of spconv 2.3, from whichever package has its API."""

    def __init__(self, package: Any) -> None:
        self.package, self.chain, self.norm = package, package.SparseSequential, nn.BatchNorm1d

    def conv(self, kind: str, c_in: int, c_out: int, size: int, level: int) -> nn.Module:
        if kind in ("down", "up"):
            name = "SparseConv3d" if kind == "down" else "SparseInverseConv3d"
            own = {"stride": 2} if kind == "down" else {}
            own["indice_key"] = f"below {level}"
        else:
            name, own = "SubMConv3d", {"indice_key": f"size {size} at {level}"}
        return getattr(self.package, name)(c_in, c_out, size, bias=kind == "head", **own)

    def relu(self) -> nn.Module:
        return nn.ReLU(inplace=True)

    def added(self, x: Any, y: Any) -> Any:
        return x.replace_feature(x.features + y.features)

    def cat(self, x: Any, y: Any) -> Any:
        return x.replace_feature(torch.cat([x.features, y.features], 1))

    def tensor(self, rows: torch.Tensor, features: torch.Tensor) -> Any:
        shape = (rows[:, 1:].amax(0) // STRIDE + 1) * STRIDE
        scenes = int(rows[:, 0].max()) + 1
        return self.package.SparseConvTensor(features, rows.clone(), shape.tolist(), scenes)

    def logits(self, x: Any) -> torch.Tensor:
        return x.features

    def coordinates(self, x: Any) -> torch.Tensor:
        return x.indices


class Block(nn.Module):
    """Two convolutions beside the input, or beside a product of it where channels differ."""

    def __init__(self, layers: Any, c_in: int, c_out: int, level: int) -> None:
        super().__init__()
        self.added = layers.added
        first, second = (layers.conv("kept", c, c_out, 3, level) for c in (c_in, c_out))
        self.branch = layers.chain(
            first, layers.norm(c_out), layers.relu(), second, layers.norm(c_out)
        )
        self.shortcut = None
        if c_in != c_out:
            self.shortcut = layers.chain(
                layers.conv("kept", c_in, c_out, 1, level), layers.norm(c_out)
            )
        self.relu = layers.chain(layers.relu())

    def forward(self, x: Any) -> Any:
        y = self.branch(x)
        return self.relu(self.added(y, x if self.shortcut is None else self.shortcut(x)))


class MinkUNet(nn.Module):
    """Encoder and decoder with skip connections.

    Args:
      layers: :class:`Minkowski` or another library's.
      in_channels, classes: of the ends.
      stems: kernel sizes of the stem.
      numbers: blocks at each stage.
      stem, planes: channels of the stem, and at each stage.
    """

    def __init__(
        self,
        layers: Any,
        in_channels: int,
        classes: int,
        stems: Any,
        numbers: Any,
        stem: int = STEM,
        planes: Any = PLANES,
    ) -> None:
        super().__init__()
        self.layers = layers

        def normed(conv: nn.Module, channels: int) -> nn.Module:
            return layers.chain(conv, layers.norm(channels), layers.relu())

        def blocks(c_in: int, stage: int, level: int) -> nn.Module:
            sizes = [c_in, *[planes[stage]] * (numbers[stage] - 1)]
            return nn.Sequential(*[Block(layers, c, planes[stage], level) for c in sizes])

        inputs = (in_channels, *[stem] * (len(stems) - 1))
        own = [normed(layers.conv("kept", c, stem, k, 0), stem) for c, k in zip(inputs, stems)]  # noqa: B905
        self.stem = nn.Sequential(*own)
        self.down, self.down_blocks = nn.ModuleList(), nn.ModuleList()
        self.up, self.up_blocks = nn.ModuleList(), nn.ModuleList()
        channels, skips = stem, []
        for level in range(4):
            skips.append(channels)
            self.down.append(normed(layers.conv("down", channels, channels, 2, level), channels))
            self.down_blocks.append(blocks(channels, level, level + 1))
            channels = planes[level]
        for stage in range(4, 8):
            level, wide = 7 - stage, planes[stage]
            self.up.append(normed(layers.conv("up", channels, wide, 2, level), wide))
            self.up_blocks.append(blocks(wide + skips[level], stage, level))
            channels = wide
        self.head = layers.conv("head", channels, classes, 1, 0)

    def forward(self, x: Any) -> torch.Tensor:
        return self.layers.logits(self.sites(x))

    def sites(self, x: Any) -> Any:
        """Logits with their coordinates."""
        x = self.stem(x)
        skips = []
        for down, blocks in zip(self.down, self.down_blocks):  # noqa: B905 (Python 3.8)
            skips.append(x)
            x = blocks(down(x))
        for up, blocks in zip(self.up, self.up_blocks):  # noqa: B905
            x = blocks(self.layers.cat(up(x), skips.pop()))
        return self.head(x)


def layers_of(library: str) -> Any:
    """Return the layers of a library: its own, or a module of ``voxax.torch``."""
    if library == "MinkowskiEngine":
        return Minkowski(importlib.import_module(library))
    if library == "TorchSparse":
        record = importlib.import_module("record")
        record.mend()  # its gradients on CPUs
        return TorchSparse(importlib.import_module("torchsparse"), batch_first=False)
    package = importlib.import_module(f"voxax.torch.{library}")
    if library.startswith("torchsparse"):
        return TorchSparse(package, batch_first=library == "torchsparse")
    return (Minkowski if library == "minkowski" else Spconv)(package)


def build(library: str, in_channels: int, classes: int, stems: Any, numbers: Any) -> MinkUNet:
    """Return the network on a library's layers, with the weights of the seed."""
    network = MinkUNet(layers_of(library), in_channels, classes, stems, numbers)
    draw(network)
    return network.eval()


def draw(network: nn.Module) -> None:
    """Set all parameters and running statistics, convolutions as ``[taps, C_in, C_out]``."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    with torch.no_grad():
        for module in network.modules():
            weight = getattr(module, "kernel", None)
            if weight is None and type(module).__name__.endswith("Conv3d"):
                weight = module.weight
            if isinstance(module, nn.BatchNorm1d):
                module.weight.copy_(1 + 0.1 * random(module.num_features))
                module.bias.copy_(0.1 * random(module.num_features))
                module.running_mean.copy_(0.1 * random(module.num_features))
                module.running_var.copy_(1 + 0.1 * random(module.num_features).abs())
            elif weight is not None:
                _draw_kernel(module, weight, random, isinstance(network.layers, TorchSparse))


def _draw_kernel(module: nn.Module, weight: torch.Tensor, random: Any, cubes: bool) -> None:
    if weight.dim() == 5:  # spconv: [C_out, x, y, z, C_in]
        c_out, size, c_in = weight.shape[0], weight.shape[1], weight.shape[4]
    else:
        c_in, c_out = weight.shape[-2:]
        size = 1 if weight.dim() == 2 else round(weight.shape[0] ** (1 / 3))
    taps = random(size**3, c_in, c_out) * (2 / (size**3 * c_in)) ** 0.5
    if weight.dim() == 5 and size > 1:  # MinkowskiEngine's first axis runs fastest
        cube = taps.reshape(size, size, size, c_in, c_out)
        weight.copy_(cube.permute(4, 2, 1, 0, 3))
    elif cubes and size == 2:  # TorchSparse's last axis does where the size is even
        cube = taps.reshape(size, size, size, c_in, c_out).permute(2, 1, 0, 3, 4)
        weight.copy_(cube.reshape(weight.shape))
    else:  # the memory of one tap is [C_in, C_out] in spconv, too
        weight.copy_(taps.reshape(weight.shape))
    if module.bias is not None:
        module.bias.copy_(random(c_out).reshape(module.bias.shape))


def run(network: MinkUNet, rows: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Return the logits, in the order of the rows that the last layer has."""
    layers = network.layers
    return network(layers.tensor(rows, features))


def sorted_logits(network: MinkUNet, rows: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Return the logits by coordinate, so that networks can be compared."""
    layers = network.layers
    out = network.sites(layers.tensor(rows, features))
    cells = layers.coordinates(out).long()
    name = cells[:, 0]
    for axis in (1, 2, 3):
        name = name * (1 << 15) + cells[:, axis]
    return layers.logits(out)[torch.argsort(name)]


def inputs(cells: Any, channels: int) -> Any:
    """Return rows ``int32[N, 4]`` of one scene, and features of a fixed seed."""
    rows = torch.from_numpy(np.insert(cells, 0, 0, axis=1))
    features = np.random.RandomState(1).normal(size=(len(cells), channels))
    return rows, torch.from_numpy(features.astype(np.float32))
