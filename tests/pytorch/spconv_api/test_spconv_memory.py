"""Training on clouds of many sizes takes no more memory with every size."""

from pathlib import Path

import pytest
from steady_memory import growth

pytestmark = [pytest.mark.torch, pytest.mark.slow]

NETWORK = """
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


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc/self/statm")
def test_resident_memory_stays_flat():
    assert growth(NETWORK) <= 1.05
