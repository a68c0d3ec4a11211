"""Residual blocks of two doors, whose norms wait for a sum and a ReLU."""

import contextlib

import torch
from torch import nn

import voxax.torch.minkowski as ME
import voxax.torch.torchsparse as ts
import voxax.torch.torchsparse.nn as spnn


@contextlib.contextmanager
def one_by_one(grad=True):
    """Let PyTorch compute each layer: somebody listens."""
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with torch.set_grad_enabled(grad):
            yield
    finally:
        handle.remove()


# In evaluation.
WAYS = {"waits": torch.no_grad, "one by one": lambda: one_by_one(grad=False)}


def results(block, x, **arguments):
    found = []
    for way in WAYS.values():
        with way():
            found.append(block(x, **arguments).F.detach())
    return found


class Block(nn.Module):
    """A residual block, whose tensors ``look`` may take in between."""

    def __init__(self, dtype=torch.float64, affine=True, inplace=True, **options):
        super().__init__()
        torch.manual_seed(0)
        self.build(affine, inplace, **options)
        for norm in map(self.bn, self.norms):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)
            for part in norm.parameters():
                nn.init.uniform_(part, -1, 1)
        self.to(dtype).eval()


class MinkowskiBlock(Block):
    norm = ME.MinkowskiBatchNorm

    def build(self, affine, inplace):
        self.conv1 = ME.MinkowskiConvolution(4, 5, kernel_size=3, dimension=2)
        self.conv2 = ME.MinkowskiConvolution(5, 5, kernel_size=3, bias=True, dimension=2)
        self.down = ME.MinkowskiConvolution(4, 5, kernel_size=1, dimension=2)
        self.norms = nn.ModuleList(ME.MinkowskiBatchNorm(5, affine=affine) for _ in range(3))
        self.relu = ME.MinkowskiReLU(inplace=inplace)

    @staticmethod
    def bn(norm):
        return norm.bn

    @staticmethod
    def scene(dtype=torch.float32, size=60):
        rows = torch.cat([torch.zeros(size, 1), torch.randint(0, 9, (size, 2))], 1).int()
        return ME.SparseTensor(torch.randn(size, 4, dtype=dtype), coordinates=rows)

    def forward(self, x, look=lambda *tensors: None):
        y = self.conv1(x)
        z = self.norms[0](y)
        look(y, z)
        z = self.relu(z)
        look(y, z)
        w = self.norms[1](self.conv2(z))
        v = self.norms[2](self.down(x))
        look(w, v)
        w += v
        look(w, v)
        return self.relu(w)


class TorchsparseBlock(Block):
    norm = spnn.BatchNorm

    def build(self, affine, inplace, layers=spnn):
        self.conv1 = layers.Conv3d(3, 5, 3)
        self.conv2 = layers.Conv3d(5, 5, 3, bias=True)
        self.down = layers.Conv3d(3, 5, 1)
        self.norms = nn.ModuleList(layers.BatchNorm(5, affine=affine) for _ in range(3))
        self.relu = layers.ReLU(inplace)

    @staticmethod
    def bn(norm):
        return norm

    @staticmethod
    def scene(dtype=torch.float64, size=90):
        generator = torch.Generator().manual_seed(0)
        cells = torch.randperm(2 * 7 * 6 * 5, generator=generator)[:size]
        axes = [cells // 210, cells // 30 % 7, cells // 5 % 6, cells % 5]
        feats = torch.randn(size, 3, generator=generator, dtype=torch.float64)
        return ts.SparseTensor(feats.to(dtype), torch.stack(axes, 1).int())

    def forward(self, x, look=lambda *tensors: None):
        y = self.conv1(x)
        z = self.norms[0](y)
        look(y, z)
        z = self.relu(z)
        look(y, z)
        w = self.norms[1](self.conv2(z))
        v = self.norms[2](self.down(x))
        look(w, v)
        s = w + v
        look(w, v, s)
        return self.relu(s) + z
