"""A sparse network written for spconv, trained by PyTorch on a CPU.

pip install -e ".[nn,torch]"
python examples/train_in_pytorch.py
"""

import argparse

import numpy as np
import torch
from torch import nn

import voxax.torch.spconv as spconv
from voxax.io.examples import Preparation
from voxax.io.simulator import CLASS_NAMES, simulate_sweep


class Network(nn.Module):
    """Two levels with a skip connection."""

    def __init__(self, channels, classes):
        super().__init__()
        self.stem = spconv.SparseSequential(
            spconv.SubMConv3d(channels, 16, 3, bias=False, indice_key="fine"),
            nn.BatchNorm1d(16),
            nn.ReLU(),
        )
        self.deep = spconv.SparseSequential(
            spconv.SparseConv3d(16, 32, 2, stride=2, indice_key="down"),
            spconv.SubMConv3d(32, 32, 3, bias=False, indice_key="coarse"),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            spconv.SparseInverseConv3d(32, 16, 2, indice_key="down"),
        )
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        fine = self.stem(x)
        back = self.deep(fine)
        return self.head(torch.cat([fine.features, back.features], 1))


def street(seed, radius):
    """``(voxels, the class of each row)`` of a simulated sweep; -1 where there is none."""
    cloud = simulate_sweep(seed)
    example = Preparation(0.4)(cloud.select(np.hypot(*cloud.positions[:, :2].T) < radius))
    voxels = example.voxels
    indices = torch.tensor(voxels.valid_coords())
    indices[:, 1:] -= indices[:, 1:].amin(0)  # spconv's coordinates begin at 0
    shape = (indices[:, 1:].amax(0) + 1).tolist()
    features = torch.tensor(voxels.valid_features())
    x = spconv.SparseConvTensor(features, indices, shape, voxels.batch_size)
    return x, torch.from_numpy(example.labels[: len(indices)]).long()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--radius", type=float, default=25.0, help="meters around the sensor")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    x, labels = street(0, options.radius)
    network = Network(x.features.shape[1], len(CLASS_NAMES))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for step in range(options.steps):
        loss = nn.functional.cross_entropy(network(x), labels, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step + 1 == options.steps:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
