"""Training on clouds of many sizes takes no more memory with every size, at each door."""

from pathlib import Path

import pytest

from own_process import run_python

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Each sets ``net``, and ``run``, which takes ``int32[N, 4]`` and ``[N, 4]``.
SPCONV = """
import voxax.torch.spconv as spconv

net = spconv.SparseSequential(
    spconv.SubMConv3d(4, 16, 3, bias=False, indice_key="fine"),
    nn.BatchNorm1d(16),
    nn.ReLU(),
    spconv.SparseConv3d(16, 32, 3, 2, 1, indice_key="down"),
    spconv.SubMConv3d(32, 32, 3, indice_key="coarse"),
    spconv.SparseInverseConv3d(32, 16, 3, indice_key="down"),
    spconv.SubMConv3d(16, 3, 1),
)

def run(rows, features):
    return net(spconv.SparseConvTensor(features, rows, [64, 64, 64], 1)).features
"""
# Layers of every kind, whose maps the manager of each cloud keeps.
MINKOWSKI = """
import voxax.torch.minkowski as ME

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            ME.MinkowskiConvolution(4, 16, kernel_size=3, dimension=3),
            ME.MinkowskiBatchNorm(16),
            ME.MinkowskiReLU(inplace=True),
        )
        self.down = ME.MinkowskiConvolution(16, 32, kernel_size=2, stride=2, dimension=3)
        self.channelwise = ME.MinkowskiChannelwiseConvolution(32, kernel_size=3, dimension=3)
        self.pool = ME.MinkowskiMaxPooling(kernel_size=2, stride=2, dimension=3)
        self.up = ME.MinkowskiConvolutionTranspose(32, 16, kernel_size=4, stride=4, dimension=3)
        self.norm = ME.MinkowskiInstanceNorm(16)
        self.mean, self.add = ME.MinkowskiGlobalAvgPooling(), ME.MinkowskiBroadcastAddition()
        self.head = ME.MinkowskiConvolution(32, 3, kernel_size=1, dimension=3)

    def forward(self, x):
        fine = self.stem(x)
        y = self.norm(self.up(self.pool(self.channelwise(self.down(fine)))))
        return self.head(ME.cat(fine, self.add(y, self.mean(y))))

net = Net()

def run(rows, features):
    field = ME.TensorField(features, coordinates=rows.float())
    return net(field.sparse()).slice(field).F
"""
TORCHSPARSE = """
import voxax.torch.torchsparse{version} as ts
from voxax.torch.torchsparse{version} import nn as spnn

net = nn.Sequential(
    spnn.Conv3d(4, 16, 3),
    spnn.BatchNorm(16),
    spnn.ReLU(True),
    spnn.Conv3d(16, 32, 2, stride=2),
    spnn.Conv3d(32, 32, 3),
    spnn.Conv3d(32, 16, 2, stride=2, transposed=True),
    spnn.Conv3d(16, 3, 1),
)

def run(rows, features):
    return net(ts.SparseTensor(features, rows{order})).feats
"""
NETWORKS = {
    "spconv": SPCONV,
    "minkowski": MINKOWSKI,
    "torchsparse 2.1": TORCHSPARSE.format(version="", order=""),
    "torchsparse 1.4": TORCHSPARSE.format(version=".version_1_4", order="[:, [1, 2, 3, 0]]"),
}
STEPS = """
import gc, os
import torch
from torch import nn

torch.set_num_threads(2)
torch.manual_seed(0)
{network}
optimizer = torch.optim.AdamW(net.parameters())
sizes = [1000 + 150 * number for number in range(40)]

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        # Without files, of which the system drops pages when other programs need memory.
        pages, of_files = map(int, file.read().split()[1:3])
    return (pages - of_files) * os.sysconf("SC_PAGE_SIZE")

early = late = 0
for step in range(500):
    size = sizes[step * 17 % 40]
    cells = torch.randperm(64**3)[:size]
    rows = torch.stack([0 * cells, cells // 4096, cells // 64 % 64, cells % 64], 1).int()
    loss = run(rows, torch.randn(size, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # Largest of 40 steps, which have all sizes.
    if 50 <= step < 90:
        early = max(early, resident())
    if step >= 460:
        late = max(late, resident())
print(late / early)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc/self/statm")
@pytest.mark.parametrize("name", NETWORKS)
def test_resident_memory_stays_flat(name):
    """The last of 500 steps with 40 sizes, by early ones, in a process of their own."""
    assert float(run_python("-c", STEPS.format(network=NETWORKS[name]))) <= 1.05
