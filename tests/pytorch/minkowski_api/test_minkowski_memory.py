"""Training on clouds of many sizes takes no more memory with every size."""

from pathlib import Path

import pytest
from steady_memory import growth

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Layers of every kind, whose maps the manager of each cloud keeps.
NETWORK = """
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


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc/self/statm")
def test_resident_memory_stays_flat():
    assert growth(NETWORK) <= 1.05
