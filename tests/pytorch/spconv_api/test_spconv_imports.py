"""What spconv's door imports, and that it works without PyTorch's compiler."""

import sys

import pytest

from own_process import run_python

pytestmark = pytest.mark.torch

LOADED = """
import sys, torch

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before, held = set(sys.modules), resident()
import voxax.torch.spconv
print(resident() - held, *sys.modules.keys() - before)
"""

# A network that PyTorch compiles, with the layers as they are, and with PyTorch's own decorator.
GRAPHS = """
import sys, torch
import voxax.torch.spconv as spconv
from voxax.torch.spconv import conv, pool

if sys.argv[1] == "theirs":
    for layer in (conv.SparseConvolution, pool.SparseMaxPool):
        layer.forward = torch.compiler.disable(layer.forward.__wrapped__)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = spconv.SubMConv3d(4, 8, 3)
        self.norm = torch.nn.BatchNorm1d(8)
        self.down = spconv.SparseConv3d(8, 8, 3, 2)
        self.pool = spconv.SparseMaxPool3d(2)

    def forward(self, x):
        x = self.conv(x.replace_feature(x.features * 2))
        x = self.down(x.replace_feature(torch.relu(self.norm(x.features))))
        return torch.tanh(self.pool(x).features) + 1

torch.manual_seed(0)
net = Net()
places = torch.randperm(9**3)[:200]
indices = torch.stack([places * 0, places // 81, places // 9 % 9, places % 9], 1).int()
x = spconv.SparseConvTensor(torch.randn(200, 4), indices, [9, 9, 9], 1)
net(x).sum().backward()
assert ("torch._dynamo" in sys.modules) == (sys.argv[1] == "theirs")

compiled = torch.compile(net, backend="aot_eager")
for _ in range(3):
    torch.testing.assert_close(compiled(x), net(x))
from torch._dynamo.utils import counters
print(sorted(counters["stats"].items()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_little_is_imported():
    grown, *names = run_python("-c", LOADED).split()
    roots = {name.partition(".")[0] for name in names}
    assert not roots & {"jax", "jaxlib", "flax"}
    assert "torch._dynamo" not in names
    assert int(grown) < 30 * 2**20
    assert len(names) < 80


def test_the_compiler_sees_what_its_own_decorator_shows_it():
    ours, theirs = (run_python("-c", GRAPHS, how) for how in ("ours", "theirs"))
    assert "unique_graphs" in theirs
    assert ours == theirs
