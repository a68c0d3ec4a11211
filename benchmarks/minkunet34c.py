"""MinkUNet34C in the layers of MinkowskiEngine, of its door, or of spconv's door.

    network = build("minkowski", in_channels, classes)     # or "spconv", "MinkowskiEngine"
    logits = run(network, rows, features)                  # torch.Tensor [N, classes]

A residual U-Net: a stem of 5x5x5, four levels down and four up by kernels of 2 and stride 2, blocks
(2, 3, 4, 6, 2, 2, 2, 2) of two 3x3x3 layers. Weights are drawn from one seed in one layout, so all
three networks are the same function. Runs in Python 3.8, for MinkowskiEngine's own build.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

STEM = 32
PLANES = (32, 64, 128, 256, 256, 128, 96, 96)
BLOCKS = (2, 3, 4, 6, 2, 2, 2, 2)
STRIDE = 16  # of the coarsest level


class Minkowski:
    """The layers of MinkowskiEngine 0.5, from whichever package has its API."""

    def __init__(self, package: Any) -> None:
        self.package = package
        self.cat, self.norm = package.cat, package.MinkowskiBatchNorm

    def kept(self, c_in: int, c_out: int, size: int, level: int) -> nn.Module:
        del level
        return self.package.MinkowskiConvolution(c_in, c_out, kernel_size=size, dimension=3)

    def down(self, c_in: int, c_out: int, level: int) -> nn.Module:
        del level
        return self.package.MinkowskiConvolution(c_in, c_out, kernel_size=2, stride=2, dimension=3)

    def up(self, c_in: int, c_out: int, level: int) -> nn.Module:
        del level
        return self.package.MinkowskiConvolutionTranspose(
            c_in, c_out, kernel_size=2, stride=2, dimension=3
        )

    def head(self, c_in: int, classes: int) -> nn.Module:
        return self.package.MinkowskiConvolution(
            c_in, classes, kernel_size=1, bias=True, dimension=3
        )

    def relu(self) -> nn.Module:
        return self.package.MinkowskiReLU(inplace=True)

    def chain(self, *modules: nn.Module) -> nn.Module:
        return nn.Sequential(*modules)

    def added(self, x: Any, y: Any) -> Any:
        x += y
        return x

    def tensor(self, rows: torch.Tensor, features: torch.Tensor) -> Any:
        return self.package.SparseTensor(features, coordinates=rows)

    def logits(self, x: Any) -> torch.Tensor:
        return x.F

    def coordinates(self, x: Any) -> torch.Tensor:
        return x.C


class Spconv:
    """The layers of spconv 2.3, from whichever package has its API."""

    def __init__(self, package: Any) -> None:
        self.package = package
        self.norm = nn.BatchNorm1d

    def kept(self, c_in: int, c_out: int, size: int, level: int) -> nn.Module:
        key = f"size {size} at {level}"
        return self.package.SubMConv3d(c_in, c_out, size, bias=False, indice_key=key)

    def down(self, c_in: int, c_out: int, level: int) -> nn.Module:
        key = f"below {level}"
        return self.package.SparseConv3d(c_in, c_out, 2, 2, bias=False, indice_key=key)

    def up(self, c_in: int, c_out: int, level: int) -> nn.Module:
        key = f"below {level}"
        return self.package.SparseInverseConv3d(c_in, c_out, 2, bias=False, indice_key=key)

    def head(self, c_in: int, classes: int) -> nn.Module:
        return self.package.SubMConv3d(c_in, classes, 1, bias=True)

    def relu(self) -> nn.Module:
        return nn.ReLU(inplace=True)

    def chain(self, *modules: nn.Module) -> nn.Module:
        return self.package.SparseSequential(*modules)

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
        first, second = (layers.kept(c, c_out, 3, level) for c in (c_in, c_out))
        self.branch = layers.chain(
            first, layers.norm(c_out), layers.relu(), second, layers.norm(c_out)
        )
        self.shortcut = None
        if c_in != c_out:
            self.shortcut = layers.chain(layers.kept(c_in, c_out, 1, level), layers.norm(c_out))
        self.relu = layers.chain(layers.relu())

    def forward(self, x: Any) -> Any:
        y = self.branch(x)
        return self.relu(self.added(y, x if self.shortcut is None else self.shortcut(x)))


class MinkUNet34C(nn.Module):
    """Encoder and decoder with skip connections; ``layers`` are :class:`Minkowski` or other's."""

    def __init__(self, layers: Any, in_channels: int, classes: int) -> None:
        super().__init__()
        self.layers = layers

        def normed(conv: nn.Module, channels: int) -> nn.Module:
            return layers.chain(conv, layers.norm(channels), layers.relu())

        def blocks(c_in: int, stage: int, level: int) -> nn.Module:
            sizes = [c_in, *[PLANES[stage]] * (BLOCKS[stage] - 1)]
            return nn.Sequential(*[Block(layers, c, PLANES[stage], level) for c in sizes])

        self.stem = normed(layers.kept(in_channels, STEM, 5, 0), STEM)
        self.down, self.down_blocks = nn.ModuleList(), nn.ModuleList()
        self.up, self.up_blocks = nn.ModuleList(), nn.ModuleList()
        channels, skips = STEM, []
        for level in range(4):
            skips.append(channels)
            self.down.append(normed(layers.down(channels, channels, level), channels))
            self.down_blocks.append(blocks(channels, level, level + 1))
            channels = PLANES[level]
        for stage in range(4, 8):
            level, wide = 7 - stage, PLANES[stage]
            self.up.append(normed(layers.up(channels, wide, level), wide))
            self.up_blocks.append(blocks(wide + skips[level], stage, level))
            channels = wide
        self.head = layers.head(channels, classes)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        skips = []
        for down, blocks in zip(self.down, self.down_blocks):  # noqa: B905 (Python 3.8)
            skips.append(x)
            x = blocks(down(x))
        for up, blocks in zip(self.up, self.up_blocks):  # noqa: B905
            x = blocks(self.layers.cat(up(x), skips.pop()))
        return self.head(x)


def build(door: str, in_channels: int, classes: int) -> MinkUNet34C:
    """Return the network on a door's layers, with the weights of the seed."""
    if door == "MinkowskiEngine":
        import MinkowskiEngine

        layers: Any = Minkowski(MinkowskiEngine)
    elif door == "minkowski":
        import voxax.torch.minkowski

        layers = Minkowski(voxax.torch.minkowski)
    else:
        import voxax.torch.spconv

        layers = Spconv(voxax.torch.spconv)
    network = MinkUNet34C(layers, in_channels, classes)
    draw(network)
    return network


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
                _draw_kernel(module, weight, random)


def _draw_kernel(module: nn.Module, weight: torch.Tensor, random: Any) -> None:
    if weight.dim() == 5:  # spconv: [C_out, x, y, z, C_in]
        c_out, size, c_in = weight.shape[0], weight.shape[1], weight.shape[4]
    else:
        c_in, c_out = weight.shape[-2:]
        size = 1 if weight.dim() == 2 else round(weight.shape[0] ** (1 / 3))
    taps = random(size**3, c_in, c_out) * (2 / (size**3 * c_in)) ** 0.5
    if weight.dim() == 5 and size > 1:  # MinkowskiEngine's first axis runs fastest
        cube = taps.reshape(size, size, size, c_in, c_out)
        weight.copy_(cube.permute(4, 2, 1, 0, 3))
    else:  # the memory of one tap is [C_in, C_out] in spconv, too
        weight.copy_(taps.reshape(weight.shape))
    if module.bias is not None:
        module.bias.copy_(random(c_out).reshape(module.bias.shape))


def run(network: MinkUNet34C, rows: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Return the logits, in the order of the rows that the last layer has."""
    layers = network.layers
    return layers.logits(network(layers.tensor(rows, features)))


def sorted_logits(network: MinkUNet34C, rows: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Return the logits by coordinate, so that networks can be compared."""
    layers = network.layers
    out = network(layers.tensor(rows, features))
    cells = layers.coordinates(out).long()
    name = cells[:, 0]
    for axis in (1, 2, 3):
        name = name * (1 << 15) + cells[:, axis]
    return layers.logits(out)[torch.argsort(name)]
