"""A sparse network trained by PyTorch: its autograd, its optimiser, voxax's layers.

pip install -e ".[nn,torch]"
python examples/train_in_pytorch.py
"""

import argparse

import numpy as np
import torch
from torch import nn

import voxax.torch as vxt
from voxax.io.ground import height_above_ground
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
    """``(positions [N, 3], features [N, 2], labels [N])`` of a simulated sweep."""
    cloud = simulate_sweep(seed)
    cloud = cloud.select(np.hypot(*cloud.positions[:, :2].T) < radius)
    height = height_above_ground(cloud.positions)
    features = np.column_stack([np.ones(len(cloud)), np.clip(height, -2, 20) / 4])
    arrays = cloud.positions.astype(np.float32), features.astype(np.float32), cloud.labels
    return tuple(map(torch.from_numpy, arrays))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--radius", type=float, default=25.0, help="metres around the sensor")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    positions, features, labels = street(0, options.radius)
    voxels, row = vxt.voxelize(positions, features, voxel_size=0.4, return_inverse=True)
    network = Network(2, len(CLASS_NAMES))
    voxels = vxt.plan(network, voxels)  # kernel maps, once for this scene
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for step in range(options.steps):
        loss = nn.functional.cross_entropy(network(voxels)[row.long()], labels.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step + 1 == options.steps:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
