"""Training on clouds of many sizes takes no more memory with every size."""

from pathlib import Path

import pytest
from steady_memory import growth

pytestmark = [pytest.mark.torch, pytest.mark.slow]

NETWORK = """
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


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc/self/statm")
@pytest.mark.parametrize(
    ("version", "order"), [("", ""), (".version_1_4", "[:, [1, 2, 3, 0]]")], ids=["2.1", "1.4"]
)
def test_resident_memory_stays_flat(version, order):
    assert growth(NETWORK.format(version=version, order=order)) <= 1.05
