"""Peers on a GPU that have no CPU build, on doubles with the signatures of their sources.

A double multiplies by the weight of the kernel's center alone: what is checked is that calls fit.
"""

import os
import sys

import pytest
from benchmarks.gpu import clouds, worker
from benchmarks.turns import Worker

FLEXGEMM = """
import torch
class SubMConv3dFunction:
    @staticmethod
    def _compute_neighbor_cache(coords, shape, kernel_size, dilation, needs_grad):
        assert coords.is_contiguous() and coords.dtype == torch.int32 and coords.shape[1] == 4
        batch, channels, *grid = shape
        assert (coords.amax(0) < torch.tensor([batch, *grid])).all()
        assert kernel_size == (3, 3, 3) and dilation == (1, 1, 1)
        return "cache"
def sparse_submanifold_conv3d(feats, coords, shape, weight, bias=None, neighbor_cache=None):
    out, *taps, own = weight.shape
    assert taps == [3, 3, 3] and own == feats.shape[1] == shape[1] and neighbor_cache == "cache"
    return feats @ weight[:, 1, 1, 1].T + bias, neighbor_cache
"""
WARPCONVNET = """
import torch
class Voxels:
    def __init__(self, coords, features, made=False):
        (self.coords,), (self.feature_tensor,), self.made = coords, features, made
        assert self.coords.shape == (len(self.feature_tensor), 3)
    def replace(self, batched_features):
        return Voxels([self.coords], [batched_features], self.made)
class SparseConv3d(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, dilation=1, bias=True):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(kernel_size**3, in_channels, out_channels))
        self.bias = torch.nn.Parameter(torch.randn(out_channels)) if bias else None
    def forward(self, voxels):
        out = voxels.feature_tensor @ self.weight[13]
        out = out if self.bias is None else out + self.bias
        return Voxels([voxels.coords], [out], made=True)
"""
FVDB = """
import torch
__version__ = "0.6"
class JaggedTensor:
    def __init__(self, jdata):
        self.jdata = jdata
class GridBatch:
    @classmethod
    def from_ijk(cls, ijk, voxel_sizes=1, origins=0):
        assert ijk.jdata.shape[1] == 3 and ijk.jdata.dtype == torch.int32
        return cls()
    def jagged_like(self, data):
        return JaggedTensor(data)
class ConvolutionPlan:
    @classmethod
    def from_grid_batch(cls, kernel_size, stride, source_grid, target_grid=None):
        assert isinstance(source_grid, GridBatch) and target_grid is source_grid
        return cls()
"""
FVDB_NN = """
import torch, fvdb
class SparseConv3d(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size=3, stride=1, bias=True):
        super().__init__()
        shape = out_channels, in_channels, *[kernel_size] * 3
        self.weight = torch.nn.Parameter(torch.randn(shape))
        self.bias = torch.nn.Parameter(torch.randn(out_channels)) if bias else None
    def forward(self, data, plan):
        assert isinstance(data, fvdb.JaggedTensor) and isinstance(plan, fvdb.ConvolutionPlan)
        out = data.jdata @ self.weight[:, :, 1, 1, 1].T
        return fvdb.JaggedTensor(out if self.bias is None else out + self.bias)
"""
DOUBLES = {
    "flexgemm": {
        "flex_gemm/__init__.py": "",
        "flex_gemm/ops/__init__.py": "",
        "flex_gemm/ops/spconv/__init__.py": FLEXGEMM,
        "flex_gemm-1.0.0.dist-info/METADATA": "Name: flex_gemm\nVersion: 1.0.0\n",
    },
    "warpconvnet": {
        "warpconvnet/__init__.py": "__version__ = '1.8.2'",
        "warpconvnet/geometry/types/voxels.py": WARPCONVNET,
        "warpconvnet/nn/modules/sparse_conv.py": "from warpconvnet.geometry.types.voxels import *",
    },
    "fvdb": {"fvdb/__init__.py": FVDB, "fvdb/nn/__init__.py": FVDB_NN},
}


@pytest.mark.torch
@pytest.mark.parametrize("library", DOUBLES)
def test_rows_of_a_peer(library, tmp_path):
    pytest.importorskip("torch")
    for name, text in DOUBLES[library].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shapes = [
        {"operation": "map", "cloud": "lidar:50"},
        {"operation": "layer", "cloud": "lidar:50", "dtype": "float32", "channels": 4},
        {"operation": "stack3", "cloud": "sphere8", "dtype": "float32", "channels": 4},
        {"operation": "MinkUNet34", "cloud": "lidar:50", "dtype": "float32"},
    ]
    rows = [
        {"library": library, "mode": mode, **shape}
        for shape in shapes
        for mode in ("forward", "forward+backward")
    ]
    for row in rows:
        clouds.prepare(row["cloud"], None, tmp_path)
    rehearsal = {"VOXAX_GPU_REHEARSAL": "1", "OMP_NUM_THREADS": "1"}
    given = {**os.environ, "PYTHONPATH": str(tmp_path), **rehearsal}
    command = [sys.executable, worker.__file__, library, tmp_path, 100]
    with Worker(library, command, given) as own:
        assert "PyTorch" in own.hello
        for row in rows:
            values = own.ask("measure", row=row)
            if row["operation"] == "MinkUNet34":
                assert values == {"note": "not written here"}
            else:
                assert values["seconds"] > 0, (row, values)
