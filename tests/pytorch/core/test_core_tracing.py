"""PyTorch's tracers and exporters get an error: they would record memory that nothing fills."""

import pytest
import torch
from torch import nn

import voxax.torch.minkowski as ME
import voxax.torch.spconv as spconv
import voxax.torch.torchsparse as ts
from voxax.errors import InputError

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning"),
]

CELLS = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 3]], dtype=torch.int32)
X = spconv.SparseConvTensor(torch.ones(3, 2), CELLS, [4, 4, 4], 1)
LAYERS = {
    "spconv": (
        spconv.SparseSequential(spconv.SubMConv3d(2, 2, 3), nn.BatchNorm1d(2)),
        lambda f: spconv.SparseConvTensor(f, CELLS, [4, 4, 4], 1),
    ),
    "spconv, known maps": (spconv.SubMConv3d(2, 2, 3), X.replace_feature),
    "spconv, pool": (spconv.SparseMaxPool3d(2, 2), X.replace_feature),
    "minkowski": (
        ME.MinkowskiConvolution(2, 2, kernel_size=3, dimension=3),
        lambda f: ME.SparseTensor(f, coordinates=CELLS),
    ),
    "minkowski, norm": (
        nn.Sequential(
            ME.MinkowskiBatchNorm(2), ME.MinkowskiConvolution(2, 2, kernel_size=3, dimension=3)
        ),
        lambda f: ME.SparseTensor(f, coordinates=CELLS),
    ),
    "torchsparse": (ts.nn.Conv3d(2, 2, 3), lambda f: ts.SparseTensor(f, CELLS)),
}
WAYS = {
    "jit": lambda module, rows: torch.jit.trace(module, rows),
    "export": lambda module, rows: torch.export.export(module, rows, strict=False),
}


class OnRows(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.layer, self.tensor = LAYERS[name]

    def forward(self, rows):
        out = self.layer(self.tensor(rows))
        return out.feats if isinstance(out, ts.SparseTensor) else out.features


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_refused(name, way, grad):
    module, rows = OnRows(name).eval(), torch.ones(3, 2)
    if name == "spconv, known maps":
        module(rows)
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(InputError, match=r"torch\.jit\.trace.*itself"),
    ):
        WAYS[way](module, (rows,))


def test_norms_are_traced():
    module = OnRows("spconv")
    module.layer = spconv.SparseSequential(spconv.SubMConv3d(2, 2, 1), spconv.SparseBatchNorm(2))
    with torch.no_grad():
        traced = torch.jit.trace(module.eval(), (torch.ones(3, 2),))
        rows = torch.randn(3, 2)
        torch.testing.assert_close(traced(rows), module(rows))
