"""spconv's own names: registered, refused beside the real package, and taken back."""

import importlib
import pickle
import pkgutil
import sys
from importlib.machinery import PathFinder
from types import ModuleType

import numpy as np
import pytest
import torch

import voxax.torch.spconv as spconv
from own_process import run_python

pytestmark = pytest.mark.torch

MODULES = [
    "spconv",
    "spconv.constants",
    "spconv.core",
    "spconv.core_cc",
    "spconv.core_cc.csrc.sparse.all",
    "spconv.core_cc.csrc.sparse.all.ops_cpu3d",
    "spconv.core_cc.csrc.utils.boxops",
    "spconv.core_cc.cumm.common",
    "spconv.cppconstants",
    "spconv.debug_utils",
    "spconv.pytorch",
    "spconv.pytorch.constants",
    "spconv.pytorch.conv",
    "spconv.pytorch.core",
    "spconv.pytorch.cppcore",
    "spconv.pytorch.functional",
    "spconv.pytorch.hash",
    "spconv.pytorch.identity",
    "spconv.pytorch.modules",
    "spconv.pytorch.ops",
    "spconv.pytorch.pool",
    "spconv.pytorch.spatial",
    "spconv.pytorch.tables",
    "spconv.pytorch.utils",
    "spconv.test_utils",
    "spconv.tools",
    "spconv.utils",
    "cumm",
    "cumm.tensorview",
]


@pytest.fixture
def installed(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] in ("spconv", "cumm")]:
        monkeypatch.delitem(sys.modules, name)
    spconv.install()
    yield
    spconv.uninstall()


@pytest.mark.parametrize("name", MODULES)
def test_modules(installed, name):
    assert importlib.import_module(name) is sys.modules[name]
    if name == "spconv.pytorch" or name.startswith("spconv.pytorch."):
        own = name.replace("spconv.pytorch", "voxax.torch.spconv", 1)
        assert sys.modules[name] is importlib.import_module(own)


def test_nothing_is_loaded_twice(installed):
    for found in pkgutil.iter_modules(spconv.__path__):
        if found.name != "__main__":
            own = importlib.import_module(f"voxax.torch.spconv.{found.name}")
            assert importlib.import_module(f"spconv.pytorch.{found.name}") is own


def test_what_networks_import(installed):
    """As written in OpenPCDet, Pointcept, mmdetection3d and torch-pointcloud."""
    code = """
import spconv
assert float(spconv.__version__[2:]) >= 2.2
spconv.constants.SPCONV_USE_DIRECT_TABLE = False
import spconv.pytorch as spconv
from spconv.core import ConvAlgo
from spconv.pytorch import SparseConvTensor, SparseModule, SparseSequential, functional as fsp, ops
from spconv.pytorch.conv import SparseConv3d, SubMConv3d
from spconv.pytorch.modules import is_spconv_module
from spconv.pytorch.utils import PointToVoxel, gather_features_by_pc_voxel_id
import cumm.tensorview as tv
try:
    from spconv.utils import VoxelGeneratorV2
except ImportError:
    from spconv.utils import Point2VoxelCPU3d
assert issubclass(spconv.SubMConv3d, spconv.conv.SparseConvolution)
assert is_spconv_module(SubMConv3d(1, 1, 3)) and not hasattr(tv, "nothing")
import importlib.util
assert importlib.util.find_spec("spconv").origin
# As in scripts that read detectors' data, and in copies of spconv's own files.
import os
import spconv as package
assert os.path.isfile(package.__file__)
from spconv.utils import rbbox_iou, rbbox_intersection, non_max_suppression_cpu
from spconv.pytorch.cppcore import get_current_stream, torch_tensor_to_tv
from spconv.pytorch.core import IndiceData, ImplicitGemmIndiceData, ThrustSortAllocator
from spconv.pytorch.functional import SubMConvFunction
from spconv.pytorch.spatial import RemoveDuplicate
from spconv.cppconstants import CPU_ONLY_BUILD
from spconv.debug_utils import spconv_save_debug_data
from spconv.core_cc.csrc.sparse.all import SpconvOps
import spconv.core_cc as _ext
assert hasattr(_ext, "csrc") and not hasattr(_ext, "cuda")
"""
    exec(compile(code, "networks", "exec"), {})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("spconv.pytorch.quantization", "GPUs only"),
        ("spconv.pytorch.quantization.intrinsic", "GPUs only"),
        ("spconv.benchmark", "GPUs"),
        ("spconv.algo", "CUDA kernels"),
        ("spconv.core_cc.csrc.sparse.convops", "spconv.pytorch.ops"),
        ("cumm.gemm", "tensorview"),
        ("spconv.unknown", "No module named"),
    ],
)
def test_absent_modules_say_why(installed, name, why):
    with pytest.raises(ModuleNotFoundError, match=why) as caught:
        importlib.import_module(name)
    assert name.startswith(caught.value.name)


def test_absent_functions_of_the_binary_say_where_they_are(installed):
    from spconv.core_cc.csrc.sparse.all import SpconvOps

    with pytest.raises(AttributeError, match=r"SpconvOps\.gather_cpu.*spconv\.pytorch\.ops"):
        SpconvOps.gather_cpu  # noqa: B018 (it raises)


def test_pairs_for_another_layer(installed):
    """Pairs that a program makes of a table, as layers leave them."""
    from spconv.pytorch import ops
    from spconv.pytorch.core import ImplicitGemmIndiceData

    first, second = (spconv.SubMConv3d(2, 2, 3, indice_key="a") for _ in range(2))
    indices = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 2], [1, 0, 0, 0]], dtype=torch.int32)
    x = spconv.SparseConvTensor(torch.randn(3, 2), indices, [4, 4, 4], 2)
    left = first(x).indice_dict["a"]
    sizes = left.ksize, left.stride, left.dilation, left.padding
    shape = [4, 4, 4]
    masks = left.pair_mask_fwd_splits, [], [], [], left.masks
    tables = indices, indices, left.pair_fwd, left.pair_bwd, *masks
    made = ImplicitGemmIndiceData(*tables, shape, shape, True, left.algo, *sizes)
    y = spconv.SparseConvTensor(x.features, indices, shape, 2, indice_dict={"a": made})
    assert torch.equal(second(y).features, second(x).features)
    assert torch.equal(made.pair_bwd, left.pair_bwd)
    out = ops.implicit_gemm(x.features, second.weight, made.pair_fwd, bias=second.bias)[0]
    torch.testing.assert_close(out, second(x).features)


def test_another_cumm_stays(installed, monkeypatch):
    spconv.uninstall()
    other = ModuleType("cumm")
    monkeypatch.setitem(sys.modules, "cumm", other)
    spconv.install()
    assert sys.modules["cumm"] is other


def test_voxels_as_data_pipelines_make_them(installed):
    import cumm.tensorview as tv
    from spconv.utils import Point2VoxelCPU3d

    points = np.random.default_rng(0).uniform(-1, 5, (200, 4)).astype(np.float32)
    made = Point2VoxelCPU3d(
        vsize_xyz=np.array([1.0, 1.0, 2.0]),
        coors_range_xyz=np.array([0.0, 0, 0, 4, 3, 4]),
        num_point_features=4,
        max_num_points_per_voxel=5,
        max_num_voxels=100,
    )
    assert made.grid_size == [2, 3, 4]
    voxels, indices, numbers = (t.numpy() for t in made.point_to_voxel(tv.from_numpy(points)))
    cells = np.floor(points[:, :3] / [1, 1, 2]).astype(int)[:, ::-1]
    inside = ((cells >= 0) & (cells < [2, 3, 4])).all(1)
    for cell, number, row in zip(indices, numbers, voxels, strict=True):
        mine = points[inside & (cells == cell).all(1)]
        assert number == min(len(mine), 5)
        assert np.array_equal(row[:number], mine[:5])
        assert not row[number:].any()
    assert len(indices) == len(np.unique(cells[inside], axis=0))
    means, *_ = made.point_to_voxel_empty_mean(points)
    filled = means.numpy_view()
    for number, row in zip(numbers, filled, strict=True):
        np.testing.assert_allclose(row[number:], row[:number].mean(0) + 0 * row[number:], rtol=1e-5)


PICKLED = """
import sys, torch
from torch import nn
import spconv.pytorch as spconv
torch.set_num_threads(1)
net = spconv.SparseSequential(
    spconv.SubMConv3d(2, 4, 3, indice_key="fine", bias=False), nn.ReLU(),
    spconv.SparseConv3d(4, 8, 3, 2, 1, indice_key="down", bias=False),
    spconv.SparseMaxPool3d(2, 2, indice_key="pool"),
).eval()
up = spconv.SparseInverseConv3d(8, 4, 2, indice_key="pool", bias=False)
indices = torch.nonzero(torch.rand(2, 6, 7, 8) < 0.3).int().contiguous()
x = spconv.SparseConvTensor(torch.randn(len(indices), 2), indices, [6, 7, 8], 2)
with torch.no_grad():
    y = net(x)
    torch.save((net, up, x, y, up(y).features), sys.argv[1])
"""


def test_pickles_that_spconv_wrote(installed, tmp_path):
    if PathFinder.find_spec("spconv") is None:
        pytest.skip("spconv is not installed: pip install spconv==2.3.8")
    run_python("-c", PICKLED, tmp_path / "pickled.pt")
    net, up, x, y, expected = torch.load(tmp_path / "pickled.pt", weights_only=False)
    with torch.no_grad():
        torch.testing.assert_close(net(x).features, y.features)
        torch.testing.assert_close(up(net(x)).features, expected)
        torch.testing.assert_close(up(y).features, expected)
    net.load_state_dict(net.state_dict())
    assert pickle.loads(pickle.dumps(net))[0].act_type is net[0].act_type


def test_pickles_of_spconv_load(installed):
    """Classes are found by spconv's names, as in a module that it has pickled."""
    stored = pickle.dumps(spconv.SubMConv2d(2, 3, 3), protocol=0)
    renamed = stored.replace(b"cvoxax.torch.spconv.", b"cspconv.pytorch.")
    assert renamed != stored
    loaded = pickle.loads(renamed)
    assert isinstance(loaded, spconv.SubMConv2d)
    x = spconv.SparseConvTensor(torch.ones(1, 2), torch.zeros(1, 3, dtype=torch.int32), [4, 4], 1)
    assert loaded(x).features.shape == (1, 3)
