"""Training on clouds of many sizes takes no more memory with every size."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS = """
import gc, os, sys
import torch
from torch import nn
import voxax.torch.spconv as spconv

torch.set_num_threads(2)
torch.manual_seed(0)
net = spconv.SparseSequential(
    spconv.SubMConv3d(4, 16, 3, bias=False, indice_key="fine"),
    nn.BatchNorm1d(16),
    nn.ReLU(),
    spconv.SparseConv3d(16, 32, 3, 2, 1, indice_key="down"),
    spconv.SubMConv3d(32, 32, 3, indice_key="coarse"),
    spconv.SparseInverseConv3d(32, 16, 3, indice_key="down"),
    spconv.SubMConv3d(16, 3, 1),
)
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
    indices = torch.stack([0 * cells, cells // 4096, cells // 64 % 64, cells % 64], 1).int()
    x = spconv.SparseConvTensor(torch.randn(size, 4), indices, [64, 64, 64], 1)
    loss = net(x).features.square().mean()
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
def test_resident_memory_stays_flat():
    ran = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert float(ran.stdout) <= 1.05
