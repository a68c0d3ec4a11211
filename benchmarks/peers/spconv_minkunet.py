"""MinkUNet built from spconv's modules: the same network as ``voxax.models.MinkUNet``, on CPU.

    model = build(voxax_model, in_channels, classes)     # or a state dict, or None
    logits = run(model, coords, features)                # torch.Tensor [N, classes], input order

``build`` takes a voxax MinkUNet, whose weights it converts; or what
``voxax.interop.to_spconv(voxax_model)`` returns, so that a process without JAX can have it from an
``.npz``; or None for spconv's own initial weights of a MinkUNet18 of full width. Widths, and the
number of blocks at each stage, are read off the weights. The result is in evaluation mode;
``model.train()`` makes batch norm use the batch's own statistics.

``run`` takes ``int32[N, 1 + 3]`` NumPy coordinates (batch index first, distinct rows, negative ones
allowed) and ``float32[N, C]`` features. ``prepare`` is its first half, for timing the network
alone: ``logits = model(prepare(coords, features))``. Kernel maps ("indice pairs") are made anew in
every call of the model, as spconv does, and shared by the layers of a level.

Backward passes run on CPU too: ``run(model, ...).sum().backward()``.

On CPU spconv 2.3.8 is right with one thread only (``torch.set_num_threads(1)``). With two, a few
rows of the outputs of SubMConv3d and SparseInverseConv3d and of the gradients of features are
wrong, others in every run: 3 to 10 of 616 rows of a SubMConv3d, by up to the size of the values
(AMD EPYC, PyTorch 2.13; its users report the same). So results are compared with one thread; a time
taken with more is that of a wrong result.

Where spconv and voxax differ, and what is done about it:

- spconv's coordinates are not negative and lie in a grid of given shape. They are shifted here by
  a multiple of the network's total stride, 16, so that every level has the same cells, and the
  grid is a multiple of 16: a grid of odd shape would lose the voxels of its last plane when halved.
- With kernel 2 and stride 2 both then have the same output voxels. With kernel 3 and stride 2,
  which this network does not use, spconv's output is every site that a tap reaches; voxax's is
  ``floor(coords / 2)`` unless ``generative=True``.
- The rows of deeper levels are in spconv's own order; on the way up ``SparseInverseConv3d``
  restores those of the level, and the output has the input's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import spconv.pytorch as spconv
import torch
from torch import nn

LEVELS = 4
PLANES = (32, 64, 128, 256, 256, 128, 96, 96)


class ConvNormAct(nn.Module):
    """A convolution without bias, batch normalization, ReLU."""

    def __init__(self, conv: nn.Module, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = conv, nn.BatchNorm1d(channels)

    def forward(self, x: spconv.SparseConvTensor) -> spconv.SparseConvTensor:
        x = self.conv(x)
        return x.replace_feature(torch.relu(self.norm(x.features)))


class Shortcut(nn.Module):
    """A 1x1x1 convolution with batch normalization, on features alone."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(c_in, c_out, bias=False), nn.BatchNorm1d(c_out))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers(features)


class ResidualBlock(nn.Module):
    """Two submanifold convolutions and a shortcut."""

    def __init__(self, c_in: int, c_out: int, level: int) -> None:
        super().__init__()
        self.first = ConvNormAct(submanifold(c_in, c_out, level), c_out)
        self.second = submanifold(c_out, c_out, level)
        self.norm = nn.BatchNorm1d(c_out)
        self.shortcut = nn.Identity() if c_in == c_out else Shortcut(c_in, c_out)

    def forward(self, x: spconv.SparseConvTensor) -> spconv.SparseConvTensor:
        y = self.second(self.first(x))
        return y.replace_feature(torch.relu(self.norm(y.features) + self.shortcut(x.features)))


class MinkUNet(nn.Module):
    """Names and order of the layers are those of ``voxax.models.MinkUNet``."""

    def __init__(
        self,
        in_channels: int,
        classes: int,
        *,
        stem: int = 32,
        planes: Sequence[int] = PLANES,
        blocks: Sequence[int] = (2,) * 8,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.stem = ConvNormAct(submanifold(in_channels, stem, 0), stem)
        self.stem_second = ConvNormAct(submanifold(stem, stem, 0), stem)

        def residual(c_in: int, c_out: int, number: int, level: int) -> nn.Module:
            sizes = [c_in, *[c_out] * (number - 1)]
            return nn.Sequential(*[ResidualBlock(c, c_out, level) for c in sizes])

        self.down, self.down_blocks = nn.ModuleList(), nn.ModuleList()
        self.up, self.up_blocks = nn.ModuleList(), nn.ModuleList()
        channels, skips = stem, []
        for level in range(LEVELS):
            skips.append(channels)
            key = f"between{level}"
            conv = spconv.SparseConv3d(channels, channels, 2, 2, bias=False, indice_key=key)
            self.down.append(ConvNormAct(conv, channels))
            self.down_blocks.append(residual(channels, planes[level], blocks[level], level + 1))
            channels = planes[level]
        for stage in range(LEVELS, 2 * LEVELS):
            level, c_out = 2 * LEVELS - 1 - stage, planes[stage]
            key = f"between{level}"
            conv = spconv.SparseInverseConv3d(channels, c_out, 2, indice_key=key, bias=False)
            self.up.append(ConvNormAct(conv, c_out))
            self.up_blocks.append(residual(c_out + skips.pop(), c_out, blocks[stage], level))
            channels = c_out
        self.head = nn.Linear(channels, classes)

    def forward(self, x: spconv.SparseConvTensor) -> torch.Tensor:
        """Logits ``[N, classes]``, rows as in ``x``."""
        x = self.stem_second(self.stem(x))
        skips = []
        for down, residual in zip(self.down, self.down_blocks, strict=True):
            skips.append(x)
            x = residual(down(x))
        for up, residual in zip(self.up, self.up_blocks, strict=True):
            x, skip = up(x), skips.pop()
            x = residual(x.replace_feature(torch.cat([x.features, skip.features], dim=1)))
        return self.head(x.features)


def submanifold(c_in: int, c_out: int, level: int) -> nn.Module:
    """3x3x3 without bias; all of a level share their kernel map."""
    return spconv.SubMConv3d(c_in, c_out, 3, bias=False, indice_key=f"submanifold{level}")


def build(state: Mapping[str, np.ndarray] | Any | None, in_channels: int, classes: int) -> MinkUNet:
    """The network with the weights of ``state``, in evaluation mode. See the top of the file."""
    let_backward_run_on_cpu()
    if state is None:
        return MinkUNet(in_channels, classes).eval()
    if not isinstance(state, Mapping):
        from voxax.interop import to_spconv

        state = to_spconv(state)
    stages = [("down_blocks", i) for i in range(LEVELS)] + [("up_blocks", i) for i in range(LEVELS)]
    model = MinkUNet(
        in_channels,
        classes,
        stem=len(state["stem.norm.weight"]),
        planes=[len(state[f"{part}.{i}.0.norm.weight"]) for part, i in stages],
        blocks=[_number_of_blocks(state, f"{part}.{i}.") for part, i in stages],
    )
    model.load_state_dict({name: torch.from_numpy(np.asarray(v)) for name, v in state.items()})
    return model.eval()


def _number_of_blocks(state: Mapping[str, Any], stage: str) -> int:
    return sum(name.startswith(stage) and name.endswith(".second.weight") for name in state)


def prepare(coords: np.ndarray, features: np.ndarray) -> spconv.SparseConvTensor:
    """``int32[N, 4]`` coordinates and ``float32[N, C]`` features as spconv wants them."""
    coords = np.asarray(coords, np.int32)
    total = 2**LEVELS
    low = coords[:, 1:].min(0, initial=0) // total * total
    shifted = np.column_stack([coords[:, :1], coords[:, 1:] - low]).astype(np.int32)
    shape = (shifted[:, 1:].max(0, initial=0) // total + 1) * total
    scenes = int(coords[:, 0].max(initial=0)) + 1
    rows = torch.from_numpy(np.ascontiguousarray(features, np.float32))
    return spconv.SparseConvTensor(rows, torch.from_numpy(shifted), shape.tolist(), scenes)


def run(model: nn.Module, coords: np.ndarray, features: np.ndarray) -> torch.Tensor:
    """Logits ``[N, classes]`` in the order of ``coords``; in evaluation without gradients."""
    with torch.set_grad_enabled(model.training):
        return model(prepare(coords, features))


def let_backward_run_on_cpu() -> None:
    """spconv 2.3.8 asks for the CUDA stream in every backward pass, also on CPU, where PyTorch
    raises because there is none; its CPU kernels do not use it."""
    if not torch.cuda.is_available():
        from spconv.pytorch import ops

        ops.get_current_stream = lambda: 0
