"""spconv's own names: registered, refused beside the real package, and taken back."""

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import voxax.torch.spconv as spconv
from voxax.errors import ModuleLoadedError

pytestmark = pytest.mark.torch

MODULES = [
    "spconv",
    "spconv.constants",
    "spconv.core",
    "spconv.pytorch",
    "spconv.pytorch.constants",
    "spconv.pytorch.conv",
    "spconv.pytorch.core",
    "spconv.pytorch.functional",
    "spconv.pytorch.hash",
    "spconv.pytorch.identity",
    "spconv.pytorch.modules",
    "spconv.pytorch.ops",
    "spconv.pytorch.pool",
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
"""
    exec(compile(code, "networks", "exec"), {})


def test_unknown_modules_are_not_there(installed):
    for name in ("spconv.pytorch.quantization", "spconv.benchmark", "cumm.gemm"):
        with pytest.raises(ModuleNotFoundError, match=name.rpartition(".")[2]):
            importlib.import_module(name)


def test_install_twice_and_take_back(installed):
    spconv.install()
    spconv.uninstall()
    assert [n for n in sys.modules if n.split(".")[0] in ("spconv", "cumm")] == []
    spconv.uninstall()


def test_another_spconv_is_not_replaced(monkeypatch):
    other = ModuleType("spconv")
    other.__file__ = "site-packages/spconv/__init__.py"
    monkeypatch.setitem(sys.modules, "spconv", other)
    with pytest.raises(ModuleLoadedError, match=r"already imported, from site-packages.*before"):
        spconv.install()
    assert sys.modules["spconv"] is other
    spconv.uninstall()
    assert sys.modules["spconv"] is other


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


SCRIPT = """
import sys
import spconv.pytorch as spconv
import helper
print(spconv.__name__, __name__, sys.argv[1:], helper.__name__)
raise SystemExit(3)
"""


def run(*arguments, cwd):
    command = [sys.executable, "-m", "voxax.torch.spconv", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.mark.parametrize("how", ["script", "module"])
def test_running_a_script(tmp_path, how):
    (tmp_path / "network.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("")
    named = ["network.py"] if how == "script" else ["-m", "network"]
    ran = run(*named, "--lr", "1", cwd=tmp_path)
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout.strip() == "voxax.torch.spconv __main__ ['--lr', '1'] helper"


@pytest.mark.parametrize("arguments", [[], ["-m"], ["absent.py"]])
def test_nothing_to_run(tmp_path, arguments):
    ran = run(*arguments, cwd=tmp_path)
    assert ran.returncode == 1
    assert ("absent.py" if arguments == ["absent.py"] else "usage") in ran.stderr


def test_pickles_of_spconv_load(installed):
    """Classes are found by spconv's names, as in a module that it has pickled."""
    import pickle

    stored = pickle.dumps(spconv.SubMConv2d(2, 3, 3), protocol=0)
    renamed = stored.replace(b"cvoxax.torch.spconv.", b"cspconv.pytorch.")
    assert renamed != stored
    loaded = pickle.loads(renamed)
    assert isinstance(loaded, spconv.SubMConv2d)
    x = spconv.SparseConvTensor(torch.ones(1, 2), torch.zeros(1, 3, dtype=torch.int32), [4, 4], 1)
    assert loaded(x).features.shape == (1, 3)
