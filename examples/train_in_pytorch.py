"""A sparse network trained by PyTorch: its autograd, its optimizer, voxax's layers.

pip install -e ".[nn,torch]"
python examples/train_in_pytorch.py
"""

import argparse

import numpy as np
import torch
from torch import nn

import voxax.torch as vxt
from voxax.io.examples import Preparation
from voxax.io.simulator import CLASS_NAMES, simulate_sweep


class Network(nn.Module):
    """Two levels with a skip connection."""

    def __init__(self, channels, classes):
        super().__init__()
        self.stem = vxt.Sequential(vxt.SubMConv3d(channels, 16), vxt.BatchNorm(16), vxt.ReLU())
        self.down = vxt.Sequential(
            vxt.SparseConv3d(16, 32, 2, stride=2),
            vxt.SubMConv3d(32, 32),
            vxt.BatchNorm(32),
            vxt.ReLU(),
        )
        self.up = vxt.SparseConvTranspose3d(32, 16, 2, stride=2)
        self.head = vxt.Linear(32, classes)

    def forward(self, voxels):
        fine = self.stem(voxels)
        back = self.up(self.down(fine), fine)
        return self.head(vxt.cat([fine, back])).features


def street(seed, radius):
    """``(voxels, the class of each row)`` of a simulated sweep; -1 where there is none."""
    cloud = simulate_sweep(seed)
    example = Preparation(0.4)(cloud.select(np.hypot(*cloud.positions[:, :2].T) < radius))
    return vxt.Voxels.from_jax(example.voxels), torch.from_numpy(example.labels).long()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--radius", type=float, default=25.0, help="meters around the sensor")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    voxels, labels = street(0, options.radius)
    network = Network(voxels.features.shape[1], len(CLASS_NAMES))
    voxels = vxt.plan(network, voxels)  # kernel maps, once for this scene
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for step in range(options.steps):
        loss = nn.functional.cross_entropy(network(voxels), labels, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step + 1 == options.steps:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
